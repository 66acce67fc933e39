"""The KV pool as plain data: keys and values of all threads of a request in one run of slots, and what each slot holds.

A request owns one lane of the pool. All its threads append to the lane's next free slots, so threads interleave and
nothing is ever moved. The integers stored with a slot decide who may read it (lang/structure.py::visible).
"""

import dataclasses
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from pasta_jax.lang.structure import Placed
from pasta_jax.models.config import TransformerConfig

Arrays = TypeVar("Arrays")
KV = tuple  # (k, v), each one array [L, B, K, S, D] (scanned layers) or a tuple of arrays [B, K, S, D], of own_layers


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Pool(Placed):
    """B lanes of S slots. Slot s of a lane is written if s < fill; unwritten slots hold zeros."""

    kv: KV
    chunk: jax.Array  # int32 [B, S]: 0 for the prompt and main, else the number of the async block
    epoch: jax.Array  # int32 [B, S]: syncs in main at or before the slot's token
    main: jax.Array  # int32 [B, S]: main tokens at or before the slot's token; a chunk's: at its promise
    position: jax.Array  # int32 [B, S]
    token: jax.Array  # int32 [B, S]
    step: jax.Array  # int32 [B, S]: the step that fed the token; 0 for the prompt
    fill: jax.Array  # int32 [B]: slots in use

    @property
    def slots(self) -> int:
        """S."""
        return self.token.shape[1]


def put(arrays: Arrays, at: tuple[jax.Array | int, ...], **values: jax.Array | int) -> Arrays:
    """A dataclass of arrays with new values at some places of the fields named; places out of range are dropped."""
    new = {
        name: getattr(arrays, name).at[at].set(value, mode="drop", unique_indices=True)
        for name, value in values.items()
    }
    return dataclasses.replace(arrays, **new)


def empty_kv(config: TransformerConfig, lanes: int, slots: int, dtype, stacked: bool) -> KV:
    """Zeros, never garbage: a masked key is multiplied by a weight of zero, and 0 * NaN is NaN."""

    def shape(layer: int) -> tuple[int, ...]:
        return lanes, config.kv_heads, slots, config.of_layer(layer).head_dim

    if stacked and not config.is_uneven:
        return tuple(jnp.zeros((config.layers, *shape(0)), dtype) for _ in "kv")
    return tuple(tuple(jnp.zeros(shape(layer), dtype) for layer in range(config.own_layers)) for _ in "kv")


def empty_pool(config: TransformerConfig, lanes: int, slots: int, dtype, stacked: bool) -> Pool:
    """A pool without written slots."""
    integers = {
        name: jnp.zeros((lanes, slots), jnp.int32) for name in ("chunk", "epoch", "main", "position", "token", "step")
    }
    return Pool(kv=empty_kv(config, lanes, slots, dtype, stacked), fill=jnp.zeros(lanes, jnp.int32), **integers)


def layers_kv(kv: KV) -> KV:
    """Keys and values as arrays [L, B, K, S, D]; of unrolled layers, the only one."""
    return tuple(pool[0][None] if isinstance(pool, tuple) else pool for pool in kv)


def prefix_kv(kv: KV, l, lanes_B, length: int):
    """Keys and values of one layer's first `length` slots, each [B, K, length, D]; without lanes, of all."""

    def cut(pool):
        if lanes_B is not None:
            return pool[l][lanes_B, :, :length] if isinstance(pool, tuple) else pool[l, lanes_B, :, :length]
        if isinstance(pool, tuple):
            lanes, heads, slots, head_dim = pool[l].shape
            # Sliced as long runs, not as one row per slot: XLA CPU then copies on all its threads.
            runs_BxKxSD = pool[l].reshape(lanes, heads, slots * head_dim)
            return runs_BxKxSD[:, :, : length * head_dim].reshape(lanes, heads, length, head_dim)
        _, lanes, heads, _, head_dim = pool.shape
        return lax.dynamic_slice(pool, (l, 0, 0, 0, 0), (1, lanes, heads, length, head_dim))[0]

    return cut(kv[0]), cut(kv[1])


def write_kv(kv: KV, l, lanes_B, slots_BxT, k_BxTxKxD, v_BxTxKxD) -> KV:
    """Write each token's key and value to its slot of layer l; slots beyond the pool are dropped."""
    lanes, _, heads, _ = k_BxTxKxD.shape
    b = (jnp.arange(lanes) if lanes_B is None else lanes_B)[:, None, None]
    h = jnp.arange(heads)[None, None, :]
    s = slots_BxT[:, :, None]

    def put(pool, new):
        if isinstance(pool, tuple):
            one = pool[l].at[b, h, s].set(new.astype(pool[l].dtype), mode="drop", unique_indices=True)
            return (*pool[:l], one, *pool[l + 1 :])
        return pool.at[l, b, h, s].set(new.astype(pool.dtype), mode="drop", unique_indices=True)

    return put(kv[0], k_BxTxKxD), put(kv[1], v_BxTxKxD)
