"""Parameters that are read from a model's files array by array: a host that shares a model never holds all of it."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import jax
import numpy as np
from jax.typing import DTypeLike

from pasta_jax.errors import PastaError
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.parameters import (
    PARTS,
    Params,
    grow_rows,
    join_kernel,
    norm_names,
    packed_shapes,
    plain_shapes,
)
from pasta_jax.weights.families import Family


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


class Tensors(Protocol):
    """A model's tensors in its files."""

    path: Path

    def read(self, name: str) -> np.ndarray:
        """One tensor as float32."""


def params_of(files: Tensors, column: int, family: Family, config: TransformerConfig, vocab: int) -> Params:
    """Our parameters, unrolled, to be read as float32; embedding and head are grown to `vocab` rows."""
    plain, packed = plain_shapes(config), packed_shapes(config)

    def read(name: str, layer: int | None = None) -> np.ndarray:
        theirs = family.tensor(column, name, layer)
        array = files.read(theirs)
        if array.shape != plain[name]:
            raise PastaError(
                f"{files.path}: {theirs} has shape {array.shape}, the model's configuration implies {plain[name]}; "
                "use the configuration that belongs to it, or fetch or convert the model again"
            )
        return family.ours(column, name, array, config.head_dim)

    def kernel(name: str, layer: int) -> np.ndarray:
        return join_kernel(name, {part: read(part, layer) for part in PARTS[name]}, config)

    def bias(layer: int) -> np.ndarray:
        parts = {part: read(f"{part}_bias", layer)[:, None] for part in PARTS["qkv"]}
        return join_kernel("qkv", parts, config)[..., 0]

    def layer(l: int) -> Params:
        kernels = {
            name: {"kernel": Deferred(packed[f"{name}/kernel"], functools.partial(kernel, name, l))} for name in PARTS
        }
        if config.qkv_bias:
            kernels["qkv"]["bias"] = Deferred(packed["qkv/bias"], functools.partial(bias, l))
        return kernels | {
            name: {"weight": Deferred(plain[name], functools.partial(read, name, l))} for name in norm_names(config)
        }

    params = {
        name: Deferred((vocab, config.embed), lambda name=name: grow_rows(read(name), vocab))
        for name in (("embed",) if config.tied_head else ("embed", "head"))
    }
    final_norm = {"weight": Deferred(plain["final_norm"], functools.partial(read, "final_norm"))}
    return params | {"final_norm": final_norm, "layers": tuple(map(layer, range(config.layers)))}
