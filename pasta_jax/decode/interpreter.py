"""The interpreter: a step feeds one token of every running thread of every lane; a jitted loop repeats it.

A step (1) opens the chunk whose promise main is about to close, (2) picks the threads that feed, main first, then
chunks in spawn order, (3) writes their tokens to the next free slots, (4) runs the model with each row seeing what
lang/structure.py::visible says, (5) samples each thread's next token among those its state allows, and (6) moves the
threads on. Nothing is copied at a
fork and nothing is moved at a join: threads are integers beside the slots.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax

from pasta_jax.decode.grammar import allow, topic_after
from pasta_jax.decode.sampling import draw
from pasta_jax.decode.state import BUDGET, DONE, ENDED, LENGTH, LIVE, OWN, STOP, DecodeState, Rules, Threads
from pasta_jax.lang.structure import Place, fork_position, resume_position, sync_position, visible
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.pool import Pool
from pasta_jax.models.transformer import Cache, logits, trunk


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Script:
    """Tokens to force: a thread's n-th token is tokens[lane, start[lane, thread] + n], where that is not -1."""

    tokens: jax.Array  # int32 [B, T]
    start: jax.Array  # int32 [B, M]


@dataclasses.dataclass(frozen=True)
class Rows:
    """What one step feeds: R rows a lane, the active ones first."""

    active: jax.Array  # bool [B, R]
    thread: jax.Array  # int32 [B, R]; M (out of range) in inactive rows
    token: jax.Array  # int32 [B, R]
    position: jax.Array
    main: jax.Array
    epoch: jax.Array
    slot: jax.Array  # S (out of range) in inactive rows


def feeding(state: DecodeState, rules: Rules):
    """Who feeds in the next step, as bool [B, M], and which lanes open a chunk in it, as bool [B].

    Main waits before [SYNC] while a chunk is still to be sampled. Chunks take the R - 1 rows beside main's in spawn
    order, so those that have begun go on and those that wait for a row begin in order. A lane whose step would not fit
    feeds nothing.
    """
    threads, tags = state.threads, rules.tags
    token, status = threads.token[:, 0], threads.status[:, 0]
    unfinished_BxM = (threads.status == LIVE).at[:, 0].set(False)
    waits = (token == tags.sync) & jnp.any(unfinished_BxM, axis=1)
    main = state.live & (status == LIVE) & ~waits
    opens = main & tags.is_close(token) & (state.topic >= 0)
    chunks_BxM = (threads.status == LIVE) | (threads.status == ENDED)
    chunks_BxM = chunks_BxM.at[:, 0].set(False)
    is_new_BxM = jnp.arange(chunks_BxM.shape[1])[None, :] == state.spawned[:, None] + 1
    chunks_BxM = (chunks_BxM | (opens[:, None] & is_new_BxM)) & state.live[:, None]
    chunks_BxM = chunks_BxM & (jnp.cumsum(chunks_BxM, axis=1) < rules.rows)
    feeds_BxM = chunks_BxM.at[:, 0].set(main)
    fits = state.pool.fill + jnp.sum(feeds_BxM, axis=1) <= state.request.limit
    return feeds_BxM & fits[:, None], opens & fits


def open_chunk(state: DecodeState, opens, rules: Rules) -> DecodeState:
    """Give the lanes in `opens` a new thread that feeds [ASYNC] behind the promise main closes in this step."""
    threads = state.threads
    lane = jnp.arange(state.lanes)
    new = jnp.where(opens, state.spawned + 1, threads.status.shape[1])  # out of range: dropped

    def put(field_BxM, value):
        return field_BxM.at[lane, new].set(value, mode="drop")

    threads = Threads(
        status=put(threads.status, LIVE),
        token=put(threads.token, rules.tags.async_),
        position=put(threads.position, fork_position(threads.position[:, 0])),
        main=put(threads.main, threads.main[:, 0] + 1),  # the promise's last token counts
        epoch=put(threads.epoch, threads.epoch[:, 0]),
        count=put(threads.count, 0),
        closed=put(threads.closed, 0),
    )
    return dataclasses.replace(state, threads=threads, spawned=state.spawned + opens)


