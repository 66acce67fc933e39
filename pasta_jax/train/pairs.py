"""Batches of pairs of answers to one question, as a pure function of seed and step; a pair's rows have one length."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from pasta_jax.data.batches import Feed, Layout
from pasta_jax.data.example import Example
from pasta_jax.data.packing import Batch, pack
from pasta_jax.errors import PastaError


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PairBatch:
    """A batch of pairs: row b of `better` and of `worse` answer the same prompt, one record per row."""

    better: Batch
    worse: Batch
    reference_better: np.ndarray  # float32 [B]: the reference's log-probability of the answer
    reference_worse: np.ndarray
    weight: np.ndarray  # float32 [B]: 1, or 0 in a row that is padding


@dataclasses.dataclass(frozen=True, eq=False)
class PairExample:
    """Two answers to one prompt as the model reads them, and their log-probabilities under the reference."""

    better: Example
    worse: Example
    reference_better: float = 0.0
    reference_worse: float = 0.0

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
