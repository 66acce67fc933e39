"""What hiding chunks costs later text, measured by a model: a row with everything visible against PASTA's visibility.

The model was not trained on tags, so neither row has any: an open chunk is represented by the words of its topic, and
main continues after them. A token's cost is sqrt(p) * log(p / q) nats, where p is its probability with everything
visible and q that in its thread; the root discounts tokens that are hard to predict anyway. Visible text also tells a
model how the items of a list are phrased, which a fork can do without: only words that the hidden text introduces count
in full.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import Place, visible
from pasta_jax.lang.words import SINGLE, single_words
from pasta_jax.models import transformer
from pasta_jax.models.attention import Cache
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.parameters import is_stacked
from pasta_jax.models.pool import KV, empty_kv
from pasta_jax.tokenizers.tokenizer import Tokenizer
from pasta_jax.weights.model import Model

BLOCKS = (32, 64, 96, 128, 192, 256)  # tokens per forward pass: the fewest that hold the rest; each one compiles
HEAD_SLICE = 64  # tokens whose logits exist at a time
STYLE = 0.1  # weight of a token that hidden text made more likely without containing its word


@dataclass(frozen=True)
class Piece:
    """A chunk, or a line of main; never split, so that its ids stay the same whatever is hidden."""

    text: str
    ids: tuple[int, ...]
    words: tuple[str, ...]  # for each id, the word it belongs to, or ""
    topic: str | None = None  # of a chunk
    stub: tuple[int, ...] = ()  # the topic's ids, as they stand in main while the chunk is open


@dataclass(frozen=True)
class ForkPlan:
    """Which pieces are chunks, and before which pieces a sync joins them."""

    chunks: frozenset[int]
    joins: frozenset[int]


NO_CHUNKS = ForkPlan(frozenset(), frozenset())


@dataclass(frozen=True, eq=False)
class Row:
    """One forward pass over an answer without tags; arrays [T], the prompt first."""

    token: np.ndarray  # int32
    position: np.ndarray  # int32
    before: np.ndarray  # int32: index whose output predicts this token
    mask: np.ndarray  # bool [T, T]
    piece: np.ndarray  # int32: index of its piece; -1 for the prompt and topics


def hidden_from(plan: ForkPlan, n: int) -> list[int]:
    """The chunks before piece n that are still open there."""
    joined = max((at for at in plan.joins if at <= n), default=0)
    return sorted(chunk for chunk in plan.chunks if joined <= chunk < n)


def words_of(text: str, ids: Sequence[int], tokenizer: Tokenizer) -> tuple[str, ...]:
    """The word that each id belongs to, in lower case; "" for punctuation and whitespace."""
    ends = np.cumsum([len(tokenizer.piece(id)) for id in ids])
    at_byte = [""] * (int(ends[-1]) if len(ids) else 0)
    for word in SINGLE.finditer(text):
        start, size = len(text[: word.start()].encode()), len(word[0].encode())
        at_byte[start : start + size] = [word[0].lower()] * size
    # That of its last byte: a piece begins with the space before its word.
    return tuple(at_byte[end - 1] if end else "" for end in ends)


def full_row(pieces: Sequence[Piece], prompt_ids: Sequence[int]) -> Row:
    """The plain text, everything visible, as the model was trained to read it."""
    return hidden_row(pieces, NO_CHUNKS, prompt_ids)


def hidden_row(pieces: Sequence[Piece], plan: ForkPlan, prompt_ids: Sequence[int]) -> Row:
    """The text as each thread sees it, without tags: an open chunk is represented by its topic's words until joined.

    Main continues right after the topic, as if the chunk did not exist.
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
    following, last = len(token), len(token) - 1  # main's next position, and the index of its last token
    for n, piece in enumerate(pieces):
        if n in plan.joins:
            joins, following = joins + 1, highest
        if n not in plan.chunks:
            put(piece.ids, following, last, n, 0, 0)
            following, last = following + len(piece.ids), len(token) - 1
            continue
        # The chunk comes first: it doesn't see its own topic, and both rows agree up to the end of the first chunk.
        put(piece.ids, following, last, n, n + 1, 0)
        put(piece.stub, following, last, -1, 0, n + 1)
        following, last = following + len(piece.stub), len(token) - 1 if piece.stub else last
    position, before, piece, chunk, epoch, main, topic = np.asarray(columns, np.int32).T
    place = Place(chunk, epoch, main)
    mask = visible(np.tri(len(token), dtype=bool), place.queries(), place.keys())
    mask &= (topic == 0)[None] | (epoch[None] == epoch[:, None])  # once joined, the chunk replaces its topic
    return Row(np.asarray(token, np.int32), position, before, mask, piece)


@dataclass(frozen=True, eq=False)
class ScoredRow:
    """A row after a model's forward pass. Slot t holds the keys, values and final hidden state of token t."""

    row: Row
    log_prob: np.ndarray  # float32 [T]: of each token; NaN where not requested
    length: int  # tokens computed: the prefix that requested tokens depend on
    kv: KV
    x_SxE: jax.Array


