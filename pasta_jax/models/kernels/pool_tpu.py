"""TPU kernel for decoding: the rows of a lane attend to its pool, and only blocks of slots that they can see are read.

It computes what attention.attention does under the mask of a PoolSpec, with the softmax accumulated over blocks of
slots as in FlashAttention (Dao et al., 2022). The pool stays where it is, all layers in one array: a block of one layer
is copied to the core while the block before it is used. The grid ends with the fullest lane's last block; a shorter
lane repeats its own last block, which is not copied again.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pasta_jax.lang.structure import Place, visible
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.kernels.flash_tpu import TILE, dot
from pasta_jax.models.mask import HIDDEN, PoolSpec
from pasta_jax.models.pool import KV, write_kv
from pasta_jax.models.sharding import on_each_device

LONGEST = 512  # slots of a block, at most: half of a lane's last block is read for nothing, on average
BLOCK_BYTES = 2**20  # of a block's keys, and of its values; both are in the core twice


def write_and_attend(
    config: TransformerConfig,
    q_BxRxKxGxD,
    k_BxRxKxD,
    v_BxRxKxD,
    kv: KV,
    l,
    slots_BxR,
    spec: PoolSpec,
    sinks_KxG=None,
):
    """Write keys and values to layer l of the pool [L, B, K, S, D]; the result of attention to it, and the pool.

    Equals `attention.attention`, but for zeros in rows that see nothing. Each device writes its own heads: left to
    XLA, TPU7x gathers all heads' keys and values in every layer.
    """
    if sinks_KxG is None:
        sinks_KxG = jnp.full(q_BxRxKxGxD.shape[2:4], HIDDEN)
    of_spec = jax.tree.map(lambda field: ("", "b", "br")[field.ndim], spec)
    return on_each_device(
        functools.partial(_write_and_attend, config),
        ("brkgd", "brkd", "brkd", ("lbksd", "lbksd"), "x", "br", of_spec, "kg"),
        ("brkgd", ("lbksd", "lbksd")),
        q_BxRxKxGxD,
        k_BxRxKxD,
        v_BxRxKxD,
        kv,
        jnp.asarray(l, jnp.int32)[None],
        slots_BxR,
        spec,
        sinks_KxG,
    )


def _write_and_attend(config, q_BxRxKxGxD, k_BxRxKxD, v_BxRxKxD, kv, l, slots_BxR, spec: PoolSpec, sinks_KxG):
    with jax.named_scope("write"):
        kv = write_kv(kv, l[0], None, slots_BxR, k_BxRxKxD, v_BxRxKxD)
    lanes, rows, heads, groups, size = q_BxRxKxGxD.shape
    q_BxKxRxGxD = jnp.moveaxis(q_BxRxKxGxD * config.score_scale, 1, 2)
    ends = [] if spec.row_end is None else [spec.row_end]
    row_BxRxI = jnp.stack([*spec.row, spec.row_position, *ends], axis=2)
    out_BxKxNxD = _attend(
        config.attention_cap,
        q_BxKxRxGxD.reshape(lanes, heads, rows * groups, size),
        *kv,
        jnp.repeat(row_BxRxI, groups, axis=1),
        jnp.stack([*spec.slot, spec.slot_position], axis=1),
        spec.begin,
        spec.end,
        spec.window[None],
        l,
        jnp.tile(sinks_KxG.astype(jnp.float32), rows)[..., None],  # [K, N, 1]
    )
    return jnp.moveaxis(out_BxKxNxD.reshape(lanes, heads, rows, groups, size), 2, 1), kv


def block_of(slots: int, slot_bytes: int) -> int:
    """Slots of a block: a power of two of tiles that divides the pool and fits; `slot_bytes` is one slot's keys."""
    block = TILE
    while slots % (2 * block) == 0 and 2 * block <= min(LONGEST, BLOCK_BYTES // slot_bytes):
        block *= 2
    return block


def _attend(cap, q_BxKxNxD, k_LxBxKxSxD, v_LxBxKxSxD, row_BxNxI, slot_Bx4xS, begin_B, end_B, window, l, sinks_KxNx1):
    """One device's lanes and heads. N counts the rows' query heads of one key/value head."""
    lanes, heads, queries, size = q_BxKxNxD.shape
    slots = k_LxBxKxSxD.shape[3]
    # A TPU stores an array whose last axis is shorter than a tile with the axis before it last: transposed, the pool
    # stays as it is.
    transposed = size < TILE
    if transposed:
        k_LxBxKxSxD, v_LxBxKxSxD = (jnp.swapaxes(pool, 3, 4) for pool in (k_LxBxKxSxD, v_LxBxKxSxD))
    block = block_of(slots, heads * size * k_LxBxKxSxD.dtype.itemsize)
    first_B, stop_B = begin_B // block, (end_B + block - 1) // block
    longest = jnp.max(jnp.maximum(stop_B - first_B, 1))

    def at(b, s, first, stop, *_):
        return jnp.maximum(jnp.minimum(first[b] + s, stop[b] - 1), 0)

    def in_pool(b, s, first, stop, end, window, l):
        which = at(b, s, first, stop)
        return (l[0], b, 0, 0, which) if transposed else (l[0], b, 0, which, 0)

    def per_head(b, s, *_):
        return b, 0, 0, 0

    pool = pl.BlockSpec((None, None, heads, *((size, block) if transposed else (block, size))), in_pool)
    return pl.pallas_call(
        functools.partial(_kernel, cap, block, transposed),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=5,
            grid=(lanes, longest),
            in_specs=[
                pl.BlockSpec((heads, queries, 1), lambda b, s, *_: (0, 0, 0)),
                pl.BlockSpec((None, *row_BxNxI.shape[1:]), lambda b, s, *_: (b, 0, 0)),
                pl.BlockSpec((None, 4, block), lambda b, s, first, stop, *_: (b, 0, at(b, s, first, stop))),
                pl.BlockSpec((None, heads, queries, size), per_head),
                pool,
                pool,
            ],
            out_specs=pl.BlockSpec((None, heads, queries, size), per_head),
            scratch_shapes=[
                pltpu.VMEM((heads, queries, 1), jnp.float32),
                pltpu.VMEM((heads, queries, 1), jnp.float32),
                pltpu.VMEM((heads, queries, size), jnp.float32),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(q_BxKxNxD.shape, v_LxBxKxSxD.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        name="pool_kernel",
    )(first_B, stop_B, end_B, window, l, sinks_KxNx1, row_BxNxI, slot_Bx4xS, q_BxKxNxD, k_LxBxKxSxD, v_LxBxKxSxD)


def _see(block: int, at, end, window, row_NxI, slot_4xS):
    """bool [N, S]: which slots of the block the rows may read."""
    slot_1xS = at * block + lax.broadcasted_iota(jnp.int32, (1, block), 1)
    *row_place, row_position = (row_NxI[:, c : c + 1] for c in range(4))
    end = end if row_NxI.shape[1] == 4 else row_NxI[:, 4:]
    *slot_place, slot_position = (slot_4xS[c : c + 1] for c in range(4))
    present_NxS = (slot_1xS < end) & (row_position - slot_position < window)
    return visible(present_NxS, Place(*row_place), Place(*slot_place))


def _kernel(cap, block, transposed, first, stop, end, window, l, *references):
    sinks, row_NxI, slot_4xS, q, k, v, out, highest, total, weighted = references
    lane, at = pl.program_id(0), pl.program_id(1)

    @pl.when(at == 0)
    def _():
        highest[...] = jnp.full_like(highest, HIDDEN)
        total[...], weighted[...] = jnp.zeros_like(total), jnp.zeros_like(weighted)

    @pl.when(first[lane] + at < stop[lane])
    def _():
        see_NxS = _see(block, first[lane] + at, end[lane], window[0], row_NxI, slot_4xS)
        for head in range(k.shape[0]):
            scores_NxS = dot(q[head], k[head], (1, 0 if transposed else 1))
            if cap is not None:
                scores_NxS = cap * jnp.tanh(scores_NxS / cap)
            scores_NxS = jnp.where(see_NxS, scores_NxS, HIDDEN)
            before_Nx1 = highest[head]
            now_Nx1 = jnp.maximum(before_Nx1, jnp.max(scores_NxS, axis=1, keepdims=True))
            weights_NxS = jnp.where(see_NxS, jnp.exp(scores_NxS - now_Nx1), 0.0)
            rescale_Nx1 = jnp.exp(before_Nx1 - now_Nx1)
            seen_NxD = dot(weights_NxS.astype(v.dtype), v[head], (1, 1 if transposed else 0))
            highest[head] = now_Nx1
            total[head] = total[head] * rescale_Nx1 + jnp.sum(weights_NxS, axis=1, keepdims=True)
            weighted[head] = weighted[head] * rescale_Nx1 + seen_NxD

    @pl.when(at == pl.num_programs(1) - 1)
    def _():
        for head in range(k.shape[0]):
            sees_any_Nx1 = total[head] > 0
            whole_Nx1 = total[head] + jnp.exp(jnp.where(sees_any_Nx1, sinks[head] - highest[head], HIDDEN))
            out[head] = (weighted[head] / jnp.where(sees_any_Nx1, whole_Nx1, 1.0)).astype(out.dtype)
