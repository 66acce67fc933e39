"""The grammar of an answer: which ids a thread may sample in its state, as a mask over the logits."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pasta_jax.decode.request import Request
from pasta_jax.decode.sampling import FORBIDDEN
from pasta_jax.decode.state import LoopSpec
from pasta_jax.lang.grammar import (
    BEGINS,
    CHUNK,
    CHUNK_END,
    CLOSE,
    FOLLOWS,
    FORK,
    FULL_CHUNK,
    FULL_TOPIC,
    MAIN,
    SEVERAL,
    SYNC,
    TEXT,
    TOPIC,
    TURN_END,
    tag_kinds,
)
from pasta_jax.lang.tags import TagIds
from pasta_jax.weights.rules import Rules


def topic_after(topic_B: jax.Array, token_B: jax.Array, tags: TagIds) -> jax.Array:
    """Topic tokens of the open promise after main has fed this token; -1 outside a promise."""
    inside = jnp.where(topic_B >= 0, topic_B + 1, -1)
    return jnp.where(token_B == tags.promise, 0, jnp.where(tags.is_close(token_B), -1, inside))


def states(in_main_N: jax.Array, topic_N: jax.Array, full_N: jax.Array, max_topic_N: jax.Array) -> jax.Array:
    """int32 [N]: the states of threads in the table of lang/grammar.py. `full`: a chunk without tokens left."""
    in_topic_N = jnp.where(topic_N >= max_topic_N, FULL_TOPIC, TOPIC)
    return jnp.where(in_main_N, jnp.where(topic_N >= 0, in_topic_N, MAIN), jnp.where(full_N, FULL_CHUNK, CHUNK))


def id_kinds(size: int, spec: LoopSpec) -> np.ndarray:
    """int32 [V]: the kind of each id, a constant of the compiled loop."""
    tags = spec.tags
    id_V = np.arange(size)
    kind_V = np.where((id_V < spec.vocab) & ~tags.is_tag(id_V), SEVERAL, 0)
    if spec.topics is not None:
        text_V = np.frombuffer(spec.topics.kinds, np.uint8)
        kind_V[: len(text_V)] = np.where(kind_V[: len(text_V)], text_V, 0)
    kind_V[np.isin(id_V, spec.stop_ids) & (kind_V > 0)] = TURN_END
    tag_V = tag_kinds(id_V, tags)
    return np.where(tag_V > 0, tag_V, kind_V).astype(np.int32)


def tags_of(request: Request) -> int:
    """The kinds of tags that main may write outside a promise."""
    return 0 if request.sequential else FORK | SYNC if request.syncs else FORK


def allow(
    logits_NxV: jax.Array,
    spec: LoopSpec,
    state_N: jax.Array,
    tags_allowed_N: jax.Array,
    rules_N: Rules,
    topic_text_N: jax.Array | None = None,
) -> jax.Array:
    """Forbid the ids that would make the answer malformed, by the table of lang/grammar.py.

    Of [PROMISE] and [SYNC], main samples those whose kinds are in `tags_allowed`. Text inside a promise is limited to
    the kinds in `topic_text` (topics.py; None: any); in the last word of a topic, the probability of what would begin
    another goes to the closing tags. In chunks under `end_stray_chunks`, the probability of what only main may write
    goes to [/ASYNC]. `fork_bias` moves the logit of [PROMISE] where main may begin one. Otherwise, unless a topic or
    chunk is full, only the logits of tags and stop ids change.
    """
    legal_N = jnp.asarray(FOLLOWS)[state_N] & (~(FORK | SYNC) | tags_allowed_N)
    kind_V = id_kinds(logits_NxV.shape[1], spec)
    if topic_text_N is not None:
        in_topic_N = state_N == TOPIC
        legal_N = jnp.where(in_topic_N, legal_N & (~TEXT | topic_text_N), legal_N)
        last_word_N = in_topic_N & ((topic_text_N & BEGINS) == 0)
        logits_NxV = closing_instead(logits_NxV, kind_V, topic_text_N, last_word_N)
    in_chunk_N = (state_N == CHUNK) | (state_N == FULL_CHUNK)
    logits_NxV = ending_instead(logits_NxV, kind_V, rules_N.end_stray_chunks & in_chunk_N)
    logits_NxV = fork_biased(logits_NxV, spec, state_N, rules_N)  # here it is one pass over all ids with the mask
    is_legal_NxV = (kind_V[None] & legal_N[:, None]) != 0
    return jnp.where(is_legal_NxV, logits_NxV, FORBIDDEN)


def fork_biased(logits_NxV: jax.Array, spec: LoopSpec, state_N: jax.Array, rules_N: Rules) -> jax.Array:
    """The logits with `fork_bias` where main may begin a promise."""
    bias_Nx1 = jnp.where(state_N == MAIN, rules_N.fork_bias, 0.0)[:, None]
    return logits_NxV + jnp.where(jnp.arange(logits_NxV.shape[1]) == spec.tags.promise, bias_Nx1, 0.0)


def closing_instead(
    logits_NxV: jax.Array, kind_V: np.ndarray, topic_text_N: jax.Array, last_word_N: jax.Array
) -> jax.Array:
    """Give the closing tags the probability of the text that may not continue a topic, where it is in its last word.

    A mask alone would share that probability among all legal ids. A model that is sure of another word would then
    often go on with an unlikely end of this one.
    """

    def moved() -> jax.Array:
        is_beyond_NxV = ((kind_V & TEXT) != 0)[None] & ((kind_V[None] & topic_text_N[:, None]) == 0)
        beyond_N = jax.nn.logsumexp(jnp.where(is_beyond_NxV, logits_NxV, FORBIDDEN), axis=1)
        close_N = jax.nn.logsumexp(logits_NxV[:, kind_V == CLOSE], axis=1)
        gain_N = jnp.where(last_word_N, jnp.logaddexp(beyond_N, close_N) - close_N, 0.0)
        return logits_NxV + jnp.where((kind_V == CLOSE)[None], gain_N[:, None], 0.0)

    return lax.cond(jnp.any(last_word_N), moved, lambda: logits_NxV)


def ending_instead(logits_NxV: jax.Array, kind_V: np.ndarray, chunk_N: jax.Array) -> jax.Array:
    """Give [/ASYNC] the probability of the ids that only main may write, in these chunks.

    A model may be sure that a chunk is done and yet end it as it ends main, or begin main's next promise. A mask alone
    would leave it to what is unlikely: noise, until the chunk's budget ends.
    """
    ends_V = np.flatnonzero(kind_V & (TURN_END | FORK | SYNC | CHUNK_END))
    end_N = jax.nn.logsumexp(logits_NxV[:, ends_V], axis=1)
    return jnp.where((kind_V == CHUNK_END)[None] & chunk_N[:, None], end_N[:, None], logits_NxV)
