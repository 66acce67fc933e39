"""The interpreter: one step feeds one token of every running thread of every lane; a jitted loop repeats it.

A step (1) opens the chunk whose promise main is about to close, (2) picks the threads that feed, main first, then
chunks in spawn order, and gathers them into rows, (3) writes the rows' tokens to the next free slots, (4) runs the
model with each row attending to the slots that are visible to it (lang/structure.py::visible), (5) samples each row's
next token among those that its thread's state allows, and (6) advances the threads. Profiles show the steps' phases
under these names: open, pick, write, model, sample, advance.

A fork copies nothing and a join moves nothing: a thread is a few integers, and its tokens may be anywhere in the lane's
slots.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from pasta_jax.decode.grammar import allow, topic_after
from pasta_jax.decode.sampling import FORBIDDEN, draw
from pasta_jax.decode.state import BUDGET, DONE, ENDED, LENGTH, LIVE, OWN, STOP, DecodeState, Rules, Threads
from pasta_jax.decode.topics import completing, read_topic, text_kinds
from pasta_jax.lang.structure import Place, fork_position, resume_position, sync_position, visible
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.layers import Params
from pasta_jax.models.pool import Pool
from pasta_jax.models.transformer import Cache, logits, trunk


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Script:
    """Tokens to force: a thread's n-th token is tokens[lane, start[lane, thread] + n], unless that is -1."""

    tokens: jax.Array  # int32 [B, T]
    start: jax.Array  # int32 [B, M]


@dataclasses.dataclass(frozen=True)
class Rows:
    """The tokens one step feeds: R rows per lane, active rows first."""

    active: jax.Array  # bool [B, R]
    thread: jax.Array  # int32 [B, R]; M (out of range) in inactive rows
    token: jax.Array  # int32 [B, R]
    position: jax.Array  # int32 [B, R]
    main: jax.Array  # int32 [B, R]
    epoch: jax.Array  # int32 [B, R]
    slot: jax.Array  # int32 [B, R]; S (out of range) in inactive rows

    @property
    def place(self) -> Place:
        """Chunk, epoch and main of each row's token."""
        return Place(self.thread, self.epoch, self.main)


# A worked example with three rows. The prompt is one token; the answer, with empty topics, is
#
#     <promise tokens=1 /><async>abc</async><promise tokens=1 /><async>d</async><promise tokens=1 /><async>e</async>
#     <sync/>.
#
# Cells are thread:token@position. [P] stands for [PROMISE], [P:1] for [/PROMISE:1], [A] and [/A] for [ASYNC] and
# [/ASYNC], [S] for [SYNC]. `fill` counts the used slots after the step.
#
#     step  row 0     row 1     row 2     fill
#        1  0:[P]@1                          2
#        2  0:[P:1]@2 1:[A]@3                4   closing a promise opens its chunk in the same step
#        3  0:[P]@13  1:a@4                  6   main skips the 10 positions it has promised to chunk 1
#        4  0:[P:1]@14 1:b@5    2:[A]@15     9
#        5  0:[P]@25  1:c@6     2:d@16      12   both chunks sample [/ASYNC]: their status is now ENDED
#        6  0:[P:1]@26 1:[/A]@7 2:[/A]@17   15   chunk 3 opens and waits, since no row is free
#        7  3:[A]@27                        16   main waits before [SYNC]; active rows come first
#        8  3:e@28                          17
#        9  0:[S]@37  3:[/A]@29             19   [SYNC] is fed with the last [/ASYNC], and sees it
#       10  0:.@38                          20


