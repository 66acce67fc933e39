"""What text loses when chunks are hidden from it, by a model: one pass with all in view, one that sees as PASTA does.

The model was not trained on tags, so neither pass has any: an open chunk stands as the words of its topic, and main
goes on behind them. A token's cost is sqrt(p) * log(p / q) nats, where p is its probability with all in view and q that
of its thread; the root counts less what was anybody's guess. What is in view also tells a model how the items of a list
are phrased, which a fork can do without: in full count only words that the hidden text brings up.
"""

import functools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import visible
from pasta_jax.models import transformer
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.weights import Model

HEAD_SLICE = 64  # positions whose logits are held at a time
STYLE = 0.1  # what counts of a token that hidden text made likelier without containing its word


@dataclass(frozen=True)
class Piece:
    """A chunk, or a line of main; never cut further, so that its ids stay the same whatever is hidden."""

    text: str
    ids: tuple[int, ...]
    words: tuple[str, ...]  # of each id: the word it is a part of, or ""
    topic: str | None = None  # of a chunk
    stub: tuple[int, ...] = ()  # the topic's ids, as they stand in main while the chunk is open


@dataclass(frozen=True)
class Plan:
    """Which pieces are chunks, and before which pieces they are joined."""

    open: frozenset[int]
    joins: frozenset[int]


@dataclass(frozen=True, eq=False)
class Row:
    """One forward pass over an answer without tags; arrays [T], the prompt first."""

    token: np.ndarray  # int32
    position: np.ndarray  # int32
    before: np.ndarray  # int32: the index whose output predicts this token
    see: np.ndarray  # bool [T, T]
    piece: np.ndarray  # int32: index of its piece; -1 for the prompt and for topics


def hidden_from(plan: Plan, n: int) -> list[int]:
    """The chunks before piece n that are still open there."""
    joined = max((at for at in plan.joins if at <= n), default=0)
    return sorted(chunk for chunk in plan.open if joined <= chunk < n)


def words_of(text: str, ids: Sequence[int], tokenizer) -> tuple[str, ...]:
    """The word that each id is a part of, in small letters; "" for signs and blanks."""
    ends = np.cumsum([len(tokenizer.piece(id)) for id in ids])
    at_byte = [""] * (int(ends[-1]) if len(ids) else 0)
    for word in re.finditer(r"\w+", text):
        start, size = len(text[: word.start()].encode()), len(word[0].encode())
        at_byte[start : start + size] = [word[0].lower()] * size
    # Its last byte's: a piece begins with the blank before its word.
    return tuple(at_byte[end - 1] if end else "" for end in ends)


def full_row(pieces: Sequence[Piece], prompt_ids: Sequence[int]) -> Row:
    """Everything in order and in view, as a model without tags has learnt to read."""
    return hidden_row(pieces, Plan(frozenset(), frozenset()), prompt_ids)


def hidden_row(pieces: Sequence[Piece], plan: Plan, prompt_ids: Sequence[int]) -> Row:
    """What each thread sees, written as plain text: an open chunk is its topic, in words, until it is joined.

    Main goes on right behind the topic, so that to the model the chunk was never there.
    """
    token: list[int] = []
    columns: list[tuple[int, ...]] = []  # position, before, piece, chunk, epoch, main, topic of each token
    spoken = joins = highest = 0

    def put(ids: Sequence[int], first: int, before: int, piece: int, chunk: int, topic: int) -> None:
        nonlocal spoken, highest
        for at, id in enumerate(ids):
            spoken += chunk == 0
            columns.append((first + at, len(token) - 1 if at else before, piece, chunk, joins, spoken, topic))
            token.append(id)
        highest = max(highest, first + len(ids))

    put(prompt_ids, 0, 0, -1, 0, 0)
    following, last = len(token), len(token) - 1  # main's next position, and the index of its latest token
    for n, piece in enumerate(pieces):
        if n in plan.joins:
            joins, following = joins + 1, highest
        if n not in plan.open:
            put(piece.ids, following, last, n, 0, 0)
            following, last = following + len(piece.ids), len(token) - 1
            continue
        # The chunk first: it doesn't read its own topic, and both rows begin alike up to the end of the first chunk.
        put(piece.ids, following, last, n, n + 1, 0)
        put(piece.stub, following, last, -1, 0, n + 1)
        following, last = following + len(piece.stub), len(token) - 1 if piece.stub else last
    position, before, piece, chunk, epoch, main, topic = np.asarray(columns, np.int32).T
    q, k = [vector[:, None] for vector in (chunk, epoch, main)], [vector[None] for vector in (chunk, epoch, main)]
    see = visible(np.tri(len(token), dtype=bool), *q, *k)
    see &= (topic == 0)[None] | (epoch[None] == epoch[:, None])  # once a chunk is joined, it stands for its topic
    return Row(np.asarray(token, np.int32), position, before, see, piece)


