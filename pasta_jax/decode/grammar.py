"""The grammar of an answer: which ids a thread may sample in its state, as a mask over the logits."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pasta_jax.decode.request import Request
from pasta_jax.decode.sampling import FORBIDDEN
from pasta_jax.decode.state import Rules
from pasta_jax.decode.topics import BEGINS, BLANK, EXTENDS, SEVERAL
from pasta_jax.lang.tags import TagIds

# The kinds of ids that the grammar tells apart; ids that are never sampled have kind 0.
TEXT = EXTENDS | BEGINS | BLANK | SEVERAL
TURN_END, FORK, SYNC, CLOSE, CHUNK_END = (1 << n for n in range(4, 9))


def topic_after(topic_B: jax.Array, token_B: jax.Array, tags: TagIds) -> jax.Array:
    """Topic tokens of the open promise after main has fed this token; -1 outside a promise."""
    inside = jnp.where(topic_B >= 0, topic_B + 1, -1)
    return jnp.where(token_B == tags.promise, 0, jnp.where(tags.is_close(token_B), -1, inside))


def id_kinds(size: int, rules: Rules) -> np.ndarray:
    """The kind of each id [V]: a constant of the compiled loop."""
    tags = rules.tags
    id_V = np.arange(size)
    kind_V = np.where((id_V < rules.vocab) & ~tags.is_tag(id_V), SEVERAL, 0)
    if rules.topics is not None:
        text_V = np.frombuffer(rules.topics.kinds, np.uint8)
        kind_V[: len(text_V)] = np.where(kind_V[: len(text_V)], text_V, 0)
    kind_V[np.isin(id_V, rules.stop_ids) & (kind_V > 0)] = TURN_END
    kind_V[[tags.promise, tags.sync]] = FORK, SYNC
    kind_V[tags.is_close(id_V)] = CLOSE
    kind_V[tags.end_async] = CHUNK_END
    return kind_V.astype(np.int32)


def tags_of(request: Request) -> int:
    """The kinds of tags that main may write outside a promise."""
    return 0 if request.sequential else FORK | SYNC if request.syncs else FORK


def allow(
    logits_NxV: jax.Array,
    rules: Rules,
    in_main_N: jax.Array,
    topic_N: jax.Array,
    full_N: jax.Array,
    tags_allowed_N: jax.Array,
    max_topic_N: jax.Array,
    topic_text_N: jax.Array | None = None,
    end_stray_N: jax.Array | None = None,
) -> jax.Array:
    """Forbid the ids that would make the answer malformed.

        state of the thread         may sample
        main, outside a promise     text, [PROMISE], [SYNC], end-of-turn
        main, inside a promise      text, [/PROMISE:n]
        the same, topic full        [/PROMISE:n]
        chunk                       text, [/ASYNC]
        chunk, full                 [/ASYNC]

    Of [PROMISE] and [SYNC], main samples those whose kinds are in `tags_allowed`. Text inside a promise is limited to
    the kinds in `topic_text` (topics.py; None: any); in the last word of a topic, the probability of what would begin
    another goes to the closing tags. In chunks of `end_stray` (None: in none), the probability of what only main may
    write goes to [/ASYNC]. Otherwise, unless a topic or chunk is full, only the logits of tags and stop ids change.
    """
    inside, outside = in_main_N & (topic_N >= 0), in_main_N & (topic_N < 0)
    topic_full = inside & (topic_N >= max_topic_N)
    legal_N = sum(
        jnp.where(holds, kind, 0)
        for kind, holds in (
            (TEXT, ~inside & ~full_N),
            (TEXT if topic_text_N is None else topic_text_N, inside & ~topic_full),
            (TURN_END, outside),
            (tags_allowed_N, outside),
            (CLOSE, inside),
            (CHUNK_END, ~in_main_N),
        )
    )
    kind_V = id_kinds(logits_NxV.shape[1], rules)
    if topic_text_N is not None:
        last_word_N = inside & ~topic_full & ((topic_text_N & BEGINS) == 0)
        logits_NxV = closing_instead(logits_NxV, kind_V, topic_text_N, last_word_N)
    if end_stray_N is not None:
        logits_NxV = ending_instead(logits_NxV, kind_V, end_stray_N & ~in_main_N)
    is_legal_NxV = (kind_V[None] & legal_N[:, None]) != 0
    return jnp.where(is_legal_NxV, logits_NxV, FORBIDDEN)


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
