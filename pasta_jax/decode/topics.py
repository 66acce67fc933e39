"""Rules for the topics of an answer: one line of at most so many words each, and none that spells an earlier one.

Both work on the ids that continue a topic; its closing tag stays legal, so a thread always has an id to sample.

Words are separated by whitespace. When the last word has begun, only ids that extend it are legal, and ids that hold
several words or a line break are illegal throughout. A topic that would spell an earlier one is stopped at the id that
completes it, rather than at the closing tag: "cinn" may go on to "cinnabar" but not to "cinnamon". Main can't see its
chunks, so a greedy main would otherwise promise its favourite topic again. Spelling is compared in letters and digits,
ignoring case: "Red wine." equals "red Wine". The price is that a longer topic can't begin with a whole earlier one.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.decode.state import DecodeState, LoopSpec, TopicIds, Topics
from pasta_jax.lang.grammar import BEGINS, BLANK, EXTENDS, SEVERAL, TEXT
from pasta_jax.lang.words import is_mark
from pasta_jax.tokenizers.once import once
from pasta_jax.tokenizers.tokenizer import Tokenizer
from pasta_jax.weights.rules import Rules

BASE = 0x01000193  # of the digests of spellings: digest(a + b) = digest(a) * BASE ** len(b) + digest(b), modulo 2 ** 32
SHARED = {chr(0xDC00 + byte) for byte in range(128, 256)}  # bytes of an incomplete character, as Python decodes them
LONGEST = 255  # bytes of an id's spelling that count


@once
def topic_ids(tokenizer: Tokenizer) -> TopicIds:
    """What each id of a tokenizer adds to a topic."""
    kinds, ends, lengths, digests = [], [], [], []
    for id in range(tokenizer.vocab_size):
        piece = tokenizer.piece(id)
        text = piece.decode("utf-8", "replace")
        kinds.append(kind_of(text))
        ends.append(text[-1:].isspace())
        spelled = spelling(piece)[:LONGEST]
        lengths.append(len(spelled))
        digests.append(functools.reduce(lambda digest, byte: (digest * BASE + byte + 1) % 2**32, spelled, 0))
    return TopicIds(
        kinds=np.array(kinds, np.uint8).tobytes(),
        ends=np.array(ends, np.uint8).tobytes(),
        lengths=np.array(lengths, np.uint8).tobytes(),
        digests=np.array(digests, np.uint32).tobytes(),
    )


def kind_of(text: str) -> int:
    """How an id with this text continues a topic."""
    words = len(text.split())
    if "\n" in text or "\r" in text:
        return SEVERAL
    if words == 1:
        return BEGINS if text[0].isspace() else EXTENDS
    return SEVERAL if words or not text else BLANK


def spelling(piece: bytes) -> bytes:
    """The letters, their marks and the digits of an id in lower case, and bytes of characters that several ids share as
    they are: so the spelling of a text is the concatenation of those of its ids."""
    text = piece.decode("utf-8", "surrogateescape").casefold()
    spelled = (char for char in text if char.isalnum() or char in SHARED or is_mark(char))
    return "".join(spelled).encode("utf-8", "surrogateescape")


def limits_topics(rules: Rules) -> bool:
    """Whether decoding needs the rules for topics, and a loop with a state for them."""
    return rules.max_topic_words > 0 or rules.distinct_topics


def read_topic(
    state: DecodeState, topic_B: jax.Array, fed_B: jax.Array, token_B: jax.Array, opens_B: jax.Array, spec: LoopSpec
) -> Topics:
    """The topics after main has fed `token_B` where `fed_B`; `topic_B` counts that token, `opens_B`: it closed one."""
    topics, ids = state.topics, spec.topics
    kind_V, ends_V, length_V = (np.frombuffer(field, np.uint8) for field in (ids.kinds, ids.ends, ids.lengths))
    id_B = jnp.minimum(token_B, len(kind_V) - 1)
    kind_B, ends_B = jnp.asarray(kind_V)[id_B], jnp.asarray(ends_V)[id_B] > 0
    added_B = jnp.asarray(length_V)[id_B].astype(jnp.int32)
    begun_B = (kind_B == BEGINS) | ((kind_B == EXTENDS) & ~topics.in_word)
    digest_B = topics.digest * jnp.asarray(powers())[added_B] + jnp.asarray(np.frombuffer(ids.digests, np.uint32))[id_B]
    lane, at = jnp.arange(len(fed_B)), jnp.where(opens_B, state.spawned, topics.earlier_length.shape[1])
    starts_B, adds_B = fed_B & (topic_B == 0), fed_B & (topic_B > 0)

    def changed(before_B: jax.Array, after_B: jax.Array) -> jax.Array:
        return jnp.where(starts_B, jnp.zeros_like(before_B), jnp.where(adds_B, after_B, before_B))

    return Topics(
        words=changed(topics.words, topics.words + begun_B),
        in_word=changed(topics.in_word, ~ends_B),
        length=changed(topics.length, topics.length + added_B),
        digest=changed(topics.digest, digest_B),
        earlier_length=topics.earlier_length.at[lane, at].set(topics.length, mode="drop"),
        earlier_digest=topics.earlier_digest.at[lane, at].set(topics.digest, mode="drop"),
    )


def text_kinds(state: DecodeState) -> jax.Array:
    """int32 [B]: the kinds of text that may continue the topic of each lane, as bits."""
    topics, most_B = state.topics, state.request.rules.max_topic_words
    room_B = topics.words < most_B
    limited_B = jnp.where(room_B, EXTENDS | BEGINS | BLANK, jnp.where(topics.in_word, EXTENDS, 0))
    return jnp.where(most_B > 0, limited_B, TEXT)


def may_complete(state: DecodeState) -> jax.Array:
    """bool [B, M]: the earlier topics that the one that main is writing, if it is, could come to spell."""
    rest_BxM = state.topics.earlier_length - state.topics.length[:, None]
    asked_B = state.live & state.request.rules.distinct_topics & (state.topic >= 0)
    return asked_B[:, None] & (rest_BxM > 0) & (rest_BxM <= LONGEST)


def completing(state: DecodeState, size: int, spec: LoopSpec) -> jax.Array:
    """bool [B, V]: the ids with which the topic that main is writing would spell an earlier one."""
    topics, lanes = state.topics, state.lanes
    digest_G, group_V = np.unique(np.frombuffer(spec.topics.digests, np.uint32), return_inverse=True)
    group_V = np.pad(group_V.astype(np.int32), (0, size - len(group_V)), constant_values=len(digest_G))
    rest_BxM = jnp.clip(topics.earlier_length - topics.length[:, None], 0, LONGEST)
    missing_BxM = topics.earlier_digest - topics.digest[:, None] * jnp.asarray(powers())[rest_BxM]
    group_BxM = jnp.minimum(jnp.searchsorted(jnp.asarray(digest_G), missing_BxM), len(digest_G) - 1)
    is_id_BxM = may_complete(state) & (jnp.asarray(digest_G)[group_BxM] == missing_BxM)
    # Groups from the end on stay unmarked: those of impossible completions, and of the ids after the text's.
    marked_BxG = jnp.zeros((lanes, len(digest_G) + 1), bool)
    lane_Bx1 = jnp.arange(lanes)[:, None]
    marked_BxG = marked_BxG.at[lane_Bx1, jnp.where(is_id_BxM, group_BxM, len(digest_G) + 1)].set(True, mode="drop")
    return marked_BxG[:, group_V]


@functools.cache
def powers() -> np.ndarray:
    """BASE ** n modulo 2 ** 32, for n from 0 to LONGEST."""
    return np.array([pow(BASE, n, 2**32) for n in range(LONGEST + 1)], np.uint32)
