"""Parameters that are read when they are placed, array by array: a host that shares a model never holds all of it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from pasta_jax.models.parameters import Params
from pasta_jax.models.sharding import put, shardings


@dataclasses.dataclass(frozen=True)
class Deferred:
    """A host array that doesn't exist yet: `np.asarray` reads it at each call."""

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.read(), dtype)

    def then(self, change: Callable[[np.ndarray], np.ndarray]) -> "Deferred":
        """The array with a change that keeps its shape."""
        return Deferred(self.shape, lambda: change(self.read()))


def read_now(params: Params) -> Params:
    """The parameters as host arrays."""
    return jax.tree.map(np.asarray, params)


def place(params: Params, mesh: Mesh, dtype: DTypeLike, stacked: bool) -> Params:
    """Unrolled host parameters in their shards on the mesh; one array is on the host at a time."""

    def one(leaf: Any, where: NamedSharding) -> jax.Array:
        return jax.block_until_ready(put(np.asarray(leaf, dtype), where))

    if not stacked:
        return jax.tree.map(one, params, shardings(params, mesh))
    layers = params["layers"]
    shapes = params | {
        "layers": jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((len(layers), *leaf.shape), dtype), layers[0])
    }
    where = shardings(shapes, mesh)
    joined = jax.tree.map(lambda where, *leaves: _join(leaves, dtype, where), where["layers"], *layers)
    rest = {name: jax.tree.map(one, leaf, where[name]) for name, leaf in params.items() if name != "layers"}
    return rest | {"layers": joined}


def _join(leaves: tuple[Any, ...], dtype: DTypeLike, where: NamedSharding) -> jax.Array:
    """One array of all layers, filled in place on its devices layer by layer."""
    shape = (len(leaves), *leaves[0].shape)
    joined = jax.jit(lambda: jnp.zeros(shape, dtype), out_shardings=where)()
    write = jax.jit(
        lambda joined, leaf, l: lax.dynamic_update_index_in_dim(joined, leaf, l, axis=0),
        donate_argnums=0,
        out_shardings=where,
    )
    of_one = NamedSharding(where.mesh, PartitionSpec(*where.spec[1:]))
    for l, leaf in enumerate(leaves):
        joined = jax.block_until_ready(write(joined, put(np.asarray(leaf, dtype), of_one), np.int32(l)))
    return joined
