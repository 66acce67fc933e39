"""Prepare read weights for what they are for: training, or decoding on this device or on the devices of a mesh."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from pasta_jax.errors import PastaError
from pasta_jax.models.kernels.bfloat16 import BITS, NARROW
from pasta_jax.models.kernels.cpu.calls import is_available
from pasta_jax.models.kernels.cpu.huge_pages import on_large_pages
from pasta_jax.models.parameters import Params, are_alike, is_stacked, stack
from pasta_jax.models.sharding import put, shardings
from pasta_jax.models.transformer import uses_kernels
from pasta_jax.progress import say
from pasta_jax.weights.for_cpu import CODED, by_columns, in_panels
from pasta_jax.weights.lazy import Deferred, read_now
from pasta_jax.weights.model import Model


def platform_dtype() -> DTypeLike:
    """bfloat16 where it is native; on the CPU it is 4 to 20 times slower than float32."""
    return jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16


def on_device(
    params: Params,
    dtype: DTypeLike | None = None,
    stacked: bool | None = None,
    only_decoding: bool = False,
    kernel: bool = True,
    mesh: Mesh | None = None,
) -> Params:
    """The parameters of a model that `read_model` read, on the device, or in their shards on the devices of a mesh.

    By default, dtype and layer layout are the platform's: float32 and unrolled on the CPU, bfloat16 and stacked
    elsewhere. With `only_decoding`, matrices are laid out for fast products with a few rows, and the model can't be
    trained or exported. On the CPU, our own kernel then multiplies in float32 where it can.
    """
    if uses_kernels(params):
        return on_large_pages(params)
    coded = dtype == CODED and decodes_codes(CODED, only_decoding, kernel, mesh)
    dtype = jnp.dtype(platform_dtype() if dtype is None or dtype == CODED else dtype)
    on_cpu = jax.default_backend() == "cpu"
    stacked = not on_cpu if stacked is None else stacked
    if mesh is not None:
        return place(params, mesh, dtype, stacked)
    if not on_cpu:
        params = read_now(params, dtype)  # rounded here, each array by itself: a stack is slow, and twice as large
    if stacked:
        params = stack(params)
        stacked = is_stacked(params)
    if not on_cpu:
        return jax.tree.map(jnp.asarray, params)
    if only_decoding and not stacked and kernel and dtype in (jnp.float32, jnp.bfloat16) and is_available():
        params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), params)
        return on_large_pages(in_panels(params, CODED if coded else dtype.name))
    params = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), params)
    return on_large_pages(by_columns(params) if only_decoding and not stacked else params)


def narrow(params: Params) -> Params:
    """Unrolled host parameters to train an adapter beside on one CPU: kernels and tables in bfloat16, read when placed.

    A kernel exists in float32 only while it is read. Layers are stacked, so that their activations need memory once:
    of unrolled ones, XLA computes all again before it needs the first. Gate and up are apart, as training reads them.
    """

    if "router" in params["layers"][0] or not are_alike(params["layers"]):
        raise PastaError("config.model.dtype=bfloat16: not for experts, or layers of several shapes; set it to auto")

    def table(leaf: Any) -> Deferred:
        return Deferred(leaf.shape, lambda: np.asarray(leaf, NARROW), dtype=np.dtype(NARROW))

    def joined(name: str, is_kernel: bool, leaves: Sequence[Any]) -> dict[str, Deferred]:
        parts = ("gate", "up") if name == "gate_up" else (name,)
        rows, *others = leaves[0].shape
        shape = (len(leaves), rows // len(parts), *others)
        dtype = np.dtype(NARROW if is_kernel else np.float32)

        @functools.cache
        def read() -> dict[str, np.ndarray]:
            arrays = {part: np.empty(shape, dtype) for part in parts}
            for l, leaf in enumerate(leaves):
                array = np.asarray(leaf)
                for first, part in enumerate(parts):
                    arrays[part][l] = array[first :: len(parts)]
            return {part: array.view(BITS) if is_kernel else array for part, array in arrays.items()}

        # Each part is read once.
        return {
            part: Deferred(shape, lambda p=part: read().pop(p), dtype=BITS if is_kernel else dtype) for part in parts
        }

    layers: Params = {}
    for name, leaves in params["layers"][0].items():
        for key in leaves:
            of_layers = [layer[name][key] for layer in params["layers"]]
            for part, leaf in joined(name, key == "kernel", of_layers).items():
                layers.setdefault(part, {})[key] = leaf
    return params | {name: table(params[name]) for name in ("embed", "head") if name in params} | {"layers": layers}


def decodes_codes(dtype: str, only_decoding: bool, kernel: bool = True, mesh: Mesh | None = None) -> bool:
    """Whether a dtype of codes can be used: it needs our own kernels; a line says so where they are absent."""
    if not only_decoding:
        raise PastaError(f"dtype {dtype}: only to decode with; set it to auto, or to float32")
    if mesh is not None:
        raise PastaError(f"dtype {dtype}: runs on one device, by our own kernels; set it to auto, or use no mesh")
    if kernel and is_available():
        return True
    say(f"dtype {dtype} needs our own kernels, which run on one CPU: using {jnp.dtype(platform_dtype()).name}")
    return False


def for_decoding(model: Model) -> Model:
    """A model that is already on the device, say in training, repacked for inference on the CPU."""
    if is_stacked(model.params) or model.dtype != jnp.float32 or not is_available():
        return model
    return dataclasses.replace(model, params=on_large_pages(in_panels(jax.device_get(model.params))))


def place(params: Params, mesh: Mesh, dtype: DTypeLike, stacked: bool) -> Params:
    """Unrolled host parameters in their shards on the mesh; one array is on the host at a time."""

    def one(leaf: Any, where: NamedSharding) -> jax.Array:
        return jax.block_until_ready(put(np.asarray(leaf, dtype), where))

    if not (stacked and are_alike(params["layers"])):
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
