"""What text loses when chunks are hidden from it, by a model: one row with all in view, one that sees as PASTA does.

The model was not trained on tags, so neither row has any: an open chunk stands as the words of its topic, and main
goes on behind them. A token's cost is sqrt(p) * log(p / q) nats, where p is its probability with all in view and q that
of its thread; the root counts less what was anybody's guess. What is in view also tells a model how the items of a list
are phrased, which a fork can do without: in full count only words that the hidden text brings up.
"""

import functools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import Place, visible
from pasta_jax.models import transformer
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.layers import is_stacked
from pasta_jax.models.pool import KV, empty_kv
from pasta_jax.models.weights import Model

BLOCKS = (32, 64, 96, 128, 192, 256)  # tokens that are read at a time: the fewest that hold what is left; each compiled
HEAD_SLICE = 64  # tokens that are weighed at a time
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


NO_CHUNKS = Plan(frozenset(), frozenset())


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
    return hidden_row(pieces, NO_CHUNKS, prompt_ids)


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
    place = Place(chunk, epoch, main)
    see = visible(np.tri(len(token), dtype=bool), place.queries(), place.keys())
    see &= (topic == 0)[None] | (epoch[None] == epoch[:, None])  # once a chunk is joined, it stands for its topic
    return Row(np.asarray(token, np.int32), position, before, see, piece)


@dataclass(frozen=True, eq=False)
class Reading:
    """A row as a model has read it. A token's keys, values and final hidden state lie in the slot of its index."""

    row: Row
    log_prob: np.ndarray  # float32 [T]: of each token; NaN where nobody asked
    length: int  # tokens that were read: all that lead to a token which was asked for
    kv: KV
    x_SxE: jax.Array


@functools.partial(jax.jit, static_argnames="config", donate_argnames=("kv", "x_SxE"))
def _read_block(params, config: TransformerConfig, kv: KV, x_SxE, at, tokens_T, positions_T, see_TxS, key_positions_S):
    """Keys, values and final hidden states of S slots, with those of a block of tokens put in from slot `at` on."""
    length, slots = see_TxS.shape
    into_T = at + jnp.arange(length)
    prefixes = tuple(slots * quarters // 4 for quarters in (1, 2, 3))
    cache = transformer.Cache(kv, into_T[None], prefixes=prefixes, fill=at + length)
    x_1xTxE, kv = transformer.trunk(
        params, config, tokens_T[None], positions_T[None], see_TxS[None], key_positions_S[None], cache
    )
    return kv, x_SxE.at[into_T].set(x_1xTxE[0], mode="drop")


@functools.partial(jax.jit, static_argnames="config")
def _score(params, config: TransformerConfig, x_SxE, before_N, tokens_N):
    """The log-probability of each token from the output at its index `before`."""
    scores_NxV = transformer.logits(params, config, x_SxE[before_N][None])[0]
    return jnp.take_along_axis(scores_NxV, tokens_N[:, None], axis=-1)[:, 0] - jax.nn.logsumexp(scores_NxV, axis=-1)


def read(model: Model, row: Row, asked: Iterable[int], slots: int, before: Sequence[Reading] = ()) -> Reading:
    """A row, read for the log-probabilities of the pieces asked for.

    It goes on from where it parts from the most similar of those that were read before, into as many slots.
    """
    params, config = model.params, model.config
    log_prob = np.full(len(row.token), np.nan, np.float32)
    length, nearest = max(((_common(row, other), n) for n, other in enumerate(before)), default=(0, None))
    if nearest is None:
        dtype, stacked = params["embed"].dtype, is_stacked(params)
        kept = empty_kv(config, 1, slots, dtype, stacked), jnp.zeros((slots, config.embed), dtype)
    else:
        log_prob[:length] = before[nearest].log_prob[:length]
        kept = jax.tree.map(jnp.copy, (before[nearest].kv, before[nearest].x_SxE))  # blocks are put in in place
    missing = np.flatnonzero(np.isin(row.piece, list(asked)) & np.isnan(log_prob))
    end = int(row.before[missing].max(initial=-1)) + 1
    while length < end:
        size = next((size for size in BLOCKS if size >= end - length), BLOCKS[-1])
        block = slice(length, min(length + size, end))
        token, position = (_padded(values[block], size) for values in (row.token, row.position))
        see, key_positions = _padded(row.see[block], size, slots), _padded(row.position, slots)
        kept = _read_block(params, config, *kept, length, token, position, see, key_positions)
        length = block.stop
    for first in range(0, len(missing), HEAD_SLICE):
        some = missing[first : first + HEAD_SLICE]
        index, token = (_padded(values[some], HEAD_SLICE) for values in (row.before, row.token))
        log_prob[some] = np.asarray(_score(params, config, kept[1], index, token))[: len(some)]
    return Reading(row, log_prob, length, *kept)


def _padded(values: np.ndarray, *shape: int) -> np.ndarray:
    return np.pad(values, [(0, size - have) for size, have in zip(shape, values.shape, strict=True)])


def slots_for(row: Row, lengths: Sequence[int]) -> int:
    """The least of `lengths` that holds a row."""
    length = next((n for n in lengths if n >= len(row.token)), None)
    if length is None:
        raise PastaError(f"the answer takes {len(row.token)} ids to weigh, over {lengths[-1]}; leave it out")
    return length


def _common(a: Row, reading: Reading) -> int:
    """How many tokens that were read a row begins with, which see the same."""
    b, most = reading.row, min(len(a.token), reading.length)
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
    pieces: Sequence[Piece], plan: Plan, readings: tuple[Reading, Reading], known: frozenset[str]
) -> list[np.ndarray]:
    """Nats of each token, a list by piece, from the readings of the full row and of the hidden one.

    Main's first token behind an open chunk is free: one row sees the chunk's last word before it, the other its topic.
    """
    by_piece, behind_chunk = [], False
    for n in range(len(pieces)):
        p, q = (reading.log_prob[reading.row.piece == n] for reading in readings)
        cost = np.exp(p / 2) * (p - q) * weights(pieces, plan, n, known)
        if behind_chunk and n not in plan.open:
            cost[:1] = 0
        behind_chunk = n in plan.open
        by_piece.append(cost)
    return by_piece


def worst(cost: np.ndarray, window: int) -> float:
    """Nats a token over the costliest `window` tokens in a row; what is missing of a short passage counts as free."""
    return float(max(np.convolve(cost, np.ones(window)).max() / window, 0.0)) if len(cost) else 0.0