@functools.partial(jax.jit, static_argnames="config")
def _log_probs(params, config: TransformerConfig, tokens_BxT, positions_BxT, before_BxT, see_BxTxT):
    """Log-probability of each token [B, T] from the output at the index `before`."""
    length = tokens_BxT.shape[1]
    x_BxTxE, _ = transformer.trunk(params, config, tokens_BxT, positions_BxT, see_BxTxT, positions_BxT)
    x_BxTxE = jnp.take_along_axis(x_BxTxE, before_BxT[..., None], axis=1)

    def one_slice(at):
        x = lax.dynamic_slice_in_dim(x_BxTxE, at, HEAD_SLICE, axis=1)
        token = lax.dynamic_slice_in_dim(tokens_BxT, at, HEAD_SLICE, axis=1)
        scores = transformer.logits(params, config, x)
        return jnp.take_along_axis(scores, token[..., None], axis=-1)[..., 0] - jax.nn.logsumexp(scores, axis=-1)

    slices_SxBxN = lax.map(one_slice, jnp.arange(0, length, HEAD_SLICE))
    return jnp.moveaxis(slices_SxBxN, 0, 1).reshape(tokens_BxT.shape)


def log_probs(model: Model, rows: Sequence[Row], lengths: Sequence[int]) -> list[np.ndarray]:
    """The log-probability of each token of each row; one pass, padded to one of `lengths`.

    The rows lie behind each other, blind to each other but for what they begin with in common, which is computed once.
    """
    first, *others = rows
    shared = [0, *(_common(first, row) for row in others)]
    starts = np.cumsum([0, *(len(row.token) - own for row, own in zip(rows, shared, strict=True))])
    total = int(starts[-1])
    length = next((n for n in lengths if n >= total), None)
    if length is None:
        raise PastaError(f"the answer takes {total} ids to weigh, over {lengths[-1]}; leave it out")
    fields = np.zeros((3, 1, length), np.int32)
    see = np.eye(length, dtype=bool)  # padding sees itself: a row that sees nothing would average over everything
    places = []
    for row, own, start in zip(rows, shared, starts, strict=False):
        at = np.concatenate([np.arange(own), start + np.arange(len(row.token) - own)])
        fields[:, 0, at] = row.token, row.position, at[row.before]
        see[np.ix_(at, at)] = row.see
        places.append(at)
    found = np.asarray(_log_probs(model.params, model.config, *fields, see[None]))[0]
    return [found[at] for at in places]


def _common(a: Row, b: Row) -> int:
    """How many tokens two rows begin with that are the same and see the same."""
    most = min(len(a.token), len(b.token))
    same = [getattr(a, name)[:most] == getattr(b, name)[:most] for name in ("token", "position", "before")]
    alike = np.all([*same, np.all(a.see[:most, :most] == b.see[:most, :most], axis=1)], axis=0)
    return int(np.argmin(np.append(alike, False)))


def weights(pieces: Sequence[Piece], plan: Plan, n: int, known: frozenset[str]) -> np.ndarray:
    """How much each token of piece n counts: 1 for a word that only hidden text brings up, else STYLE.

    `known` are the question's words. A word of three chunks and more is the phrase of a list, nobody's own.
    """
    hidden = hidden_from(plan, n)
    brought = {word for chunk in hidden for word in pieces[chunk].words}
    seen = {word for m in range(n) if m not in hidden for word in pieces[m].words} | known | {""}
    topics = {word.lower() for chunk in hidden for word in re.findall(r"\w+", pieces[chunk].topic)}
    often = Counter(word for piece in pieces if piece.topic is not None for word in set(piece.words))
    own = {word for word in brought - seen - topics if often[word] < 3}
    return np.asarray([1.0 if word in own else STYLE for word in pieces[n].words])


def costs(
    pieces: Sequence[Piece], plan: Plan, rows: tuple[Row, Row], found: Sequence[np.ndarray], known: frozenset[str]
) -> list[np.ndarray]:
    """Nats of each token, a list by piece, from the log-probabilities `found` of the full row and the hidden one.

    Main's first token behind an open chunk is free: one row sees the chunk's last word before it, the other its topic.
    """
    by_piece, behind_chunk = [], False
    for n in range(len(pieces)):
        p, q = (values[row.piece == n] for row, values in zip(rows, found, strict=True))
        cost = np.exp(p / 2) * (p - q) * weights(pieces, plan, n, known)
        if behind_chunk and n not in plan.open:
            cost[:1] = 0
        behind_chunk = n in plan.open
        by_piece.append(cost)
    return by_piece


def worst(cost: np.ndarray, window: int) -> float:
    """Nats a token over the costliest `window` tokens in a row; what is missing of a short passage counts as free."""
    return float(max(np.convolve(cost, np.ones(window)).max() / window, 0.0)) if len(cost) else 0.0
