"""Admission: give a lane to a request, write or copy its prompt and sample the first token; or take the lane back."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from pasta_jax.decode.grammar import allow
from pasta_jax.decode.rows import see_pool
from pasta_jax.decode.sampling import draw
from pasta_jax.decode.state import DONE, LIVE, RUNNING, STOP, UNUSED, DecodeState, RequestFields, Rules
from pasta_jax.lang.structure import Place
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.parameters import Params
from pasta_jax.models.transformer import Cache, logits, trunk

PIECES = (16, 32, 64, 128, 256, 512)  # a prompt is written in pieces of these lengths, each of which is a program


def pieces(length: int, piece: int) -> list[tuple[int, int, int]]:
    """(start, tokens, padded length) of each piece of a prompt: full ones, then the shortest that holds the rest.

    A full piece always has the same place and shape, whatever follows it: see held.py.
    """
    starts = range(0, length, piece)
    counts = [min(piece, length - start) for start in starts]
    return [(start, count, next(c for c in PIECES if c >= count)) for start, count in zip(starts, counts, strict=True)]


@functools.partial(jax.jit, donate_argnames="state")
def admit(state: DecodeState, lane: jax.Array, request: RequestFields) -> DecodeState:
    """Empty the lane and store the request's parameters, which are scalars here."""
    fresh = {"live": False, "finish": RUNNING, "step": 0, "spawned": 0, "topic": -1, "highest": -1}
    return dataclasses.replace(
        state,
        pool=dataclasses.replace(state.pool, fill=state.pool.fill.at[lane].set(0)),
        threads=jax.tree.map(lambda field_BxM: field_BxM.at[lane].set(0), state.threads),
        topics=jax.tree.map(lambda field: field.at[lane].set(jnp.zeros((), field.dtype)), state.topics),
        request=jax.tree.map(lambda field_B, value: field_B.at[lane].set(value), state.request, request),
        **{name: getattr(state, name).at[lane].set(value) for name, value in fresh.items()},
    )


@functools.partial(jax.jit, donate_argnames="state")
def release(state: DecodeState, lane: jax.Array) -> DecodeState:
    """End the lane's request where it is."""
    return dataclasses.replace(state, live=state.live.at[lane].set(False))


@functools.partial(jax.jit, static_argnames=("config", "rules"), donate_argnames="state")
def prefill(
    params: Params,
    state: DecodeState,
    lane: jax.Array,
    tokens_P: jax.Array,
    start: jax.Array,
    count: jax.Array,
    first: jax.Array,
    config: TransformerConfig,
    rules: Rules,
) -> DecodeState:
    """Write `count` prompt tokens at `start` and sample the next token; after the prompt's last piece the lane is live.

    `first` is the next token instead of a sampled one, or -1. Profiles show the phases write, model and sample.
    """
    length = tokens_P.shape[0]
    index_P = jnp.arange(length)
    real_P = index_P < count
    position_P = start + index_P
    slot_P = jnp.where(real_P, position_P, state.pool.slots)

    def put(field_BxS: jax.Array, value: jax.Array | int) -> jax.Array:
        return field_BxS.at[lane, slot_P].set(value, mode="drop", unique_indices=True)

    pool = state.pool
    with jax.named_scope("write"):
        pool = dataclasses.replace(
            pool,
            chunk=put(pool.chunk, 0),
            epoch=put(pool.epoch, 0),
            main=put(pool.main, position_P + 1),
            position=put(pool.position, position_P),
            token=put(pool.token, tokens_P),
            step=put(pool.step, 0),
            fill=pool.fill.at[lane].set(start + count),
        )
    with jax.named_scope("model"):
        one = jax.tree.map(lambda field: field[lane][None], dataclasses.replace(pool, kv=()))
        zero_1xP = jnp.zeros((1, length), jnp.int32)
        see_1xPxS = see_pool(one, Place(zero_1xP, zero_1xP, position_P[None] + 1))
        cache = Cache(pool.kv, slot_P[None], lanes=lane[None], prefixes=rules.prefixes, fill=start + length)
        x_1xPxE, kv = trunk(params, config, tokens_P[None], position_P[None], see_1xPxS, one.position, cache)

        hidden = state.hidden
        if hidden is not None:
            hidden = hidden.at[lane, slot_P].set(x_1xPxE[0], mode="drop", unique_indices=True)
        x_E = jax.lax.dynamic_index_in_dim(x_1xPxE[0], count - 1, keepdims=False)
        state = dataclasses.replace(
            state, pool=dataclasses.replace(pool, kv=kv), prompted=state.prompted.at[lane].set(x_E), hidden=hidden
        )
    return _begin(params, state, lane, start + count, first, config, rules)


