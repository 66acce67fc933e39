"""Chunk, epoch, main count, position and label of every token of a linear program, and the attention mask.

The single definition of the mask and of positions: training batches, preference scores and the interpreter use it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike

from pasta_jax.errors import PastaError
from pasta_jax.lang.error import LangError
from pasta_jax.lang.linear import Block, Join, as_ids, scan
from pasta_jax.lang.tags import TagIds

NO_LABEL = -1
POLICIES = ("predicted", "constant", "oracle", "shared_start")
Distance = Annotated[int, Meta(ge=0, le=2**20)]


@dataclass(frozen=True)
class Positions:
    """How a model's tokens get their position ids: part of the model, since it only knows those it was trained with."""

    policy: str = "predicted"  # one of POLICIES
    constant: Distance = 40  # main's distance under the policy `constant`

    def __post_init__(self):
        if self.policy not in POLICIES:
            raise PastaError(f"unknown position policy {self.policy!r}; choose one of {', '.join(POLICIES)}")
        if self.constant < 0:
            raise PastaError(f"positions.constant {self.constant}: must be at least 0")

    def matches(self, other: "Positions") -> bool:
        """Whether both give all tokens the same positions: `constant` only matters under the policy of that name."""
        return self.policy == other.policy and (self.policy != "constant" or self.constant == other.constant)

    def __str__(self) -> str:
        return f"constant {self.constant}" if self.policy == "constant" else self.policy


PREDICTED = Positions()


class Place(NamedTuple):
    """The place of a token in its program: what attention compares. NumPy arrays, JAX arrays or ints."""

    chunk: ArrayLike  # 0 for the prompt and main, else the number (1, 2, …) of the token's block
    epoch: ArrayLike  # number of [SYNC] at or before the token; a block's tokens: at its promise
    main: ArrayLike  # number of main tokens, prompt included, at or before the token; a block's tokens: at its promise

    def queries(self) -> "Place":
        """Arrays [..., Q] as [..., Q, 1]: the rows of a mask."""
        return Place(*(field[..., :, None] for field in self))

    def keys(self) -> "Place":
        """Arrays [..., K] as [..., 1, K]: the columns of a mask."""
        return Place(*(field[..., None, :] for field in self))


class Placed:
    """What has the three fields of a Place among its own."""

    @property
    def place(self) -> Place:
        """Chunk, epoch and main."""
        return Place(self.chunk, self.epoch, self.main)


@dataclass(frozen=True, eq=False)
class Structure(Placed):
    """int32 arrays [T] over the prompt and the linear response."""

    chunk: np.ndarray  # 0 for the prompt and main, else the number (1, 2, …) of the token's block
    epoch: np.ndarray  # number of [SYNC] at or before the token
    main: np.ndarray  # number of main tokens, prompt included, at or before the token; a block's tokens: at its promise
    position: np.ndarray  # position id, by the policy
    label: np.ndarray  # the token to predict here, or NO_LABEL


def structure(
    ids: Sequence[int] | np.ndarray,
    tags: TagIds,
    prompt_length: int,
    end_of_turn: int,
    positions: Positions = Positions(),
    ended: bool = True,
) -> Structure:
    """The structure of `ids`, a prompt and its linear response; `ended`: whether main reached its end-of-turn."""
    ids = as_ids(ids)
    marks = scan(ids, tags, prompt_length)
    ends = np.flatnonzero(ids[prompt_length:] == end_of_turn)
    if ends.size:
        place = prompt_length + int(ends[0])
        raise LangError("a response has no end-of-turn token", "drop it: it is the last label only", index=place)
    blocks = [mark for mark in marks if isinstance(mark, Block)]
    chunk = np.zeros(len(ids), np.int32)
    for number, block in enumerate(blocks, start=1):
        chunk[block.start : block.stop] = number
    in_main = chunk == 0
    joins = ids == tags.sync
    joins[:prompt_length] = False
    return Structure(
        chunk=chunk,
        epoch=np.cumsum(joins, dtype=np.int32),
        main=np.cumsum(in_main, dtype=np.int32),
        position=_positions(len(ids), marks, prompt_length, positions),
        label=_labels(ids, blocks, np.flatnonzero(in_main), prompt_length, end_of_turn if ended else NO_LABEL),
    )


