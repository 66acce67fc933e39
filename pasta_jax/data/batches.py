"""Training batches as a pure function of (seed, step): the same on every host and after every restart."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Literal

import numpy as np

from pasta_jax.data.example import Example, windows
from pasta_jax.data.packing import Batch, fill_rows, pack
from pasta_jax.errors import PastaError

MOST_TOKENS = 2**24  # of a batch


@dataclasses.dataclass(frozen=True)
class Layout:
    """The shapes of batches. Each host gets an equal share of the rows."""

    lengths: tuple[int, ...]  # tokens per row; a record goes to the shortest that holds it, and each one compiles
    rows: int  # of all hosts together
    packed: bool  # several records per row where they fit; False: one
    too_long: Literal["drop", "split"]  # drop and count a record longer than every row, or cut it into windows

    def __post_init__(self) -> None:
        if not self.lengths or list(self.lengths) != sorted(set(self.lengths)) or self.lengths[0] < 2:
            raise PastaError(f"lengths {self.lengths}: must be one or more ascending numbers from 2 up")
        if self.rows * self.lengths[-1] > MOST_TOKENS:
            raise PastaError(f"{self.rows} rows of {self.lengths[-1]} tokens: more than {MOST_TOKENS:,}; lower either")


@dataclasses.dataclass(frozen=True)
class _Piece:
    """A record, or a window of one."""

    record: int  # its number
    window: int  # -1: the whole record
    length: int  # tokens


class Feed:
    """Examples cut into pieces that fit a row, and batches of those; `batch` depends on its arguments alone."""

    def __init__(
        self, examples: Sequence[Example], layout: Layout, host: int = 0, hosts: int = 1, name: str = "records"
    ):
        if not 0 <= host < hosts:
            raise PastaError(f"host {host} of {hosts}: hosts are numbered from 0")
        if layout.rows % hosts:
            raise PastaError(f"rows {layout.rows}: {hosts} hosts need equal shares; choose a multiple of {hosts}")
        self.examples, self.layout, self.host, self.hosts = examples, layout, host, hosts
        self.pieces, self.dropped = _pieces(examples, layout)
        if not self.pieces:
            longest = layout.lengths[-1]
            raise PastaError(f"none of {len(examples)} {name} fits into {longest} tokens; raise lengths or split them")
        self._epoch = functools.lru_cache(maxsize=2)(self._batches_of_epoch)  # the order of one epoch is large
        self._count = functools.cache(lambda seed, epoch: len(self._epoch(seed, epoch)))

    def steps(self, seed: int, epochs: int) -> int:
        """The number of batches in a number of passes over the data."""
        return sum(self._count(seed, epoch) for epoch in range(epochs))

    def locate(self, seed: int, step: int) -> tuple[int, int]:
        """(epoch, number of the batch in it) of a step. A batch never mixes epochs."""
        if step < 0:
            raise PastaError(f"step {step}: steps are numbered from 0")
        epoch = 0
        while step >= (count := self._count(seed, epoch)):
            step, epoch = step - count, epoch + 1
        return epoch, step

    def rows_of(self, seed: int, step: int) -> tuple[int, list[list[int]]]:
        """(tokens per row, numbers of the pieces in each of this host's rows) of a step's batch; the last may lack."""
        epoch, number = self.locate(seed, step)
        length, rows = self._epoch(seed, epoch)[number]
        share = self.layout.rows // self.hosts
        return length, rows[self.host * share : (self.host + 1) * share]

    def batch(self, seed: int, step: int) -> Batch:
        """This host's rows of a step's batch."""
        length, rows = self.rows_of(seed, step)
        rows = [*rows, *[[]] * (self.layout.rows // self.hosts - len(rows))]
        return pack([[self._example(piece) for piece in row] for row in rows], length)

    def _example(self, number: int) -> Example:
        piece = self.pieces[number]
        example = self.examples[piece.record]
        return example if piece.window < 0 else windows(example, self.layout.lengths[-1])[piece.window]

    def _batches_of_epoch(self, seed: int, epoch: int) -> list[tuple[int, list[list[int]]]]:
        """(tokens per row, pieces of each row) of each batch of an epoch. Each piece is in exactly one batch."""
        order = np.argsort(_mix(np.arange(len(self.pieces)), seed, 2 * epoch), kind="stable")
        batches = []
        shortest = 0
        for length in self.layout.lengths:
            pieces = [int(p) for p in order if shortest < self.pieces[p].length <= length]
            shortest = length
            if self.layout.packed:
                rows = [[pieces[n] for n in row] for row in fill_rows([self.pieces[p].length for p in pieces], length)]
            else:
                rows = [[p] for p in pieces]
            batches += [(length, rows[at : at + self.layout.rows]) for at in range(0, len(rows), self.layout.rows)]
        return [batches[n] for n in np.argsort(_mix(np.arange(len(batches)), seed, 2 * epoch + 1), kind="stable")]


def _pieces(examples: Sequence[Example], layout: Layout) -> tuple[list[_Piece], int]:
    """(pieces, number of records dropped)"""
    longest, pieces, dropped = layout.lengths[-1], [], 0
    lengths = examples.lengths if hasattr(examples, "lengths") else [len(example) for example in examples]
    for record, length in enumerate(lengths):
        if length <= longest:
            pieces.append(_Piece(record, -1, int(length)))
        elif layout.too_long == "split":
            parts = windows(examples[record], longest)
            pieces += [_Piece(record, window, len(part)) for window, part in enumerate(parts)]
        else:
            dropped += 1
    return pieces, dropped


def _mix(numbers: np.ndarray, *salts: int) -> np.ndarray:
    """Well-mixed 64-bit keys (SplitMix64), implemented here so that no NumPy release can change a training order."""
    keys = numbers.astype(np.uint64)
    for salt in (*salts, 0):
        keys = keys + np.uint64((salt * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) % 2**64)
        keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        keys = keys ^ (keys >> np.uint64(31))
    return keys
