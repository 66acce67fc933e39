"""The input of training and scoring: records packed into rows, as plain arrays with labels and structure."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import jax
import numpy as np

from pasta_jax.data.example import VECTORS, Example
from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import NO_LABEL, Placed, visible

OPEN_ROWS = 64  # rows that still accept records: more would waste less space and take more time


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch(Placed):
    """int32 arrays [B, T]; a batch row holds one or more records, one after another, then padding."""

    token: np.ndarray  # 0 in padding
    label: np.ndarray  # the token to predict here; NO_LABEL (-1) where there is no loss
    position: np.ndarray
    chunk: np.ndarray  # chunk, epoch and main as in lang/structure.py, counted separately for each record
    epoch: np.ndarray
    main: np.ndarray
    record: np.ndarray  # 1, 2, …: the record's number in its batch row; 0: padding


def fill_rows(lengths: Iterable[int], room: int) -> list[list[int]]:
    """The numbers of the records in each row: in order, each goes to the fullest open row that has room for it."""
    rows: list[list[int]] = []
    left: dict[int, int] = {}  # room left in the open rows
    for number, length in enumerate(lengths):
        fitting = [row for row, free in left.items() if free >= length]
        if fitting:
            row = min(fitting, key=left.__getitem__)
        else:
            if length > room:
                raise PastaError(f"record {number} has {length} tokens, a row {room}; drop or split it first")
            row = len(rows)
            rows.append([])
            left[row] = room
        rows[row].append(number)
        left[row] -= length
        if left[row] == 0 or len(left) > OPEN_ROWS:
            del left[min(left, key=left.__getitem__)]
    return rows


def pack(rows: Sequence[Sequence[Example]], length: int) -> Batch:
    """A batch of len(rows) rows, each with its examples one after another; an empty row is all padding."""
    shape = (len(rows), length)
    fields = {name: np.full(shape, NO_LABEL if name == "label" else 0, np.int32) for name in VECTORS}
    record = np.zeros(shape, np.int32)
    for row, examples in enumerate(rows):
        start = 0
        for number, example in enumerate(examples, start=1):
            stop = start + len(example)
            if stop > length:
                raise PastaError(f"row {row}: its {len(examples)} records need more than its {length} tokens")
            for name in VECTORS:
                fields[name][row, start:stop] = getattr(example, name)
            record[row, start:stop] = number
            start = stop
    return Batch(**fields, record=record)


def by_length(counts: Sequence[int], lengths: Sequence[int], rows: int) -> Iterator[tuple[list[int], int]]:
    """The numbers of examples that share a batch, the shortest first, and the next of `lengths` for the longest."""
    order = sorted(range(len(counts)), key=counts.__getitem__)
    for start in range(0, len(order), rows):
        some = order[start : start + rows]
        yield some, next(length for length in lengths if length >= counts[some[-1]])


def mask(batch: Batch) -> np.ndarray | jax.Array:
    """The attention mask, bool [B, T, T], in its dense form; records never see each other."""
    same_record = batch.record[:, :, None] == batch.record[:, None, :]
    present = same_record & np.tri(batch.token.shape[1], dtype=bool)[None]
    return visible(present, batch.place.queries(), batch.place.keys())
