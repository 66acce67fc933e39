"""One record as model input: its linear tokens with labels and structure, whole or cut into windows."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import NO_LABEL, Placed, Positions, structure
from pasta_jax.lang.tags import TagIds

VECTORS = ("token", "label", "position", "chunk", "epoch", "main")


@dataclasses.dataclass(frozen=True, eq=False)
class Example(Placed):
    """int32 arrays [T] over the prompt and the linear response; the fields of a Batch, without its rows."""

    token: np.ndarray
    label: np.ndarray
    position: np.ndarray
    chunk: np.ndarray
    epoch: np.ndarray
    main: np.ndarray

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt: up to the one that predicts the first label."""
        return int((self.label != NO_LABEL).argmax()) + 1

    def __len__(self) -> int:
        return len(self.token)

    def cut(self, start: int, stop: int) -> "Example":
        """The tokens from start to stop. Structure is absolute, so visibility among them is unchanged."""
        return Example(*(getattr(self, name)[start:stop] for name in VECTORS))


def encode(
    prompt_ids: Sequence[int],
    response_ids: Sequence[int],
    tags: TagIds,
    end_of_turn: int,
    positions: Positions,
    ended: bool = True,
) -> Example:
    """Encode a prompt and a linear response, both as ids without the end-of-turn, which becomes the last label."""
    if not len(prompt_ids):
        raise PastaError("a record's prompt has no tokens, so nothing predicts its answer's first token; add a prompt")
    ids = np.concatenate([np.asarray(prompt_ids, np.int32), np.asarray(response_ids, np.int32)])
    s = structure(ids, tags, len(prompt_ids), end_of_turn, positions, ended)
    return Example(ids, s.label, s.position, s.chunk, s.epoch, s.main)


def windows(example: Example, length: int) -> list[Example]:
    """A record in windows of at most `length` tokens; each label is trained once, after at least half a window.

    The first window has all its labels. Each later one starts half a window further on, without the labels that the
    one before trained.
    """
    if length < 2:
        raise PastaError(f"windows of {length} tokens: must have at least 2")
    half = length // 2
    pieces = [example.cut(0, length)]
    trained = length
    while trained < len(example):
        start = trained - (length - half)
        piece = example.cut(start, start + length)
        label = piece.label.copy()
        label[: trained - start] = NO_LABEL
        pieces.append(dataclasses.replace(piece, label=label))
        trained = start + length
    return [piece for piece in pieces if (piece.label != NO_LABEL).any()]