def pick_rows(state: DecodeState, feeds_BxM, rules: Rules, width: int) -> Rows:
    """Gather the feeding threads into `width` rows."""
    threads = state.threads
    slots, many = state.pool.slots, feeds_BxM.shape[1]
    rank_BxM = jnp.cumsum(feeds_BxM, axis=1) - 1
    is_row_BxRxM = feeds_BxM[:, None, :] & (rank_BxM[:, None, :] == jnp.arange(width)[None, :, None])
    active = jnp.any(is_row_BxRxM, axis=2)
    thread = jnp.argmax(is_row_BxRxM, axis=2).astype(jnp.int32)

    def take(field_BxM):
        return jnp.take_along_axis(field_BxM, thread, axis=1)

    token, position = take(threads.token), take(threads.position)
    in_main = thread == 0
    joins = active & in_main & (token == rules.tags.sync)
    # Chunks that feed their last token beside a [SYNC] count as placed before it.
    beside = jnp.max(jnp.where(active & ~in_main, position, -1), axis=1)
    highest = jnp.maximum(state.highest, beside)[:, None]
    return Rows(
        active=active,
        thread=jnp.where(active, thread, many),
        token=token,
        position=jnp.where(joins, sync_position(position, highest, rules.positions), position),
        main=take(threads.main) + in_main,
        epoch=take(threads.epoch) + joins,
        slot=jnp.where(active, state.pool.fill[:, None] + jnp.arange(width)[None, :], slots),
    )


def write_rows(pool: Pool, rows: Rows, step) -> Pool:
    """Record in the pool what each new slot is; keys and values follow in the model."""
    lane = jnp.arange(rows.slot.shape[0])[:, None]

    def put(field_BxS, value):
        return field_BxS.at[lane, rows.slot].set(value, mode="drop", unique_indices=True)

    return dataclasses.replace(
        pool,
        chunk=put(pool.chunk, rows.thread),
        epoch=put(pool.epoch, rows.epoch),
        main=put(pool.main, rows.main),
        position=put(pool.position, rows.position),
        token=put(pool.token, rows.token),
        step=put(pool.step, jnp.broadcast_to(step[:, None], rows.slot.shape)),
        fill=pool.fill + jnp.sum(rows.active, axis=1),
    )


def see_pool(pool: Pool, place: Place) -> jax.Array:
    """bool [B, R, S]: which written slots the tokens at these places [B, R] may attend to."""
    there = (jnp.arange(pool.slots)[None, :] < pool.fill[:, None])[:, None, :]
    return visible(there, place.queries(), pool.place.keys())


def next_tokens(
    params, config: TransformerConfig, x_BxRxE, state: DecodeState, rules: Rules, rows: Rows, topic_B, script
):
    """The token each row's thread goes on with, and which rows the interpreter forced to close; both [B, R]."""
    threads = state.threads
    width = rows.token.shape[1]
    safe = jnp.minimum(rows.thread, threads.count.shape[1] - 1)
    count = jnp.take_along_axis(threads.count, safe, axis=1)
    in_main = rows.thread == 0
    full = ~in_main & (count >= state.request.max_chunk[:, None])

    def flat(per_row):
        return per_row.reshape(-1)

    def spread(per_lane):
        return jnp.repeat(per_lane, width)

    logits_NxV = logits(params, config, x_BxRxE).reshape(state.lanes * width, -1)
    request_N = jax.tree.map(spread, state.request)
    logits_NxV = allow(
        logits_NxV,
        rules,
        flat(in_main),
        spread(topic_B),
        flat(full),
        request_N.tags_allowed,
        request_N.max_topic,
    )
    token_N = draw(logits_NxV, request_N.sampling, flat(rows.thread), flat(count))
    token = token_N.reshape(rows.token.shape)
    if script is None:
        return token, full
    at = jnp.take_along_axis(script.start, safe, axis=1) + count
    given = jnp.take_along_axis(script.tokens, jnp.clip(at, 0, script.tokens.shape[1] - 1), axis=1)
    return jnp.where(given >= 0, given, token), full & (given < 0)


def advance(state: DecodeState, rows: Rows, sampled, forced, topic_B, rules: Rules) -> DecodeState:
    """Move the threads that fed on to their next token, and finish the lanes that came to their end."""
    threads, tags = state.threads, rules.tags
    in_main = rows.active & (rows.thread == 0)
    in_chunk = rows.active & (rows.thread != 0)
    left = in_chunk & (rows.token == tags.end_async)  # its output is discarded
    stops = functools.reduce(jnp.logical_or, [sampled == stop for stop in rules.stop_ids])
    ends = in_chunk & ~left & (sampled == tags.end_async)
    status = jnp.where(left | (in_main & stops), DONE, jnp.where(ends, ENDED, LIVE))
    onward = rows.position + 1
    closes = in_main & tags.is_close(rows.token)
    resumed = resume_position(rows.position, tags.tens(rows.token), rules.positions)
    lane = jnp.arange(state.lanes)[:, None]

    def put(field_BxM, value):
        return field_BxM.at[lane, rows.thread].set(value, mode="drop", unique_indices=True)

    safe = jnp.minimum(rows.thread, threads.count.shape[1] - 1)
    count = jnp.take_along_axis(threads.count, safe, axis=1)
    closed = jnp.take_along_axis(threads.closed, safe, axis=1)
    threads = Threads(
        status=put(threads.status, status),
        token=put(threads.token, sampled),
        position=put(threads.position, jnp.where(closes, resumed, onward)),
        main=put(threads.main, jnp.where(in_main, rows.main, jnp.take_along_axis(threads.main, safe, axis=1))),
        epoch=put(threads.epoch, rows.epoch),
        count=put(threads.count, count + 1),
        closed=put(threads.closed, jnp.where(ends, jnp.where(forced, BUDGET, OWN), closed)),
    )
    open_left = jnp.any((threads.status == LIVE).at[:, 0].set(False), axis=1)
    done = state.live & (threads.status[:, 0] == DONE) & ~open_left
    return dataclasses.replace(
        state,
        threads=threads,
        topic=topic_B,
        highest=jnp.maximum(state.highest, jnp.max(jnp.where(rows.active, rows.position, -1), axis=1)),
        live=state.live & ~done,
        finish=jnp.where(done, STOP, state.finish),
    )


