"""Which threads feed a token in a step, gathered into rows, and the slots that the rows' tokens are written to."""

import dataclasses

import jax
import jax.numpy as jnp

from pasta_jax.decode.admission import admitted, window
from pasta_jax.decode.state import ENDED, LIVE, DecodeState, LoopSpec
from pasta_jax.lang.structure import Place, fork_position, sync_position, visible
from pasta_jax.models.mask import EVERYTHING, PoolSpec
from pasta_jax.models.pool import Pool, put


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
    # int32 [B, R]: tokens that the thread feeds before this one in the same step: 0 but for drafts. None: no drafts.
    ahead: jax.Array | None = None

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


def feeding(state: DecodeState, spec: LoopSpec) -> tuple[jax.Array, jax.Array]:
    """Which threads feed in the next step, bool [B, M], and which lanes open a chunk in it, bool [B].

    Main waits before [SYNC] while a chunk is LIVE. Chunks take the R - 1 rows other than main's in spawn order, so
    chunks that have begun continue, and waiting chunks begin in order; where a step's rows are limited, of these those
    that have room (admission.py). A lane whose step does not fit in its slots feeds nothing: there, also a chunk that
    has no room yet needs a slot, so that main can't promise more chunks than there are threads (max_threads).
    """
    threads, tags = state.threads, spec.tags
    token, status = threads.token[:, 0], threads.status[:, 0]
    unfinished_BxM = (threads.status == LIVE).at[:, 0].set(False)
    waits = (token == tags.sync) & jnp.any(unfinished_BxM, axis=1)
    main = state.live & (status == LIVE) & ~waits
    opens = main & tags.is_close(token) & (state.topic >= 0)
    chunks_BxM = (threads.status == LIVE) | (threads.status == ENDED)
    chunks_BxM = chunks_BxM.at[:, 0].set(False)
    is_new_BxM = jnp.arange(chunks_BxM.shape[1])[None, :] == state.spawned[:, None] + 1
    is_new_BxM = opens[:, None] & is_new_BxM
    chunks_BxM = (chunks_BxM | is_new_BxM) & state.live[:, None]
    waits_BxM = chunks_BxM & (is_new_BxM | (threads.count == 0))
    room_B = jnp.full(state.lanes, spec.rows - 1)
    if state.guests is not None:
        room_B = room_B + (state.guests.count > 0)  # main's row: it writes nothing beside guests
        waits_BxM &= (state.guests.count == 0)[:, None]
    chunks_BxM = chunks_BxM & (jnp.cumsum(chunks_BxM, axis=1) <= room_B[:, None])
    feeds_BxM = chunks_BxM.at[:, 0].set(main)
    if spec.priced:
        feeds_BxM = admitted(state, feeds_BxM, opens, spec)
    taken_BxM = (feeds_BxM | waits_BxM) if spec.priced else feeds_BxM
    fits = state.pool.fill + jnp.sum(taken_BxM, axis=1) <= state.request.limit
    return feeds_BxM & fits[:, None], opens & fits


def open_chunk(state: DecodeState, opens_B: jax.Array, spec: LoopSpec) -> DecodeState:
    """Add a thread to the lanes in `opens_B`: it begins with [ASYNC], at the promise that main closes in this step."""
    threads = state.threads
    new = jnp.where(opens_B, state.spawned + 1, threads.status.shape[1])  # out of range: dropped
    threads = put(
        threads,
        (jnp.arange(state.lanes), new),
        status=LIVE,
        token=spec.tags.async_,
        position=fork_position(threads.position[:, 0]),
        main=threads.main[:, 0] + 1,  # the promise's last token counts
        epoch=threads.epoch[:, 0],
        count=0,
        closed=0,
        tens=spec.tags.tens(threads.token[:, 0]),
    )
    return dataclasses.replace(state, threads=threads, spawned=state.spawned + opens_B)


def pick_rows(state: DecodeState, feeds_BxM: jax.Array, spec: LoopSpec, width: int) -> Rows:
    """Gather the feeding threads into `width` rows."""
    threads = state.threads
    slots, out_of_range = state.pool.slots, feeds_BxM.shape[1]
    active, thread = window(feeds_BxM, width)

    def take(field_BxM: jax.Array) -> jax.Array:
        return jnp.take_along_axis(field_BxM, thread, axis=1)

    token, position = take(threads.token), take(threads.position)
    in_main = thread == 0
    joins = active & in_main & (token == spec.tags.sync)
    # Chunks that feed their last token in the same step as a [SYNC] come before it.
    beside = jnp.max(jnp.where(active & ~in_main, position, -1), axis=1)
    highest = jnp.maximum(state.highest, beside)[:, None]
    return Rows(
        active=active,
        thread=jnp.where(active, thread, out_of_range),
        token=token,
        position=jnp.where(joins, sync_position(position, highest, spec.positions), position),
        main=take(threads.main) + in_main,
        epoch=take(threads.epoch) + joins,
        slot=jnp.where(active, state.pool.fill[:, None] + jnp.arange(width)[None, :], slots),
    )


def write_rows(pool: Pool, rows: Rows, step_B: jax.Array) -> Pool:
    """Write the integers of each new slot; the model writes keys and values."""
    pool = put(
        pool,
        (jnp.arange(rows.slot.shape[0])[:, None], rows.slot),
        chunk=rows.thread,
        epoch=rows.epoch,
        main=rows.main,
        position=rows.position,
        token=rows.token,
        step=jnp.broadcast_to(step_B[:, None], rows.slot.shape),
    )
    return dataclasses.replace(pool, fill=pool.fill + jnp.sum(rows.active, axis=1))


def end_of(pool: Pool, rows: Rows) -> jax.Array | None:
    """int32 [B, R]: no row sees this slot or a later one. Drafts come last, and a row sees only those before it."""
    if rows.ahead is None:
        return None
    return pool.fill[:, None] - jnp.max(rows.ahead, axis=1, keepdims=True) + rows.ahead


def see_pool(pool: Pool, place: Place, end_BxR: jax.Array | None = None) -> jax.Array:
    """bool [B, R, S]: which written slots the tokens at these places [B, R] may attend to; before `end`, if given."""
    slot_1xS, fill_Bx1 = jnp.arange(pool.slots)[None, :], pool.fill[:, None]
    present = (slot_1xS < fill_Bx1)[:, None, :] if end_BxR is None else slot_1xS[None] < end_BxR[:, :, None]
    return visible(present, place.queries(), pool.place.keys())


def spec_pool(pool: Pool, rows: Rows) -> PoolSpec:
    """The same for a step's rows, as the integers that it is computed from; rows that don't feed see nothing."""
    epoch, main = (jnp.where(rows.active, field, -1) for field in (rows.epoch, rows.main))
    return PoolSpec(
        row=Place(rows.thread, epoch, main),
        row_position=rows.position,
        slot=pool.place,
        slot_position=pool.position,
        window=jnp.int32(EVERYTHING),
        begin=jnp.zeros_like(pool.fill),
        end=jnp.where(jnp.any(rows.active, axis=1), pool.fill, 0),
        lowest=jnp.min(jnp.where(rows.active, rows.position, EVERYTHING), axis=1),
        row_end=end_of(pool, rows),
    )
