"""One record as the model reads it: its linear tokens with labels and structure, whole or cut into windows."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import NO_LABEL, Positions, structure
from pasta_jax.lang.tags import TagIds

VECTORS = ("token", "label", "position", "chunk", "epoch", "main")


@dataclasses.dataclass(frozen=True, eq=False)
class Example:
    """int32 arrays [T] over the prompt and the linear response; the fields of a Batch without rows."""

    token: np.ndarray
    label: np.ndarray
    position: np.ndarray
    chunk: np.ndarray
    epoch: np.ndarray
    main: np.ndarray

    def __len__(self) -> int:
        return len(self.token)

    def cut(self, start: int, stop: int) -> "Example":
        """The tokens start to stop. Structure is absolute, so who sees whom among them stays as it was."""
        return Example(*(getattr(self, name)[start:stop] for name in VECTORS))


def encode(
    prompt_ids: Sequence[int],
    response_ids: Sequence[int],
    tags: TagIds,
    end_of_turn: int,
    positions: Positions,
    ended: bool = True,
) -> Example:
    """A prompt and a linear response, both as ids, without the end-of-turn, which becomes the last label."""
    if not len(prompt_ids):
        raise PastaError("a record's prompt has no tokens, so nothing could predict its answer's first; give a prompt")
    ids = np.concatenate([np.asarray(prompt_ids, np.int32), np.asarray(response_ids, np.int32)])
    s = structure(ids, tags, len(prompt_ids), end_of_turn, positions, ended)
    return Example(ids, s.label, s.position, s.chunk, s.epoch, s.main)


def windows(example: Example, length: int) -> list[Example]:
    """A record in pieces of at most `length` tokens: each label is learnt once, with at least half a piece before it.

    The first window has all its labels. Each later one begins half a window further on, and what the one before
    has taught is only read.
    """
    if length < 2:
        raise PastaError(f"windows of {length} tokens: they must have at least 2")
    half = length // 2
    pieces = [example.cut(0, length)]
    taught = length
    while taught < len(example):
        start = taught - (length - half)
        piece = example.cut(start, start + length)
        label = piece.label.copy()
        label[: taught - start] = NO_LABEL
        pieces.append(dataclasses.replace(piece, label=label))
        taught = start + length
    return [piece for piece in pieces if (piece.label != NO_LABEL).any()]
