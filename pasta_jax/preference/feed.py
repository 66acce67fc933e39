"""Batches of answer pairs, as a pure function of seed and step; both answers of a pair get rows of one length."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import numpy as np

from pasta_jax.data.batches import Feed, Layout
from pasta_jax.data.example import Example
from pasta_jax.data.packing import Batch, pack
from pasta_jax.errors import PastaError
from pasta_jax.preference.loss import PairBatch
from pasta_jax.progress import Progress


@dataclasses.dataclass(frozen=True, eq=False)
class PairExample:
    """Two answers to one prompt as the model reads them, and their log-probabilities under the reference."""

    better: Example
    worse: Example
    reference_better: float
    reference_worse: float

    def __len__(self) -> int:
        return max(len(self.better), len(self.worse))


class PairFeed(Feed):
    """Shuffles every epoch differently; a batch has `rows` pairs, each in the shortest row that holds both answers.

    Each host gets an equal share of the rows.
    """

    def __init__(
        self, pairs: Sequence[PairExample], lengths: tuple[int, ...], rows: int, host: int = 0, hosts: int = 1
    ):
        # A feed only needs the lengths of records, so order, buckets and epochs work as in any other training.
        super().__init__(pairs, Layout(tuple(lengths), rows, packed=False, too_long="drop"), host, hosts)

    def batch(self, seed: int, step: int) -> PairBatch:
        """This host's pairs of a step; unused rows have weight 0."""
        length, rows = self.rows_of(seed, step)
        pairs = [self.examples[self.pieces[number].record] for [number] in rows]
        return pair_batch(pairs, length, self.layout.rows // self.hosts)


def pair_batch(pairs: Sequence[PairExample], length: int, rows: int) -> PairBatch:
    """A batch of `rows` rows, padded behind the pairs."""
    unused = rows - len(pairs)
    if unused < 0:
        raise PastaError(f"{len(pairs)} pairs for {rows} rows; raise rows")

    def side(answers: list[Example]):
        return pack([[answer] for answer in answers] + [[]] * unused, length)

    def column(values: list[float]) -> np.ndarray:
        return np.pad(np.asarray(values, np.float32), (0, unused))

    return PairBatch(
        better=side([pair.better for pair in pairs]),
        worse=side([pair.worse for pair in pairs]),
        reference_better=column([pair.reference_better for pair in pairs]),
        reference_worse=column([pair.reference_worse for pair in pairs]),
        weight=column([1.0] * len(pairs)),
    )


def score_examples(
    score: Callable[[Batch], jax.Array], examples: Sequence[Example], lengths: tuple[int, ...], rows: int
) -> list[float]:
    """The log-probability of each example; `score(batch)` returns those of a batch's rows.

    Examples are grouped into batches the same way in every run, so a value never depends on what was computed before.
    """
    longest = max(map(len, examples), default=0)
    if longest > lengths[-1]:
        raise PastaError(f"an answer has {longest} tokens with its prompt, rows have {lengths[-1]}; raise lengths")
    values = [0.0] * len(examples)
    shortest = 0
    with Progress("scoring answers", len(examples)) as progress:
        for length in lengths:
            bucket = [number for number, example in enumerate(examples) if shortest < len(example) <= length]
            shortest = length
            for start in range(0, len(bucket), rows):
                numbers = bucket[start : start + rows]
                batch = pack([[examples[number]] for number in numbers] + [[]] * (rows - len(numbers)), length)
                for number, value in zip(numbers, np.asarray(score(batch)), strict=False):
                    values[number] = float(value)
                progress.add(len(numbers))
    return values