@functools.partial(jax.jit, static_argnames="config", donate_argnames=("kv", "x_SxE"))
def _forward_block(
    params, config: TransformerConfig, kv: KV, x_SxE, at, tokens_T, positions_T, mask_TxS, key_positions_S
) -> tuple[KV, jax.Array]:
    """Keys, values and final hidden states of S slots, with those of a block of tokens written from slot `at` on."""
    length, slots = mask_TxS.shape
    into_T = at + jnp.arange(length)
    prefixes = tuple(slots * quarters // 4 for quarters in (1, 2, 3))
    cache = Cache(kv, into_T[None], prefixes=prefixes, fill=at + length)
    x_1xTxE, kv = transformer.trunk(
        params, config, tokens_T[None], positions_T[None], mask_TxS[None], key_positions_S[None], cache
    )
    return kv, x_SxE.at[into_T].set(x_1xTxE[0], mode="drop")


@functools.partial(jax.jit, static_argnames="config")
def _log_probs(params, config: TransformerConfig, x_SxE, before_N, tokens_N) -> jax.Array:
    """The log-probability of each token from the output at its index `before`."""
    scores_NxV = transformer.logits(params, config, x_SxE[before_N][None])[0]
    return jnp.take_along_axis(scores_NxV, tokens_N[:, None], axis=-1)[:, 0] - jax.nn.logsumexp(scores_NxV, axis=-1)


def score(model: Model, row: Row, pieces: Iterable[int], slots: int, earlier: Sequence[ScoredRow] = ()) -> ScoredRow:
    """The log-probabilities of a row's tokens in `pieces`.

    Computation starts where the row parts from the most similar of the `earlier` ones, which have the same `slots`.
    """
    params, config = model.params, model.config
    log_prob = np.full(len(row.token), np.nan, np.float32)
    length, nearest = max(((_shared_prefix(row, other), n) for n, other in enumerate(earlier)), default=(0, None))
    if nearest is None:
        dtype, stacked = params["embed"].dtype, is_stacked(params)
        state = empty_kv(config, 1, slots, dtype, stacked), jnp.zeros((slots, config.embed), dtype)
    else:
        log_prob[:length] = earlier[nearest].log_prob[:length]
        state = jax.tree.map(jnp.copy, (earlier[nearest].kv, earlier[nearest].x_SxE))  # blocks are written in place
    missing = np.flatnonzero(np.isin(row.piece, list(pieces)) & np.isnan(log_prob))
    end = int(row.before[missing].max(initial=-1)) + 1
    while length < end:
        size = next((size for size in BLOCKS if size >= end - length), BLOCKS[-1])
        block = slice(length, min(length + size, end))
        token, position = (_padded(values[block], size) for values in (row.token, row.position))
        mask, key_positions = _padded(row.mask[block], size, slots), _padded(row.position, slots)
        state = _forward_block(params, config, *state, length, token, position, mask, key_positions)
        length = block.stop
    for first in range(0, len(missing), HEAD_SLICE):
        part = missing[first : first + HEAD_SLICE]
        index, token = (_padded(values[part], HEAD_SLICE) for values in (row.before, row.token))
        log_prob[part] = np.asarray(_log_probs(params, config, state[1], index, token))[: len(part)]
    return ScoredRow(row, log_prob, length, *state)


def _padded(values: np.ndarray, *shape: int) -> np.ndarray:
    return np.pad(values, [(0, size - have) for size, have in zip(shape, values.shape, strict=True)])


def slots_for(row: Row, lengths: Sequence[int]) -> int:
    """The least of `lengths` that holds a row."""
    length = next((n for n in lengths if n >= len(row.token)), None)
    if length is None:
        raise PastaError(f"an answer takes {len(row.token)} ids to weigh, over {lengths[-1]}; raise lengths")
    return length


def _shared_prefix(row: Row, scored: ScoredRow) -> int:
    """The number of leading tokens that both rows share, visible tokens included, and that were computed."""
    other, most = scored.row, min(len(row.token), scored.length)
    same = [getattr(row, name)[:most] == getattr(other, name)[:most] for name in ("token", "position", "before")]
    equal = np.all([*same, np.all(row.mask[:most, :most] == other.mask[:most, :most], axis=1)], axis=0)
    return int(np.argmin(np.append(equal, False)))


def weights(pieces: Sequence[Piece], plan: ForkPlan, n: int, known: frozenset[str]) -> np.ndarray:
    """The weight of each token of piece n: 1 for a word that only hidden text introduces, else STYLE.

    `known` holds the question's words. A word of three or more chunks is a recurring phrase and belongs to none.
    """
    hidden = hidden_from(plan, n)
    introduced = {word for chunk in hidden for word in pieces[chunk].words}
    seen = {word for m in range(n) if m not in hidden for word in pieces[m].words} | known | {""}
    topics = {word.lower() for chunk in hidden for word in single_words(pieces[chunk].topic)}
    counts = Counter(word for piece in pieces if piece.topic is not None for word in set(piece.words))
    only_hidden = {word for word in introduced - seen - topics if counts[word] < 3}
    return np.asarray([1.0 if word in only_hidden else STYLE for word in pieces[n].words])


def costs(
    pieces: Sequence[Piece],
    plan: ForkPlan,
    rows: tuple[ScoredRow, ScoredRow],
    known: frozenset[str],
    last: int | None = None,
) -> list[np.ndarray]:
    """Nats of each token, one array per piece up to the last that rows hold, from the full row and the hidden one.

    Main's first token after an open chunk is free: one row predicts it from the chunk's last word, the other from the
    topic.
    """
    by_piece, after_chunk = [], False
    for n in range(len(pieces) if last is None else last + 1):
        p, q = (scored.log_prob[scored.row.piece == n] for scored in rows)
        cost = np.exp(p / 2) * (p - q) * weights(pieces, plan, n, known)
        if after_chunk and n not in plan.chunks:
            cost[:1] = 0
        after_chunk = n in plan.chunks
        by_piece.append(cost)
    return by_piece


def worst_window(cost: np.ndarray, window: int) -> float:
    """Nats per token of the most expensive `window` consecutive tokens; a shorter passage is padded with free ones."""
    return float(max(np.convolve(cost, np.ones(window)).max() / window, 0.0)) if len(cost) else 0.0
