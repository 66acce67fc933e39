"""Attention of one layer: where its keys and values are, and which of its forms computes it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.kernels.bfloat16 import is_mixed, mixed_attention
from pasta_jax.models.kernels.blocked import blocked_attention
from pasta_jax.models.kernels.cpu.calls import Seen, holds_panels, visible
from pasta_jax.models.kernels.cpu.calls import attend as attend_visible
from pasta_jax.models.kernels.cpu.calls import written as written_in_place
from pasta_jax.models.kernels.pool_tpu import write_and_attend
from pasta_jax.models.mask import HIDDEN, MaskSpec, PoolSpec
from pasta_jax.models.parts import soft_cap
from pasta_jax.models.pool import KV, layers_kv, prefix_kv, write_kv
from pasta_jax.models.ragged import Packed


@dataclasses.dataclass(frozen=True)
class Cache:
    """Where a step's keys and values are written, and what attention reads."""

    kv: KV
    slots_BxT: jax.Array  # int32; the slot that a token's key and value are written to; S and beyond: none
    lanes: jax.Array | None = None  # int32 [B]: the pool's lanes these rows belong to; None: all, in order
    prefixes: tuple[int, ...] = ()  # ascending static lengths; attention reads the shortest that covers `fill`
    fill: jax.Array | None = None  # int32 scalar: slots in use in the fullest lane, this step's included
    packed: Packed | None = None  # the rows to compute; None: all
    order_LxS: jax.Array | None = None  # int32; the slots in the order in which our kernel adds up; None: as they are
    row_lanes: jax.Array | None = None  # int32 [B, T]; each row's own of the pool's lanes; None: as `lanes` says

    def by_rows(self) -> "Cache":
        """The packed rows as all rows of one batch row, each in its lane: for our kernel, which takes rows apart."""
        packed = self.packed
        is_row_C = packed.at < self.slots_BxT.size
        slots_C = jnp.where(is_row_C, packed.pack(self.slots_BxT), np.iinfo(np.int32).max)  # or none
        return dataclasses.replace(self, slots_BxT=slots_C[None], row_lanes=packed.at[None] // packed.rows, packed=None)

    @property
    def lanes_BxT(self) -> jax.Array:
        """Each row's lane, int32."""
        if self.row_lanes is not None:
            return self.row_lanes
        lanes_B = jnp.arange(len(self.slots_BxT), dtype=jnp.int32) if self.lanes is None else self.lanes
        return jnp.broadcast_to(lanes_B[:, None], self.slots_BxT.shape)

    def seen(self, see_BxTxS) -> Seen:
        """What our kernel reads in place of a mask."""
        if self.order_LxS is None:
            order_1xS = jnp.arange(see_BxTxS.shape[-1], dtype=jnp.int32)[None]
            return visible(see_BxTxS, order_1xS, jnp.zeros(see_BxTxS.shape[:2], jnp.int32))
        return visible(see_BxTxS, self.order_LxS, self.lanes_BxT)

    def in_use(self, slots: int) -> jax.Array:
        """Which of the computed rows have a token, bool [B, T] or [1, C]: those with one of so many slots."""
        if self.packed is not None:
            return (self.packed.at < self.slots_BxT.size)[None]
        return self.slots_BxT < slots


@jax.named_scope("attention")
def attend(config: TransformerConfig, see, cache: Cache | None, kv, l, out: Mapping[str, Any], q, k, v, sinks):
    """What queries [B, T, K, G, D] see, and the keys and values that they saw.

    Without a cache these are k and v [B, T, K, D]; with one, layer l of the pools `kv` after k and v are written there.
    Where k and v are None, `kv` is read as it is. `out` are the parameters of the layer's next product, whose form says
    how the model computes.
    """
    if cache is None:
        k, v = kv if k is None else (k, v)
        return _uncached(config, see, out, q, k, v, sinks), (k, v)
    slots_BxT, packed = cache.slots_BxT, cache.packed
    if packed is not None:
        q, k, v = (None if rows is None else packed.spread(rows[0], slots_BxT.shape[0]) for rows in (q, k, v))
    if isinstance(see, PoolSpec):
        if k is None:
            k = v = jnp.zeros_like(q[:, :, :, 0])
            slots_BxT = jnp.full_like(slots_BxT, layers_kv(kv)[0].shape[3])  # none
        read, written = write_and_attend(config, q, k, v, layers_kv(kv), l, slots_BxT, see, sinks)
        written = tuple((pool[0],) for pool in written) if isinstance(kv[0], tuple) else written
    else:
        with jax.named_scope("write"):
            if k is None:
                written = kv
            elif holds_panels(out):
                written = write_by_kernel(kv, l, cache.lanes_BxT, slots_BxT, k, v)
            else:
                written = write_kv(kv, l, cache.lanes, slots_BxT, k, v)
        if isinstance(see, Seen):
            pools, rules = (pool[l] for pool in written), (config.score_scale, config.attention_cap)
            read = attend_visible(q, *pools, cache.lanes_BxT, see, *rules)
        else:
            read = attend_prefix(config, q, written, l, see, cache, sinks)
    read = read if packed is None else packed.pack(read)[None]
    if not isinstance(see, PoolSpec):  # a kernel for accelerators, which take no fewer products
        slots = (see.slots_BxTxS if isinstance(see, Seen) else see).shape[-1]
        read = jnp.where(cache.in_use(slots)[..., None, None, None], read, 0)
    return read, written


def write_by_kernel(kv: KV, l, lanes_BxT, slots_BxT, k_BxTxKxD, v_BxTxKxD) -> KV:
    """pool.py's `write_kv` by our CPU kernel, for pools of one layer each; each row has its lane."""
    new = written_in_place(kv[0][l], kv[1][l], lanes_BxT, slots_BxT, k_BxTxKxD, v_BxTxKxD)
    return tuple((*pool[:l], one, *pool[l + 1 :]) for pool, one in zip(kv, new, strict=True))


def _uncached(config: TransformerConfig, see, out: Mapping[str, Any], q, k_BxTxKxD, v_BxTxKxD, sinks):
    """Attention of whole sequences to themselves."""
    if isinstance(see, MaskSpec):
        return blocked_attention(config, q, k_BxTxKxD, v_BxTxKxD, see, sinks)
    k_BxKxTxD, v_BxKxTxD = k_BxTxKxD.swapaxes(1, 2), v_BxTxKxD.swapaxes(1, 2)
    if config.attention_cap is None and sinks is None and is_mixed(q, out.get("kernel", q)):
        return mixed_attention(config, q, k_BxKxTxD, v_BxKxTxD, see)
    return attention(config, q, k_BxKxTxD, v_BxKxTxD, see, sinks)


def attention(config: TransformerConfig, q_BxTxKxGxD, k_BxKxSxD, v_BxKxSxD, see_BxTxS, sinks_KxG=None):
    """Softmax attention of grouped query heads, scores in float32; see[b, t, s] states which keys a query may read."""
    lanes, length, heads, groups, _ = q_BxTxKxGxD.shape
    q_BxKxNxD = jnp.moveaxis(q_BxTxKxGxD * config.score_scale, 1, 3).reshape(lanes, heads, groups * length, -1)
    # Keys first: with the queries first, XLA CPU would copy all keys, transposed, in every step.
    scores_BxKxSxN = jnp.einsum("bksd,bknd->bksn", k_BxKxSxD, q_BxKxNxD, preferred_element_type=jnp.float32)
    scores_BxKxGxTxS = jnp.swapaxes(scores_BxKxSxN, 2, 3).reshape(lanes, heads, groups, length, -1)
    scores_BxKxGxTxS = soft_cap(scores_BxKxGxTxS, config.attention_cap)
    scores_BxKxGxTxS = jnp.where(see_BxTxS[:, None, None], scores_BxKxGxTxS, HIDDEN)
    if sinks_KxG is not None:  # a key more, of which nothing is read
        sinks = jnp.broadcast_to(sinks_KxG[None, :, :, None, None], (*scores_BxKxGxTxS.shape[:-1], 1))
        scores_BxKxGxTxS = jnp.concatenate([scores_BxKxGxTxS, sinks.astype(jnp.float32)], axis=-1)
    weights_BxKxGxTxS = jax.nn.softmax(scores_BxKxGxTxS, axis=-1).astype(v_BxKxSxD.dtype)
    if sinks_KxG is not None:
        weights_BxKxGxTxS = weights_BxKxGxTxS[..., :-1]
    return jnp.moveaxis(jnp.einsum("bkgts,bksd->bkgtd", weights_BxKxGxTxS, v_BxKxSxD), 3, 1)


def attend_prefix(config, q, kv: KV, l, see_BxTxS, cache: Cache, sinks=None):
    """Attention over the shortest static prefix that holds every used slot: the result of all slots, for less work.

    Each branch slices its own prefix out of the pool. With the slice before the switch, a TPU would read all slots of a
    layer.
    """

    def upto(length):
        return lambda: attention(config, q, *prefix_kv(kv, l, cache.lanes, length), see_BxTxS[:, :, :length], sinks)

    slots = see_BxTxS.shape[-1]
    lengths = [p for p in cache.prefixes if p < slots]
    if not lengths:
        return upto(slots)()
    index = jnp.searchsorted(jnp.asarray(lengths), cache.fill)
    return lax.switch(index, [upto(length) for length in [*lengths, slots]])