@functools.partial(jax.jit, static_argnames="piece", donate_argnames="state")
def copy_slots(state: DecodeState, lane: jax.Array, source: jax.Array, count: jax.Array, piece: int) -> DecodeState:
    """Copy the first `count` slots of lane `source`, which are of its prompt, and what was computed at its end."""
    slots = state.pool.slots
    size_of_copy = min(piece, slots)

    def put(field: jax.Array, first: jax.Array, lanes: int, slots: int) -> jax.Array:
        """Copy one piece; `lanes` and `slots` are the axes of the field that count them."""
        start, size = [0] * field.ndim, list(field.shape)
        start[lanes], start[slots], size[lanes], size[slots] = source, first, 1, size_of_copy
        copied = jax.lax.dynamic_slice(field, start, size)
        start[lanes] = lane
        return jax.lax.dynamic_update_slice(field, copied, start)

    def copy(number: jax.Array, state: DecodeState) -> DecodeState:
        first = jnp.minimum(number * size_of_copy, slots - size_of_copy)
        pool = state.pool
        integers = ("chunk", "epoch", "main", "position", "token", "step")
        per_slot = {name: put(getattr(pool, name), first, 0, 1) for name in integers}
        kv = jax.tree.map(lambda field: put(field, first, field.ndim - 4, field.ndim - 2), pool.kv)
        hidden = state.hidden if state.hidden is None else put(state.hidden, first, 0, 1)
        return dataclasses.replace(state, pool=dataclasses.replace(pool, kv=kv, **per_slot), hidden=hidden)

    copies = jnp.where(lane == source, 0, -(-count // size_of_copy))
    state = jax.lax.fori_loop(0, copies, copy, state)
    pool = dataclasses.replace(state.pool, fill=state.pool.fill.at[lane].set(count))
    return dataclasses.replace(state, pool=pool, prompted=state.prompted.at[lane].set(state.prompted[source]))


@functools.partial(jax.jit, static_argnames=("config", "rules"), donate_argnames="state")
def begin_copied(
    params: Params, state: DecodeState, lane: jax.Array, config: TransformerConfig, rules: Rules
) -> DecodeState:
    """Sample the first token after a prompt that was copied whole, with the request's own seed."""
    return _begin(params, state, lane, state.pool.fill[lane], jnp.int32(-1), config, rules)


@jax.named_scope("sample")
def _begin(
    params: Params,
    state: DecodeState,
    lane: jax.Array,
    done: jax.Array,
    first: jax.Array,
    config: TransformerConfig,
    rules: Rules,
) -> DecodeState:
    """Sample main's first token after `done` prompt tokens; the lane is live if these are the whole prompt."""
    logits_1xV = logits(params, config, state.prompted[lane][None, None])[:, 0]
    lane_1 = lane[None]
    outside_1, no_1 = jnp.full(1, -1), jnp.zeros(1, bool)
    request_1 = jax.tree.map(lambda field_B: field_B[lane_1], state.request)
    logits_1xV = allow(logits_1xV, rules, ~no_1, outside_1, no_1, request_1.tags_allowed, request_1.max_topic)
    zero_1 = jnp.zeros(1, jnp.int32)
    sampled = draw(logits_1xV, request_1.sampling, zero_1, zero_1)[0]
    sampled = jnp.where(first >= 0, first, sampled)

    stops = functools.reduce(jnp.logical_or, [sampled == stop for stop in rules.stop_ids])
    last = done == state.request.prompt_length[lane]
    threads = state.threads
    values = {
        "status": jnp.where(last, jnp.where(stops, DONE, LIVE), UNUSED),
        "token": sampled,
        "position": done,
        "main": done,
        "count": 1,
    }
    threads = dataclasses.replace(
        threads, **{name: getattr(threads, name).at[lane, 0].set(value) for name, value in values.items()}
    )
    return dataclasses.replace(
        state,
        threads=threads,
        live=state.live.at[lane].set(last & ~stops),
        finish=state.finish.at[lane].set(jnp.where(last & stops, STOP, RUNNING)),
        highest=state.highest.at[lane].set(done - 1),
    )
