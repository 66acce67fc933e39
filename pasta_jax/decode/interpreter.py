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

from pasta_jax.decode.drafts import keep, propose, with_drafts, with_promise
from pasta_jax.decode.extras import keep_scores
from pasta_jax.decode.grammar import topic_after
from pasta_jax.decode.guesses import Guesser
from pasta_jax.decode.guests import Guests, follow
from pasta_jax.decode.next_token import next_token
from pasta_jax.decode.rows import Rows, end_of, feeding, open_chunk, pick_rows, see_pool, spec_pool, write_rows
from pasta_jax.decode.state import BUDGET, DONE, ENDED, LENGTH, LIVE, OPEN, OWN, STOP, DecodeState, LoopSpec, Threads
from pasta_jax.decode.topics import read_topic
from pasta_jax.lang.structure import resume_position
from pasta_jax.models.adapters import choose
from pasta_jax.models.attention import Cache
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.kernels.cpu.calls import by_thread
from pasta_jax.models.parameters import Params
from pasta_jax.models.pool import put
from pasta_jax.models.ragged import Packed
from pasta_jax.models.transformer import logits, trunk, uses_kernels


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Script:
    """Tokens to force: a thread's n-th token is tokens[lane, start[lane, thread] + n], unless that is -1."""

    tokens: jax.Array  # int32 [B, T]
    start: jax.Array  # int32 [B, M]


