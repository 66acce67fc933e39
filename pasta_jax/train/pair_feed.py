"""Pairs of answers as batches: of even length, one answer a row, a pure function of seed and step."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from pasta_jax.data.batches import Feed, Layout
from pasta_jax.data.example import Example
from pasta_jax.data.packing import pack
from pasta_jax.errors import PastaError
from pasta_jax.train.preference import Pairs


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """Two answers to one prompt as the model reads them, and their log-probabilities under the reference."""

    better: Example
    worse: Example
    reference_better: float
    reference_worse: float

    def __len__(self) -> int:
        return max(len(self.better), len(self.worse))


class PairFeed:
    """Each epoch in an order of its own, of `rows` pairs a batch, each in the shortest row that holds both answers."""

    def __init__(self, pairs: Sequence[Pair], lengths: tuple[int, ...], rows: int):
        # What `Feed` knows of records: their lengths. So order, buckets and epochs are those of any other training.
        self._places = Feed(pairs, Layout(tuple(lengths), rows, packed=False, too_long="drop"))
        self.pairs, self.rows, self.dropped = pairs, rows, self._places.dropped

    def steps(self, seed: int, epochs: int) -> int:
        return self._places.steps(seed, epochs)

    def batch(self, seed: int, step: int) -> Pairs:
        """The pairs of a step; rows that are left over weigh nothing."""
        length, rows = self._places.rows_of(seed, step)
        return pairs_of([self.pairs[row[0]] for row in rows], length, self.rows)


def pairs_of(pairs: Sequence[Pair], length: int, rows: int) -> Pairs:
    """A batch of `rows` rows, the first of them filled."""
    spare = rows - len(pairs)
    if spare < 0:
        raise PastaError(f"{len(pairs)} pairs for {rows} rows; raise rows")

    def side(answers: list[Example]):
        return pack([[answer] for answer in answers] + [[]] * spare, length)

    def column(values: list[float]) -> np.ndarray:
        return np.pad(np.asarray(values, np.float32), (0, spare))

    return Pairs(
        better=side([pair.better for pair in pairs]),
        worse=side([pair.worse for pair in pairs]),
        reference_better=column([pair.reference_better for pair in pairs]),
        reference_worse=column([pair.reference_worse for pair in pairs]),
        weight=column([1.0] * len(pairs)),
    )


def scored(score: Callable, examples: Sequence[Example], lengths: tuple[int, ...], rows: int) -> list[float]:
    """The log-probability of each example: `score(batch)` gives those of a batch's rows. The same rows go together in
    every run, so that a number never depends on what was computed before."""
    if too_long := [len(example) for example in examples if len(example) > lengths[-1]]:
        raise PastaError(
            f"an answer has {max(too_long)} tokens with its prompt, rows have {lengths[-1]}; raise lengths"
        )
    found = [0.0] * len(examples)
    shortest = 0
    for length in lengths:
        own = [number for number, example in enumerate(examples) if shortest < len(example) <= length]
        shortest = length
        for at in range(0, len(own), rows):
            numbers = own[at : at + rows]
            batch = pack([[examples[number]] for number in numbers] + [[]] * (rows - len(numbers)), length)
            for number, value in zip(numbers, np.asarray(score(batch)), strict=False):
                found[number] = float(value)
    return found
