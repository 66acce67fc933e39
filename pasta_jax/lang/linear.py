"""The grammar of linear ids: locate the blocks and joins of a response, or the id that violates it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from pasta_jax.lang.error import LangError
from pasta_jax.lang.tags import TagIds


@dataclass(frozen=True)
class Block:
    """A promise and its chunk: [PROMISE] at `promise`, [/PROMISE:n] at `close`, the block in ids[start:stop]."""

    promise: int
    close: int
    start: int
    stop: int
    tens: int

    @property
    def length(self) -> int:
        """Ids of the block, including [ASYNC] and [/ASYNC]."""
        return self.stop - self.start


@dataclass(frozen=True)
class Join:
    """A [SYNC]."""

    at: int


def as_ids(ids: ArrayLike) -> np.ndarray:
    """A sequence of ids as int32 [T]."""
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise LangError("ids must be a sequence of integers", f"this is {array.dtype} of shape {array.shape}")
    return array.astype(np.int32)


def scan(ids: np.ndarray, tags: TagIds, prompt_length: int = 0) -> list[Block | Join]:
    """The blocks and joins of the response ids[prompt_length:], in order. Tag ids in the prompt have no meaning."""
    if not 0 <= prompt_length <= len(ids):
        raise LangError(
            "the prompt must be a part of the ids", f"pass a prompt length from 0 to {len(ids)}, not {prompt_length}"
        )
    places = np.flatnonzero(tags.is_tag(ids[prompt_length:])) + prompt_length
    tagged = iter(zip(places.tolist(), ids[places].tolist(), strict=True))
    nothing = (None, tags.end)
    marks: list[Block | Join] = []
    for at, id in tagged:
        if id == tags.sync:
            marks.append(Join(at))
            continue
        if id != tags.promise:
            raise _error(at, "main holds no tag id but [PROMISE] and [SYNC]", f"drop this {tags.name(id)}")
        close, closing = next(tagged, nothing)
        if close is None:
            raise _error(at, "a promise must be closed", "end the one opened here with [/PROMISE:n] and its block")
        if not tags.is_close(closing):
            raise _error(close, "a topic holds no tag id", f"put [/PROMISE:n] before this {tags.name(closing)}")
        start, opening = next(tagged, nothing)
        if start != close + 1 or opening != tags.async_:
            place = min(close + 1, len(ids) - 1)
            raise _error(place, "a block must directly follow its promise", f"put [ASYNC] after id {close}")
        last, ending = next(tagged, nothing)
        if last is None:
            raise _error(start, "a block must be closed", "end the one opened here with [/ASYNC]")
        if ending != tags.end_async:
            raise _error(last, "a chunk holds no tag id", f"put [/ASYNC] before this {tags.name(ending)}")
        marks.append(Block(at, close, start, last + 1, tags.tens(closing)))
    return marks


def _error(index: int, rule: str, fix: str) -> LangError:
    return LangError(rule, fix, index=index)
