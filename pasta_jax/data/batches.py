"""batch(seed, step): a pure function over a set of examples; the same on every host, and after every restart."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from pasta_jax.data.batch import Batch
from pasta_jax.data.example import Example, windows
from pasta_jax.data.packing import fill_rows, pack
from pasta_jax.errors import PastaError

TOO_LONG = ("drop", "split")


@dataclasses.dataclass(frozen=True)
class Layout:
    """The shapes of batches. `rows` counts all hosts together; each host gets an equal share of a batch's rows."""

    lengths: tuple[int, ...]  # tokens of a row; a record goes to the shortest that holds it, and each is compiled once
    rows: int
    packed: bool  # several records to a row, where they fit; False: one
    too_long: str  # what becomes of a record longer than every row: `drop` (and count) or `split` (into windows)

    def __post_init__(self):
        if not self.lengths or list(self.lengths) != sorted(set(self.lengths)) or self.lengths[0] < 2:
            raise PastaError(f"lengths {self.lengths}: give one or more, from 2 up, each longer than the one before")
        if self.rows < 1:
            raise PastaError(f"rows {self.rows}: give 1 or more")
        if self.too_long not in TOO_LONG:
            raise PastaError(f"too_long {self.too_long!r}: choose one of {', '.join(TOO_LONG)}")


@dataclasses.dataclass(frozen=True)
class _Piece:
    """A record, or a window of one: where to find it, and its length."""

    record: int
    window: int  # -1: the whole record
    length: int


class Feed:
    """Examples, cut up once into pieces that fit a row. Holds no state that moves: `batch` depends on its arguments."""

    def __init__(self, examples: Sequence[Example], layout: Layout, host: int = 0, hosts: int = 1):
        if not 0 <= host < hosts:
            raise PastaError(f"host {host} of {hosts}: hosts count from 0")
        if layout.rows % hosts:
            raise PastaError(f"rows {layout.rows}: {hosts} hosts can't share them equally; give a multiple of {hosts}")
        self.examples, self.layout, self.host, self.hosts = examples, layout, host, hosts
        self.pieces, self.dropped = _pieces(examples, layout)
        if not self.pieces:
            raise PastaError(
                f"none of the {len(examples)} records fits into {layout.lengths[-1]} tokens; raise lengths or split"
            )
        self._plan = functools.lru_cache(maxsize=4)(self._plan_of)

    def steps(self, seed: int, epochs: int) -> int:
        """How many batches so many passes over the data make."""
        return sum(len(self._plan(seed, epoch)) for epoch in range(epochs))

    def place(self, seed: int, step: int) -> tuple[int, int]:
        """(epoch, batch in it) of a step. A batch never mixes epochs."""
        if step < 0:
            raise PastaError(f"step {step}: steps count from 0")
        epoch = 0
        while step >= (count := len(self._plan(seed, epoch))):
            step, epoch = step - count, epoch + 1
        return epoch, step

    def rows_of(self, seed: int, step: int) -> tuple[int, list[list[int]]]:
        """(tokens of a row, the numbers of the records in each row) of a step's batch, of all hosts."""
        epoch, number = self.place(seed, step)
        length, rows = self._plan(seed, epoch)[number]
        return length, [[self.pieces[piece].record for piece in row] for row in rows]

    def batch(self, seed: int, step: int) -> Batch:
        """This host's rows of the batch of a step."""
        epoch, number = self.place(seed, step)
        length, rows = self._plan(seed, epoch)[number]
        share = self.layout.rows // self.hosts
        own = rows[self.host * share : (self.host + 1) * share]
        own += [[]] * (share - len(own))
        return pack([[self._example(piece) for piece in row] for row in own], length)

    def _example(self, piece: int) -> Example:
        piece = self.pieces[piece]
        example = self.examples[piece.record]
        return example if piece.window < 0 else windows(example, self.layout.lengths[-1])[piece.window]

    def _plan_of(self, seed: int, epoch: int) -> list[tuple[int, list[list[int]]]]:
        """The batches of an epoch: (length of a row, pieces of each row). Each piece is in exactly one of them."""
        order = np.argsort(_mix(np.arange(len(self.pieces)), seed, 2 * epoch), kind="stable")
        batches = []
        shortest = 0
        for length in self.layout.lengths:
            own = [int(p) for p in order if shortest < self.pieces[p].length <= length]
            shortest = length
            if self.layout.packed:
                filled = fill_rows([self.pieces[p].length for p in own], length)
                rows = [[own[n] for n in row] for row in filled]
            else:
                rows = [[p] for p in own]
            batches += [(length, rows[at : at + self.layout.rows]) for at in range(0, len(rows), self.layout.rows)]
        return [batches[n] for n in np.argsort(_mix(np.arange(len(batches)), seed, 2 * epoch + 1), kind="stable")]


def _pieces(examples: Sequence[Example], layout: Layout) -> tuple[list[_Piece], int]:
    """(what is fed, how many records are not)."""
    longest, pieces, dropped = layout.lengths[-1], [], 0
    lengths = examples.lengths if hasattr(examples, "lengths") else [len(example) for example in examples]
    for record, length in enumerate(lengths):
        if length <= longest:
            pieces.append(_Piece(record, -1, int(length)))
        elif layout.too_long == "split":
            cut = windows(examples[record], longest)
            pieces += [_Piece(record, window, len(piece)) for window, piece in enumerate(cut)]
        else:
            dropped += 1
    return pieces, dropped


def _mix(numbers: np.ndarray, *salts: int) -> np.ndarray:
    """Well-mixed 64-bit keys (SplitMix64). Our own, so that no NumPy release can change an order of training."""
    keys = numbers.astype(np.uint64)
    for salt in (*salts, 0):
        keys = keys + np.uint64((salt * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) % 2**64)
        keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        keys = keys ^ (keys >> np.uint64(31))
    return keys