def feeding(state: DecodeState, rules: Rules) -> tuple[jax.Array, jax.Array]:
    """Which threads feed in the next step, bool [B, M], and which lanes open a chunk in it, bool [B].

    Main waits before [SYNC] while a chunk is LIVE. Chunks take the R - 1 rows other than main's in spawn order, so
    chunks that have begun continue, and waiting chunks begin in order. A lane whose step does not fit in its slots
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


def open_chunk(state: DecodeState, opens_B: jax.Array, rules: Rules) -> DecodeState:
    """Add a thread to the lanes in `opens_B`: it begins with [ASYNC], at the promise that main closes in this step."""
    threads = state.threads
    lane = jnp.arange(state.lanes)
    new = jnp.where(opens_B, state.spawned + 1, threads.status.shape[1])  # out of range: dropped

    def put(field_BxM: jax.Array, value: jax.Array | int) -> jax.Array:
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
    return dataclasses.replace(state, threads=threads, spawned=state.spawned + opens_B)


def pick_rows(state: DecodeState, feeds_BxM: jax.Array, rules: Rules, width: int) -> Rows:
    """Gather the feeding threads into `width` rows."""
    threads = state.threads
    slots, out_of_range = state.pool.slots, feeds_BxM.shape[1]
    rank_BxM = jnp.cumsum(feeds_BxM, axis=1) - 1
    is_row_BxRxM = feeds_BxM[:, None, :] & (rank_BxM[:, None, :] == jnp.arange(width)[None, :, None])
    active = jnp.any(is_row_BxRxM, axis=2)
    thread = jnp.argmax(is_row_BxRxM, axis=2).astype(jnp.int32)

    def take(field_BxM: jax.Array) -> jax.Array:
        return jnp.take_along_axis(field_BxM, thread, axis=1)

    token, position = take(threads.token), take(threads.position)
    in_main = thread == 0
    joins = active & in_main & (token == rules.tags.sync)
    # Chunks that feed their last token in the same step as a [SYNC] come before it.
    beside = jnp.max(jnp.where(active & ~in_main, position, -1), axis=1)
    highest = jnp.maximum(state.highest, beside)[:, None]
    return Rows(
        active=active,
        thread=jnp.where(active, thread, out_of_range),
        token=token,
        position=jnp.where(joins, sync_position(position, highest, rules.positions), position),
        main=take(threads.main) + in_main,
        epoch=take(threads.epoch) + joins,
        slot=jnp.where(active, state.pool.fill[:, None] + jnp.arange(width)[None, :], slots),
    )


def write_rows(pool: Pool, rows: Rows, step_B: jax.Array) -> Pool:
    """Write the integers of each new slot; the model writes keys and values."""
    lane = jnp.arange(rows.slot.shape[0])[:, None]

    def put(field_BxS: jax.Array, value: jax.Array) -> jax.Array:
        return field_BxS.at[lane, rows.slot].set(value, mode="drop", unique_indices=True)

    return dataclasses.replace(
        pool,
        chunk=put(pool.chunk, rows.thread),
        epoch=put(pool.epoch, rows.epoch),
        main=put(pool.main, rows.main),
        position=put(pool.position, rows.position),
        token=put(pool.token, rows.token),
        step=put(pool.step, jnp.broadcast_to(step_B[:, None], rows.slot.shape)),
        fill=pool.fill + jnp.sum(rows.active, axis=1),
    )


def see_pool(pool: Pool, place: Place) -> jax.Array:
    """bool [B, R, S]: which written slots the tokens at these places [B, R] may attend to."""
    present = (jnp.arange(pool.slots)[None, :] < pool.fill[:, None])[:, None, :]
    return visible(present, place.queries(), pool.place.keys())


def next_tokens(
    params: Params,
    config: TransformerConfig,
    x_BxRxE: jax.Array,
    state: DecodeState,
    rules: Rules,
    rows: Rows,
    script: Script | None,
) -> tuple[jax.Array, jax.Array]:
    """Each row's next token, int32 [B, R], and whether the interpreter closed the row's full chunk, bool [B, R]."""
    threads = state.threads
    width = rows.token.shape[1]
    safe = jnp.minimum(rows.thread, threads.count.shape[1] - 1)
    count = jnp.take_along_axis(threads.count, safe, axis=1)
    in_main = rows.thread == 0
    full = ~in_main & (count >= state.request.max_chunk[:, None])

    def flat(field_BxR: jax.Array) -> jax.Array:
        return field_BxR.reshape(-1)

    def spread(field_B: jax.Array) -> jax.Array:
        return jnp.repeat(field_B, width, axis=0)

    request_N = jax.tree.map(spread, state.request)
    logits_NxV = logits(params, config, x_BxRxE).reshape(state.lanes * width, -1)
    topic_N, limits_N = spread(state.topic), (request_N.tags_allowed, request_N.max_topic)
    kinds = () if rules.topics is None else (spread(text_kinds(state)),)
    logits_NxV = allow(logits_NxV, rules, flat(in_main), topic_N, flat(full), *limits_N, *kinds)
    if rules.topics is not None:
        repeats_NxV = spread(completing(state, logits_NxV.shape[1], rules)) & flat(in_main)[:, None]
        logits_NxV = jnp.where(repeats_NxV, FORBIDDEN, logits_NxV)
    token_N = draw(logits_NxV, request_N.sampling, flat(rows.thread), flat(count))
    token = token_N.reshape(rows.token.shape)
    if script is None:
        return token, full
    at = jnp.take_along_axis(script.start, safe, axis=1) + count
    scripted = jnp.take_along_axis(script.tokens, jnp.clip(at, 0, script.tokens.shape[1] - 1), axis=1)
    return jnp.where(scripted >= 0, scripted, token), full & (scripted < 0)


def advance(state: DecodeState, rows: Rows, next_token: jax.Array, closed_full: jax.Array, rules: Rules) -> DecodeState:
    """Move the threads that fed to their next token, and finish the lanes that are done."""
    threads, tags = state.threads, rules.tags
    in_main = rows.active & (rows.thread == 0)
    in_chunk = rows.active & (rows.thread != 0)
    fed_end = in_chunk & (rows.token == tags.end_async)  # what it samples is discarded
    stops = functools.reduce(jnp.logical_or, [next_token == stop for stop in rules.stop_ids])
    ends = in_chunk & ~fed_end & (next_token == tags.end_async)
    status = jnp.where(fed_end | (in_main & stops), DONE, jnp.where(ends, ENDED, LIVE))
    following = rows.position + 1
    closes = in_main & tags.is_close(rows.token)
    resumed = resume_position(rows.position, tags.tens(rows.token), rules.positions)
    lane = jnp.arange(state.lanes)[:, None]

    def put(field_BxM: jax.Array, value: jax.Array) -> jax.Array:
        return field_BxM.at[lane, rows.thread].set(value, mode="drop", unique_indices=True)

    safe = jnp.minimum(rows.thread, threads.count.shape[1] - 1)
    count = jnp.take_along_axis(threads.count, safe, axis=1)
    closed = jnp.take_along_axis(threads.closed, safe, axis=1)
    threads = Threads(
        status=put(threads.status, status),
        token=put(threads.token, next_token),
        position=put(threads.position, jnp.where(closes, resumed, following)),
        main=put(threads.main, jnp.where(in_main, rows.main, jnp.take_along_axis(threads.main, safe, axis=1))),
        epoch=put(threads.epoch, rows.epoch),
        count=put(threads.count, count + 1),
        closed=put(threads.closed, jnp.where(ends, jnp.where(closed_full, BUDGET, OWN), closed)),
    )
    chunk_is_live = jnp.any((threads.status == LIVE).at[:, 0].set(False), axis=1)
    done = state.live & (threads.status[:, 0] == DONE) & ~chunk_is_live
    return dataclasses.replace(
        state,
        threads=threads,
        highest=jnp.maximum(state.highest, jnp.max(jnp.where(rows.active, rows.position, -1), axis=1)),
        live=state.live & ~done,
        finish=jnp.where(done, STOP, state.finish),
    )


def step(
    params: Params,
    state: DecodeState,
    config: TransformerConfig,
    rules: Rules,
    width: int,
    script: Script | None = None,
) -> DecodeState:
    """One step of every live lane. `width` must hold the fullest lane's threads (`rows_needed`)."""
    with jax.named_scope("open"):
        feeds_BxM, opens_B = feeding(state, rules)
        runs_B = jnp.any(feeds_BxM, axis=1)
        # A live lane always has a thread that could feed: if none does, the step did not fit.
        state = dataclasses.replace(
            state,
            live=state.live & runs_B,
            finish=jnp.where(state.live & ~runs_B, LENGTH, state.finish),
            step=state.step + runs_B,
        )
        state = open_chunk(state, opens_B, rules)
    with jax.named_scope("pick"):
        rows = pick_rows(state, feeds_BxM, rules, width)
    with jax.named_scope("write"):
        pool = write_rows(state.pool, rows, state.step)
    with jax.named_scope("model"):
        # Inactive rows see nothing, and no row sees them.
        see_BxRxS = see_pool(pool, rows.place) & rows.active[:, :, None]
        cache = Cache(pool.kv, rows.slot, prefixes=rules.prefixes, fill=jnp.max(jnp.where(runs_B, pool.fill, 0)))
        x_BxRxE, kv = trunk(params, config, rows.token, rows.position, see_BxRxS, pool.position, cache)
        hidden = state.hidden
        if hidden is not None:
            at = jnp.arange(state.lanes)[:, None], rows.slot
            hidden = hidden.at[at].set(x_BxRxE, mode="drop", unique_indices=True)
        state = dataclasses.replace(state, pool=dataclasses.replace(pool, kv=kv), hidden=hidden)
    with jax.named_scope("sample"):
        fed_by_main = jnp.any(rows.active & (rows.thread == 0), axis=1)
        main_token = rows.token[:, 0]  # if main feeds, it feeds in the first row
        topic_B = jnp.where(fed_by_main, topic_after(state.topic, main_token, rules.tags), state.topic)
        topics = state.topics
        if rules.topics is not None:
            topics = read_topic(state, topic_B, fed_by_main, main_token, opens_B, rules)
        state = dataclasses.replace(state, topic=topic_B, topics=topics)
        next_token, closed_full = next_tokens(params, config, x_BxRxE, state, rules, rows, script)
    with jax.named_scope("advance"):
        return advance(state, rows, next_token, closed_full, rules)