def step(params, state: DecodeState, config: TransformerConfig, rules: Rules, width: int, script: Script | None = None):
    """One step of every live lane. `width` must hold the fullest lane's threads (`rows_needed`)."""
    feeds_BxM, opens = feeding(state, rules)
    runs = jnp.any(feeds_BxM, axis=1)
    # A live lane always has a thread that could feed: if none does, the step did not fit.
    state = dataclasses.replace(
        state,
        live=state.live & runs,
        finish=jnp.where(state.live & ~runs, LENGTH, state.finish),
        step=state.step + runs,
    )
    state = open_chunk(state, opens, rules)
    rows = pick_rows(state, feeds_BxM, rules, width)
    pool = write_rows(state.pool, rows, state.step)
    # Idle rows see nothing and are seen by nobody.
    see_BxRxS = see_pool(pool, Place(rows.thread, rows.epoch, rows.main)) & rows.active[:, :, None]
    cache = Cache(pool.kv, rows.slot, prefixes=rules.prefixes, fill=jnp.max(jnp.where(runs, pool.fill, 0)))
    x_BxRxE, kv = trunk(params, config, rows.token, rows.position, see_BxRxS, pool.position, cache)
    hidden = state.hidden
    if hidden is not None:
        hidden = hidden.at[jnp.arange(state.lanes)[:, None], rows.slot].set(x_BxRxE, mode="drop", unique_indices=True)
    state = dataclasses.replace(state, pool=dataclasses.replace(pool, kv=kv), hidden=hidden)
    fed_by_main = jnp.any(rows.active & (rows.thread == 0), axis=1)
    main_token = rows.token[:, 0]  # where main feeds, it feeds in the first row
    topic_B = jnp.where(fed_by_main, topic_after(state.topic, main_token, rules.tags), state.topic)
    sampled, forced = next_tokens(params, config, x_BxRxE, state, rules, rows, topic_B, script)
    return advance(state, rows, sampled, forced, topic_B, rules)


def rows_needed(state: DecodeState, rules: Rules):
    """Threads that the fullest lane feeds in the next step."""
    return jnp.max(jnp.sum(feeding(state, rules)[0], axis=1))


@functools.partial(jax.jit, static_argnames=("config", "rules"), donate_argnames="state")
def run(
    params,
    state: DecodeState,
    steps,
    until_lane_ends,
    config: TransformerConfig,
    rules: Rules,
    script: Script | None = None,
):
    """Decode for at most `steps` steps, until no lane is live, or with `until_lane_ends` until any lane is done."""
    lanes_live = jnp.sum(state.live)

    def goes_on(carry):
        state, taken = carry
        lost_one = until_lane_ends & (jnp.sum(state.live) < lanes_live)
        return jnp.any(state.live) & (taken < steps) & ~lost_one

    def loop_of(width, narrower):
        def fits(carry):
            needed = rows_needed(carry[0], rules)
            return goes_on(carry) & (needed <= width) & (needed > narrower)

        def body(carry):
            state, taken = carry
            return step(params, state, config, rules, width, script), taken + 1

        return lambda carry: lax.while_loop(fits, body, carry)

    # A lane that no longer fits needs no row: its last step is taken by the narrowest loop.
    narrower = (-1, *rules.widths[:-1])
    loops = [loop_of(width, below) for width, below in zip(rules.widths, narrower, strict=True)]

    def all_widths(carry):
        for loop in loops:
            carry = loop(carry)
        return carry

    return lax.while_loop(goes_on, all_widths, (state, jnp.int32(0)))[0]
