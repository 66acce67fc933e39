"""The oracle's choice of a token: which ids are legal, then a draw by plain sorting, for one thread at a time."""

import dataclasses
import itertools
import unicodedata
from collections import Counter
from collections.abc import Sequence

import jax
import numpy as np

from pasta_jax.decode.request import Request
from pasta_jax.lang.tags import MAX_TENS, TagIds
from pasta_jax.tokenizers.tokenizer import Tokenizer
from pasta_jax.weights.rules import Rules


@dataclasses.dataclass
class Tape:
    """All fed tokens in slot order, the prompt first; `sees[q, k]` states whether slot q may read slot k."""

    sees: np.ndarray  # bool [limit, limit]
    token: list[int] = dataclasses.field(default_factory=list)
    thread: list[int] = dataclasses.field(default_factory=list)
    step: list[int] = dataclasses.field(default_factory=list)
    position: list[int] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.token)

    def feed(self, token: int, thread: int, step: int, position: int) -> int:
        """Append a token; returns its slot."""
        self.token.append(token)
        self.thread.append(thread)
        self.step.append(step)
        self.position.append(position)
        return len(self) - 1


@dataclasses.dataclass(frozen=True)
class Query:
    """A thread's query for its next token, predicted at `slot`. `place` determines which ids are legal; see `legal`."""

    slot: int
    thread: int
    number: int  # of the token in its thread, from 0
    place: str  # main, topic, full topic, chunk, full chunk
    topics: tuple[tuple[int, ...], ...] = ()  # in a topic: the tokens of it, last, and of those before it


def choose(logits_SxV: np.ndarray, tape: Tape, query: Query, request: Request, tokenizer: Tokenizer) -> int:
    """The token that answers a query; `logits` are of all slots of the tape."""
    allowed_V = legal(query, request, tokenizer, logits_SxV.shape[1])
    logits_V = penalized(logits_SxV[query.slot], tape, query, request.rules, tokenizer.tags)
    if query.place == "main":
        logits_V[tokenizer.tags.promise] += np.float32(request.rules.fork_bias)
    logits_V = moved(logits_V, query, request, tokenizer)
    return pick(logits_V, allowed_V, request.rules, query.thread, query.number)


def penalized(logits_V: np.ndarray, tape: Tape, query: Query, rules: Rules, tags: TagIds) -> np.ndarray:
    """Lower logits of the ids that the query's thread may read, apart from tags."""
    logits_V, by = logits_V.copy(), np.float32(rules.repetition_penalty)
    read = itertools.compress(zip(tape.token, tape.step, strict=True), tape.sees[query.slot])
    read = [(id, step) for id, step in read if not tags.is_tag(id)]
    for id in {id for id, _ in read}:
        logits_V[id] = logits_V[id] * by if logits_V[id] < 0 else logits_V[id] / by
    for id, count in Counter(id for id, step in read if step > 0).items():
        logits_V[id] -= np.float32(rules.frequency_penalty) * np.float32(count) + np.float32(rules.presence_penalty)
    return np.maximum(logits_V, np.float32(-1e29))


def legal(query: Query, request: Request, tokenizer: Tokenizer, vocab: int) -> np.ndarray:
    """bool [vocab]: which ids may be sampled."""
    tags = tokenizer.tags
    forks = [] if request.sequential else [tags.promise, *([tags.sync] if request.syncs else [])]
    text = np.zeros(vocab, bool)
    text[: tokenizer.vocab_size] = True
    text[tags.base : tags.end] = False
    text[list(tokenizer.stop_ids)] = False
    closes, nothing = [tags.close(tens) for tens in range(1, MAX_TENS + 1)], np.zeros(vocab, bool)
    match query.place:
        case "main":
            allowed, also = text, [*tokenizer.stop_ids, *forks]
        case "topic":
            for id in np.flatnonzero(text):
                text[id] = not breaks_topic_rules(int(id), query.topics, request, tokenizer)
            allowed, also = text, closes
        case "full topic":
            allowed, also = nothing, closes
        case "chunk":
            allowed, also = text, [tags.end_async]
        case "full chunk":
            allowed, also = nothing, [tags.end_async]
    allowed[also] = True
    return allowed


def breaks_topic_rules(id: int, topics: tuple[tuple[int, ...], ...], request: Request, tokenizer: Tokenizer) -> bool:
    """Whether a text id may not continue the last of these topics: see topics.py."""
    *earlier, topic = topics
    if exceeds_words(id, topic, request, tokenizer):
        return True
    if not request.rules.distinct_topics:
        return False
    added = spelled([id], tokenizer)
    return bool(added) and spelled([*topic, id], tokenizer) in [spelled(other, tokenizer) for other in earlier]