def forced(
    script: Script, threads: Threads, rows: Rows, token: jax.Array, full: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The script's tokens [B, R] in place of sampled ones, and whether the interpreter closed the row's full chunk."""
    safe = jnp.minimum(rows.thread, threads.count.shape[1] - 1)
    at = jnp.take_along_axis(script.start + threads.count, safe, axis=1)
    at = at if rows.ahead is None else at + rows.ahead
    scripted = jnp.take_along_axis(script.tokens, jnp.clip(at, 0, script.tokens.shape[1] - 1), axis=1)
    return jnp.where(scripted >= 0, scripted, token), full & (scripted < 0)


def advance(
    state: DecodeState, rows: Rows, next_token: jax.Array, closed_full: jax.Array, spec: LoopSpec
) -> DecodeState:
    """Move the threads that fed to their next token, and finish the lanes that are done."""
    threads, tags = state.threads, spec.tags
    in_main = rows.active & (rows.thread == 0)
    in_chunk = rows.active & (rows.thread != 0)
    fed_end = in_chunk & (rows.token == tags.end_async)  # what it samples is discarded
    stops = functools.reduce(jnp.logical_or, [next_token == stop for stop in spec.stop_ids])
    ends = in_chunk & ~fed_end & (next_token == tags.end_async)
    status = jnp.where(fed_end | (in_main & stops), DONE, jnp.where(ends, ENDED, LIVE))
    closes = in_main & tags.is_close(rows.token)
    resumed = resume_position(rows.position, tags.tens(rows.token), spec.positions)
    safe = jnp.minimum(rows.thread, threads.count.shape[1] - 1)
    count = jnp.take_along_axis(threads.count, safe, axis=1)
    count = count if rows.ahead is None else count + rows.ahead
    closed = jnp.take_along_axis(threads.closed, safe, axis=1)
    closed = jnp.where(ends, jnp.where(closed_full, BUDGET, OWN), closed)
    guests = state.guests
    if guests is not None:
        is_guest = in_chunk & (guests.count > 0)[:, None]
        guests, is_complete = followed(guests, rows, next_token)
        cut = count >= guests.budget[:, None]  # this token is one too many; a stop id is none of the answer
        own = stops | (is_complete & ~cut)
        status = jnp.where(is_guest, jnp.where(own | cut, DONE, LIVE), status)
        closed = jnp.where(is_guest, jnp.where(own, OWN, jnp.where(cut, BUDGET, OPEN)), closed)
    threads = put(
        threads,
        (jnp.arange(state.lanes)[:, None], rows.thread),
        status=status,
        token=next_token,
        position=jnp.where(closes, resumed, rows.position + 1),
        main=jnp.where(in_main, rows.main, jnp.take_along_axis(threads.main, safe, axis=1)),
        epoch=rows.epoch,
        count=count + 1,
        closed=closed,
    )
    chunk_is_live = jnp.any((threads.status == LIVE).at[:, 0].set(False), axis=1)
    done = state.live & (threads.status[:, 0] == DONE) & ~chunk_is_live
    return dataclasses.replace(
        state,
        threads=threads,
        guests=guests,
        highest=jnp.maximum(state.highest, jnp.max(jnp.where(rows.active, rows.position, -1), axis=1)),
        live=state.live & ~done,
        finish=jnp.where(done, STOP, state.finish),
    )


def followed(guests: Guests, rows: Rows, next_token: jax.Array) -> tuple[Guests, jax.Array]:
    """The guests after what their rows have sampled, and whether a row's value is complete, bool [B, R]."""
    lanes, width = rows.thread.shape
    lane_N, thread_N = jnp.repeat(jnp.arange(lanes), width), rows.thread.reshape(-1)
    ends = follow(guests, lane_N, thread_N, next_token.reshape(-1))
    state, chars, is_complete = (field_N.reshape(lanes, width) for field_N in ends)
    return put(guests, (jnp.arange(lanes)[:, None], rows.thread), state=state, chars=chars), is_complete


def step(
    params: Params,
    state: DecodeState,
    config: TransformerConfig,
    spec: LoopSpec,
    size: int,
    script: Script | None = None,
) -> DecodeState:
    """One step of every live lane. `size` must hold its rows (`rows_needed`): those of a lane, or all if packed."""
    with jax.named_scope("open"):
        feeds_BxM, opens_B = feeding(state, spec)
        runs_B = jnp.any(feeds_BxM, axis=1)
        # A live lane always has a thread that could feed: if none does, the step did not fit.
        state = dataclasses.replace(
            state,
            live=state.live & runs_B,
            finish=jnp.where(state.live & ~runs_B, LENGTH, state.finish),
            step=state.step + runs_B,
        )
        state = open_chunk(state, opens_B, spec)
    with jax.named_scope("pick"):
        rows = pick_rows(state, feeds_BxM, spec, width=spec.rows if spec.packed else size)
        rows = rows if state.drafts is None else with_drafts(state, rows, spec)
        packed = Packed.of(rows.active, size) if spec.packed and size < rows.active.size else None
        # Rows that don't feed have none.
        adapter_BxR = jnp.where(rows.active, state.request.adapter[:, None], 0)
        all_params = params
        params = choose(params, adapter_BxR.reshape(-1) if packed is None else packed.pack(adapter_BxR))
    with jax.named_scope("write"):
        pool = write_rows(state.pool, rows, state.step)
    with jax.named_scope("model"):
        # Inactive rows see nothing, and no row sees them.
        see = spec_pool(pool, rows) if spec.kernel else see_pool(pool, rows.place, end_of(pool, rows))
        see = see if spec.kernel else see & rows.active[:, :, None]
        fill = jnp.max(jnp.where(runs_B, pool.fill, 0))
        order = by_thread(pool.chunk) if uses_kernels(params) else None
        cache = Cache(pool.kv, rows.slot, prefixes=spec.prefixes, fill=fill, packed=packed, order_LxS=order)
        x_BxRxE, kv = trunk(params, config, rows.token, rows.position, see, pool.position, cache)
        hidden = state.hidden
        if hidden is not None:
            at = jnp.arange(state.lanes)[:, None], rows.slot
            states_BxRxE = x_BxRxE if packed is None else packed.spread(x_BxRxE[0], state.lanes)
            hidden = hidden.at[at].set(states_BxRxE, mode="drop", unique_indices=True)
        state = dataclasses.replace(state, pool=dataclasses.replace(pool, kv=kv), hidden=hidden)
    with jax.named_scope("sample"):
        fed_by_main = jnp.any(rows.active & (rows.thread == 0), axis=1)
        main_token = rows.token[:, 0]  # if main feeds, it feeds in the first row
        topic_B = jnp.where(fed_by_main, topic_after(state.topic, main_token, spec.tags), state.topic)
        topics = state.topics
        if spec.topics is not None:
            topics = read_topic(state, topic_B, fed_by_main, main_token, opens_B, spec)
        state = dataclasses.replace(state, topic=topic_B, topics=topics)
        # If rows are packed, `x` holds those: [1, C, E].
        logits_NxV = logits(params, config, x_BxRxE).reshape(x_BxRxE.shape[0] * x_BxRxE.shape[1], -1)
        drafted = state if state.drafts is None else with_promise(state, rows, spec)
        has_drafts = None if state.drafts is None else rows
        token_BxR, full_BxR, scores = next_token(
            drafted, spec, logits_NxV, rows.slot, packed, has_drafts, uses_kernels(params)
        )
        if scores is not None:
            at = jnp.arange(state.lanes)[:, None], rows.slot
            state = dataclasses.replace(state, extras=keep_scores(state.extras, at, scores))
        if script is not None:
            token_BxR, full_BxR = forced(script, state.threads, rows, token_BxR, full_BxR)
    with jax.named_scope("advance"):
        if state.drafts is not None:
            state, rows = keep(state, drafted, rows, token_BxR)
        state = advance(state, rows, token_BxR, full_BxR, spec)
    with jax.named_scope("draft"):
        if state.drafts is None:
            return state
        guesser = None
        if spec.drafter:
            x_BxRxE = x_BxRxE if packed is None else packed.spread(x_BxRxE[0], state.lanes)
            guesser = Guesser(choose(all_params, state.request.adapter), config, rows, x_BxRxE)
        return dataclasses.replace(state, drafts=propose(state, spec, guesser))


@jax.named_scope("count_rows")
def rows_needed(state: DecodeState, spec: LoopSpec) -> jax.Array:
    """Rows of the next step: of all lanes if rows are packed, else of the lane with the most."""
    rows_B = jnp.sum(feeding(state, spec)[0], axis=1)
    if state.drafts is not None:
        rows_B = rows_B + jnp.where(rows_B > 0, state.drafts.count, 0)
    return jnp.sum(rows_B) if spec.packed else jnp.max(rows_B)


@functools.partial(jax.jit, static_argnames=("config", "spec"), donate_argnames="state")
def run(
    params: Params,
    state: DecodeState,
    steps: jax.Array,
    until_lane_ends: jax.Array,
    config: TransformerConfig,
    spec: LoopSpec,
    script: Script | None = None,
) -> DecodeState:
    """Decode for at most `steps` steps, until no lane is live, or with `until_lane_ends` until any lane is done."""
    lanes_live = jnp.sum(state.live)
    Carry = tuple[DecodeState, jax.Array]  # the state, and the steps done

    def continues(carry: Carry) -> jax.Array:
        state, done = carry
        lane_ended = until_lane_ends & (jnp.sum(state.live) < lanes_live)
        return jnp.any(state.live) & (done < steps) & ~lane_ended

    def loop_of(size: int, smaller: int) -> Callable[[Carry], Carry]:
        def fits(carry: Carry) -> jax.Array:
            needed = rows_needed(carry[0], spec)
            return continues(carry) & (needed <= size) & (needed > smaller)

        def body(carry: Carry) -> Carry:
            state, done = carry
            return step(params, state, config, spec, size, script), done + 1

        return lambda carry: lax.while_loop(fits, body, carry)

    # A lane that no longer fits needs no row: the smallest loop takes its last step.
    loops = [loop_of(size, smaller) for size, smaller in zip(spec.sizes, (-1, *spec.sizes[:-1]), strict=True)]

    def all_sizes(carry: Carry) -> Carry:
        for loop in loops:
            carry = loop(carry)
        return carry

    return lax.while_loop(continues, all_sizes, (state, jnp.int32(0)))[0]