@jax.named_scope("count_rows")
def rows_needed(state: DecodeState, rules: Rules) -> jax.Array:
    """Threads that the fullest lane feeds in the next step."""
    return jnp.max(jnp.sum(feeding(state, rules)[0], axis=1))


@functools.partial(jax.jit, static_argnames=("config", "rules"), donate_argnames="state")
def run(
    params: Params,
    state: DecodeState,
    steps: jax.Array,
    until_lane_ends: jax.Array,
    config: TransformerConfig,
    rules: Rules,
    script: Script | None = None,
) -> DecodeState:
    """Decode for at most `steps` steps, until no lane is live, or with `until_lane_ends` until any lane is done."""
    lanes_live = jnp.sum(state.live)
    Carry = tuple[DecodeState, jax.Array]  # the state, and the steps done

    def continues(carry: Carry) -> jax.Array:
        state, done = carry
        lane_ended = until_lane_ends & (jnp.sum(state.live) < lanes_live)
        return jnp.any(state.live) & (done < steps) & ~lane_ended

    def loop_of(width: int, narrower: int) -> Callable[[Carry], Carry]:
        def fits(carry: Carry) -> jax.Array:
            needed = rows_needed(carry[0], rules)
            return continues(carry) & (needed <= width) & (needed > narrower)

        def body(carry: Carry) -> Carry:
            state, done = carry
            return step(params, state, config, rules, width, script), done + 1

        return lambda carry: lax.while_loop(fits, body, carry)

    # A lane that no longer fits needs no row: the narrowest loop takes its last step.
    narrower = (-1, *rules.widths[:-1])
    loops = [loop_of(width, below) for width, below in zip(rules.widths, narrower, strict=True)]

    def all_widths(carry: Carry) -> Carry:
        for loop in loops:
            carry = loop(carry)
        return carry

    return lax.while_loop(continues, all_widths, (state, jnp.int32(0)))[0]
