"""Which threads feed when lanes share a step's rows: each lane's first, then others while they pay.

A step computes one of a few numbers of rows, `LoopSpec.sizes`, whose times are measured (cost.py). A lane always feeds
one thread, so that no request waits for another's chunks: it is then as fast as if it wrote them one after another. Of
the sizes that hold these, the step has the one at which it feeds most rows per second, if that is a tenth more: a wide
step that is half empty, or as dear as two narrow ones, only delays its neighbours. The other rows go to chunks that
have begun, then to those with the longest promise, since the longest decides when main can go on. A chunk that is not
fed waits, as it does for a row of its own lane; only steps are counted anew.
"""

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.decode.state import ENDED, DecodeState, LoopSpec
from pasta_jax.lang.tags import MAX_TENS

PAYS = 1.1  # rows per second that a wider step must gain; drafts must save as much of a step's time

# What comes first within a lane and among all lanes; a promise counts within a kind.
_LAST, _WAITING, _BEGUN, _ENDED, _MAIN, _FIRST = (kind * (MAX_TENS + 1) for kind in (-1, 0, 1, 2, 3, 4))


def no_prices(priced_rows: tuple[int, ...]) -> np.ndarray:
    """Prices at which every chunk begins at once: each more is half as dear."""
    return 2.0 ** -np.arange(len(priced_rows), dtype=np.float32)


def price_of(rows: jax.Array, prices: jax.Array, spec: LoopSpec) -> jax.Array:
    """Milliseconds of a step with so many rows; infinite beyond the widest.

    Our kernels skip rows that nothing feeds, so that within a size the time grows with the rows that are fed. XLA's
    products compute all rows of a size: its two prices are then equal, and so is what lies between them.
    """
    priced = jnp.asarray(spec.priced_rows, jnp.float32)
    between = jnp.interp(rows.astype(jnp.float32), priced, prices)
    return jnp.where(rows <= spec.sizes[-1], between, jnp.inf)


def window(feeds_BxM: jax.Array, width: int) -> tuple[jax.Array, jax.Array]:
    """The first `width` feeding threads of each lane: whether there are as many, bool [B, R], and which they are."""
    rank_BxM = jnp.cumsum(feeds_BxM, axis=1) - 1
    is_row_BxRxM = feeds_BxM[:, None, :] & (rank_BxM[:, None, :] == jnp.arange(width)[None, :, None])
    return jnp.any(is_row_BxRxM, axis=2), jnp.argmax(is_row_BxRxM, axis=2).astype(jnp.int32)


def room_for(least: jax.Array, most: jax.Array, prices: jax.Array, spec: LoopSpec) -> jax.Array:
    """Rows of a step that feeds at least one thread of each lane and at most all: int32 scalars."""
    size_C = jnp.asarray(spec.sizes)
    fed_C = jnp.minimum(size_C, most)
    rate_C = jnp.where(size_C >= least, fed_C / price_of(fed_C, prices, spec), 0.0)
    narrowest = jnp.argmax(size_C >= least)
    best = jnp.argmax(rate_C)
    return size_C[jnp.where(rate_C[best] >= PAYS * rate_C[narrowest], best, narrowest)]


def admitted(state: DecodeState, feeds_BxM: jax.Array, opens_B: jax.Array, spec: LoopSpec) -> jax.Array:
    """Those of the threads that could feed for which the step has room; `opens`: main opens the lane's newest chunk."""
    threads, lanes = state.threads, feeds_BxM.shape[0]
    active, thread = window(feeds_BxM, spec.rows)

    def take(field_BxM: jax.Array) -> jax.Array:
        return jnp.take_along_axis(field_BxM, thread, axis=1)

    token_B, status, in_main = threads.token[:, 0], take(threads.status), thread == 0
    is_new = opens_B[:, None] & (thread == state.spawned[:, None] + 1)
    tens = jnp.where(is_new, spec.tags.tens(token_B)[:, None], take(threads.tens))
    begun = (take(threads.count) > 0) & ~is_new
    # [SYNC] must see the last [/ASYNC]: a main at [SYNC] feeds after its chunks, or with them.
    main_key = jnp.where(token_B == spec.tags.sync, _LAST, _MAIN)[:, None]
    chunk_key = tens + jnp.where(begun & (status == ENDED), _ENDED, jnp.where(begun, _BEGUN, _WAITING))
    key = jnp.where(active, jnp.where(in_main, main_key, chunk_key), 2 * _LAST)
    is_first = active & (jnp.arange(spec.rows)[None, :] == jnp.argmax(key, axis=1)[:, None])
    key_N = jnp.where(is_first, _FIRST, key).reshape(-1)
    index_N = jnp.arange(key_N.size)
    before_NxN = (key_N[None, :] > key_N[:, None]) | (
        (key_N[None, :] == key_N[:, None]) & (index_N[None, :] < index_N[:, None])
    )
    room = room_for(jnp.sum(jnp.any(active, axis=1)), jnp.sum(active), state.prices, spec)
    fed = active & (jnp.sum(before_NxN, axis=1) < room).reshape(active.shape)
    lane, at = jnp.arange(lanes)[:, None], jnp.where(active, thread, feeds_BxM.shape[1])
    return feeds_BxM & jnp.zeros_like(feeds_BxM).at[lane, at].set(fed, mode="drop")