def fork_position(p: ArrayLike) -> ArrayLike:
    """The position of [ASYNC] if its promise closed at p; the rest of the block follows one by one."""
    return p + 1


def resume_position(p: ArrayLike, tens: ArrayLike, positions: Positions, length: ArrayLike | None = None) -> ArrayLike:
    """The position at which main continues after it closed a promise of `tens` at p. Accepts ints and arrays.

    `length` is the block's true length in ids, which only the policy `oracle` needs.
    """
    match positions.policy:
        case "predicted":
            return p + 1 + 10 * tens
        case "constant":
            return p + 1 + positions.constant
        case "oracle":
            if length is None:
                raise PastaError(
                    "position policy oracle: needs true lengths, which are unknown while decoding; choose another"
                )
            return p + 1 + length
        case "shared_start":
            return fork_position(p)
    raise AssertionError(positions)


def sync_position(p: ArrayLike, highest: ArrayLike, positions: Positions) -> ArrayLike:
    """The position of [SYNC]: main's next position p, or under `shared_start` one after all positions so far.

    `highest` is the greatest position of main and of all chunks before the [SYNC]. Accepts ints and arrays.
    """
    if positions.policy != "shared_start":
        return p
    after = highest + 1
    return p + (after - p) * (after > p)


def visible(present: ArrayLike, query: Place, key: Place) -> ArrayLike:
    """Whether the query token may attend to the key token.

    `present` states whether the key exists for the query at all: in training if it is at or before the query in
    linear order, in the pool if its slot is written. The fields of `query` and `key` broadcast against each other, see
    `Place.queries` and `Place.keys`. Only operators are used, so NumPy arrays, JAX arrays and ints all work.
    """
    in_main_before = (key.chunk == 0) & (key.main <= query.main)
    in_same_chunk = (key.chunk != 0) & (key.chunk == query.chunk)
    joined_before = key.epoch < query.epoch
    return present & (in_main_before | in_same_chunk | joined_before)


def visible_matrix(structure: Structure) -> np.ndarray:
    """bool [T, T] in linear order: row q, column k."""
    present = np.tri(len(structure.chunk), dtype=bool)
    return visible(present, structure.place.queries(), structure.place.keys())


def _positions(length: int, marks: list[Block | Join], prompt_length: int, positions: Positions) -> np.ndarray:
    position = np.arange(length, dtype=np.int32)  # correct for the prompt, and for a response without tags
    done = following = prompt_length  # tokens placed so far, and main's next position
    highest = prompt_length - 1  # of the blocks' positions; main's own are below `following`

    def place_main(stop: int) -> None:
        nonlocal done, following
        position[done:stop] = np.arange(following, following + stop - done)
        done, following = stop, following + stop - done

    for mark in marks:
        if isinstance(mark, Block):
            place_main(mark.start)
            closed_at = following - 1
            first = fork_position(closed_at)
            position[mark.start : mark.stop] = np.arange(first, first + mark.length)
            highest = max(highest, first + mark.length - 1)
            following = resume_position(closed_at, mark.tens, positions, mark.length)
            done = mark.stop
        else:
            place_main(mark.at)
            following = sync_position(following, highest, positions)
    place_main(length)
    return position


def _labels(ids: np.ndarray, blocks: list[Block], main: np.ndarray, prompt_length: int, last: int) -> np.ndarray:
    label = np.full(len(ids), NO_LABEL, np.int32)
    label[main[:-1]] = ids[main[1:]]  # main's next token skips the blocks
    label[main[-1:]] = last
    # There is no loss on the prompt, but its last token predicts the response's first, as in the prefill.
    label[: max(prompt_length - 1, 0)] = NO_LABEL
    for block in blocks:
        label[block.start : block.stop - 1] = ids[block.start + 1 : block.stop]
    return label
