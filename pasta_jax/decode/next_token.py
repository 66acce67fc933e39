"""The next token of threads: the ids that the grammar and the request's rules allow, then a draw."""

import dataclasses

import jax
import jax.numpy as jnp

from pasta_jax.decode.extras import Scores, biased, scores_of
from pasta_jax.decode.grammar import allow, states
from pasta_jax.decode.guests import allowed
from pasta_jax.decode.rows import Rows, end_of, see_pool
from pasta_jax.decode.sampling import FORBIDDEN, costless_but, draw, penalize
from pasta_jax.decode.state import DecodeState, LoopSpec
from pasta_jax.decode.topics import completing, may_complete, text_kinds
from pasta_jax.lang.structure import Place
from pasta_jax.models.ragged import Packed


def next_token(
    state: DecodeState,
    spec: LoopSpec,
    logits_NxV: jax.Array,
    slot_BxR: jax.Array,
    packed: Packed | None = None,
    rows: Rows | None = None,
    by_kernel: bool = False,
) -> tuple[jax.Array, jax.Array, Scores | None]:
    """The token after those in these slots, which their threads fed last, int32 [B, R]; whether it had to end a full
    chunk, bool [B, R]; and its scores, if the state keeps any. Slots out of range get any token. The logits are of all
    rows, or of the packed ones. `rows` are those of a step that may have drafts, else None."""

    def of_lane(field_B: jax.Array) -> jax.Array:
        return jnp.repeat(field_B, slot_BxR.shape[1], axis=0) if packed is None else packed.of_lane(field_B)

    def flat(field_BxR: jax.Array) -> jax.Array:
        return field_BxR.reshape(-1, *field_BxR.shape[2:]) if packed is None else packed.pack(field_BxR)

    def counts() -> tuple[jax.Array, jax.Array]:
        """int32 [N, V] each: how often ids, apart from tags, are visible from these slots, and of the answer."""
        pool = state.pool
        columns = (jnp.take_along_axis(field, slot_BxR, axis=1) for field in (pool.chunk, pool.epoch, pool.main))
        seen_NxS = flat(see_pool(pool, Place(*columns), end_BxR)) & of_lane(~spec.tags.is_tag(pool.token))
        written_NxS = seen_NxS & of_lane((pool.step > 0) & ~ends_prompt(state))
        none_V = jnp.zeros(logits_NxV.shape[1], jnp.int32)
        count = jax.vmap(lambda ids_S, counts_S: none_V.at[ids_S].add(counts_S))
        return count(of_lane(pool.token), seen_NxS), count(of_lane(pool.token), written_NxS)

    end_BxR = None if rows is None else end_of(state.pool, rows)
    feeds_N = flat(slot_BxR < state.pool.slots)
    slot_BxR = jnp.minimum(slot_BxR, state.pool.slots - 1)
    thread_BxR = jnp.take_along_axis(state.pool.chunk, slot_BxR, axis=1)
    number_BxR = jnp.take_along_axis(state.threads.count, thread_BxR, axis=1)
    number_BxR = number_BxR if rows is None else number_BxR + rows.ahead
    full_BxR = (thread_BxR != 0) & (number_BxR >= state.request.rules.max_chunk_tokens[:, None])
    request_N, thread_N = jax.tree.map(of_lane, state.request), flat(thread_BxR)
    rules_N, in_main_N = costless_but(feeds_N, request_N.rules), thread_N == 0
    if state.guests is not None:
        # A guest writes as main would in a request of its own, whose seed has its number.
        guest_BxR = (thread_BxR != 0) & (state.guests.count > 0)[:, None]
        full_BxR, guest_N, number = full_BxR & ~guest_BxR, flat(guest_BxR), thread_N
        rules_N = dataclasses.replace(rules_N, seed=rules_N.seed + jnp.where(guest_N, number - 1, 0).astype(jnp.uint32))
        in_main_N, thread_N = in_main_N | guest_N, jnp.where(guest_N, 0, thread_N)
    logits_NxV = penalize(logits_NxV, rules_N, counts)
    lane_N = of_lane(jnp.arange(state.lanes))
    if state.extras is not None:
        logits_NxV = biased(state.extras, logits_NxV, lane_N, feeds_N)
    topic_N = of_lane(state.topic)
    if rows is not None:
        # Of the drafts, only one that is [PROMISE] begins a topic, and what feeds before it is in none.
        in_topic_BxR = (rows.token == spec.tags.promise) | (state.drafts.count == 0)[:, None]
        topic_N = jnp.where(flat(in_topic_BxR), topic_N, -1)
    state_N = states(in_main_N, topic_N, flat(full_BxR), rules_N.max_topic_tokens)
    text_N = None if spec.topics is None else of_lane(text_kinds(state))
    logits_NxV = allow(logits_NxV, spec, state_N, request_N.tags_allowed, rules_N, text_N)
    if spec.topics is not None:
        legal_NxV, writes_N = logits_NxV, in_main_N & (topic_N >= 0)

        def distinct() -> jax.Array:
            repeats_NxV = of_lane(completing(state, legal_NxV.shape[1], spec)) & writes_N[:, None]
            return jnp.where(repeats_NxV, FORBIDDEN, legal_NxV)

        logits_NxV = jax.lax.cond(jnp.any(may_complete(state)), distinct, lambda: legal_NxV)
    if state.guests is not None:
        values_NxV = logits_NxV

        def held() -> jax.Array:
            may_follow_NxV = allowed(state.guests, lane_N, number, values_NxV.shape[1])
            return jnp.where(may_follow_NxV | ~guest_N[:, None], values_NxV, FORBIDDEN)

        logits_NxV = jax.lax.cond(jnp.any(guest_N), held, lambda: values_NxV)
    token_N = draw(logits_NxV, rules_N, thread_N, flat(number_BxR), by_kernel=by_kernel)
    scores = None if state.extras is None else scores_of(state.extras, logits_NxV, token_N, lane_N, feeds_N)

    def of_rows(field_N: jax.Array) -> jax.Array:
        if packed is not None:
            return packed.spread(field_N, state.lanes)
        return field_N.reshape(*slot_BxR.shape, *field_N.shape[1:])

    return of_rows(token_N), full_BxR, jax.tree.map(of_rows, scores)