def exceeds_words(id: int, topic: tuple[int, ...], request: Request, tokenizer: Tokenizer) -> bool:
    """Whether a text id may not continue a topic because of the limit on words, which are also to be in one line."""
    if not request.rules.max_topic_words:
        return False
    piece, before = tokenizer.decode([id]), text_of(topic, tokenizer)
    several = not piece or {"\n", "\r"} & set(piece) or len(piece.split()) > 1
    if several or len((before + piece).split()) > request.rules.max_topic_words:
        return True
    return len(before.split()) == request.rules.max_topic_words and piece[0].isspace()


def text_of(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """The texts of ids, each decoded by itself."""
    return "".join(tokenizer.decode([id]) for id in ids)


def moved(logits_V: np.ndarray, query: Query, request: Request, tokenizer: Tokenizer) -> np.ndarray:
    """In the last word of a topic, the probability of text that exceeds its words goes to the closing tags; in a chunk,
    if the request says so, that of what only main may write goes to [/ASYNC]."""
    tags, stops = tokenizer.tags, tokenizer.stop_ids
    if query.thread and request.rules.end_stray_chunks:
        source, target = [tags.promise, tags.sync, *stops], [tags.end_async]
    elif query.place == "topic" and in_last_word(query.topics[-1], request, tokenizer):
        text = [id for id in range(tokenizer.vocab_size) if not tags.is_tag(id) and id not in stops]
        source = [id for id in text if exceeds_words(id, query.topics[-1], request, tokenizer)]
        target = [tags.close(tens) for tens in range(1, MAX_TENS + 1)]
    else:
        return logits_V
    mass = np.exp(logits_V - np.max(logits_V), dtype=np.float64)
    logits_V = logits_V.copy()
    logits_V[target] += np.log1p(mass[source].sum() / mass[target].sum())
    return logits_V


def in_last_word(topic: tuple[int, ...], request: Request, tokenizer: Tokenizer) -> bool:
    """Whether a topic has as many words as the request allows."""
    return 0 < request.rules.max_topic_words <= len(text_of(topic, tokenizer).split())


def spelled(ids: Sequence[int], tokenizer: Tokenizer) -> bytes:
    """The letters, accents, vowel signs and digits of a topic in lower case; bytes that are no characters stay."""
    texts = [tokenizer.piece(id).decode("utf-8", "surrogateescape").casefold() for id in ids]
    spelled = [
        char
        for char in "".join(texts)
        if unicodedata.category(char)[0] in "LN" or "\udc80" <= char <= "\udcff" or _accent(char)
    ]
    return "".join(spelled).encode("utf-8", "surrogateescape")


def _accent(char: str) -> bool:
    return unicodedata.category(char) in ("Mn", "Mc") and not unicodedata.name(char, "").startswith("VARIATION SEL")


def pick(logits_V: np.ndarray, legal_V: np.ndarray, rules: Rules, thread: int, number: int) -> int:
    """The next token, sampled by plain sorting."""
    if rules.temperature == 0:
        return int(np.argmax(np.where(legal_V, logits_V, -np.inf)))
    scaled_V = np.where(legal_V, logits_V / np.float32(rules.temperature), -np.inf)
    kept_V = keep(scaled_V, rules.top_k, rules.top_p)
    if rules.min_p:
        kept_V = np.where(scaled_V - np.max(scaled_V) >= np.log(np.float32(rules.min_p)), kept_V, -np.inf)
    return int(_categorical(kept_V, np.uint32(rules.seed), thread, number))


def keep(logits_V: np.ndarray, top_k: int, top_p: float) -> np.ndarray:
    """-inf for all but the k most likely, then all but the fewest of those that hold the mass p; ties stay together."""
    order_V = np.sort(logits_V)[::-1]
    if top_k:
        logits_V = np.where(logits_V >= order_V[min(top_k, len(order_V)) - 1], logits_V, -np.inf)
    if top_p < 1:
        order_V = np.sort(logits_V)[::-1]
        weight_V = np.exp(order_V - order_V[0], dtype=np.float64)
        held_V = np.cumsum(weight_V) / np.sum(weight_V)
        logits_V = np.where(logits_V >= order_V[np.argmax(held_V >= top_p)], logits_V, -np.inf)
    return logits_V


@jax.jit
def _categorical(logits_V: jax.Array, seed: jax.Array, thread: jax.Array, number: jax.Array) -> jax.Array:
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), thread), number)
    return jax.random.categorical(key, logits_V)