def ends_prompt(state: DecodeState) -> jax.Array:
    """The slots of the last tokens of guests' prompts, which a step feeds, bool [B, S]."""
    pool, slots = state.pool, state.pool.slots
    if state.guests is None:
        return jnp.zeros(pool.chunk.shape, bool)
    fed_BxS = jnp.where(pool.step > 0, jnp.arange(slots)[None], slots)
    none_M = jnp.full(state.threads.status.shape[1], slots)
    first_BxM = jax.vmap(lambda chunk_S, fed_S: none_M.at[chunk_S].min(fed_S))(pool.chunk, fed_BxS)
    is_first_BxS = jnp.take_along_axis(first_BxM, pool.chunk, axis=1) == jnp.arange(slots)[None]
    return is_first_BxS & (pool.chunk > 0) & (state.guests.count > 0)[:, None]


def next_of_one(
    state: DecodeState, spec: LoopSpec, logits_1xV: jax.Array, lane: jax.Array, slot: jax.Array, by_kernel: bool
) -> tuple[jax.Array, Scores | None]:
    """The token after that in one slot of one lane, a scalar, and its scores."""
    plain = dataclasses.replace(
        state, pool=dataclasses.replace(state.pool, kv=()), hidden=None, guests=None, prices=None
    )
    one = jax.tree.map(lambda field_B: field_B[lane][None], plain)
    token, _, scores = next_token(one, spec, logits_1xV, slot[None, None], by_kernel=by_kernel)
    return token[0, 0], jax.tree.map(lambda field_BxR: field_BxR[0, 0], scores)
