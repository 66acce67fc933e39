"""Parameters that are read from a model's files array by array: a host that shares a model never holds all of it."""

import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import jax
import numpy as np
from jax.typing import DTypeLike

from pasta_jax.errors import PastaError
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.parameters import (
    OF_EXPERTS,
    Params,
    grow_rows,
    join_kernel,
    kernel_names,
    packed_shapes,
    plain_shapes,
    vector_names,
)
from pasta_jax.weights.families import TRANSFORMERS, Family


@dataclasses.dataclass(frozen=True)
class Deferred:
    """A host array that doesn't exist yet: `np.asarray` reads it at each call."""

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]
    rows: Callable[[np.ndarray], np.ndarray] | None = None  # some of a matrix's rows, where its file has them in blocks
    dtype: np.dtype = np.dtype(np.float32)

    @property
    def nbytes(self) -> int:
        """Bytes, once read."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.read(), dtype)

    def __getitem__(self, index: np.ndarray) -> np.ndarray:
        """Rows of it as a matrix [rows, inputs]."""
        return self.rows(np.asarray(index)) if self.rows else np.asarray(self).reshape(-1, self.shape[-1])[index]

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

    def rows(self, name: str, index: np.ndarray) -> np.ndarray:
        """Rows of one matrix as float32."""


def params_of(files: Tensors, column: int, family: Family, config: TransformerConfig, vocab: int) -> Params:
    """Our parameters, unrolled, to be read as float32; embedding and head are grown to `vocab` rows."""
    plain, packed = plain_shapes(config), packed_shapes(config)

    def stored(name: str, layer: int | None, shape: tuple[int, ...]) -> np.ndarray:
        theirs = family.tensor(column, name, layer)
        if "*" in theirs:
            array = np.stack([files.read(theirs.replace("*", str(expert))) for expert in range(config.experts or 0)])
        else:
            array = files.read(theirs)
        if array.shape != shape:
            raise PastaError(
                f"{files.path}: {theirs} has shape {array.shape}, the model's configuration implies {shape}; "
                "use the configuration that belongs to it, or fetch or convert the model again"
            )
        return array

    def read(name: str, layer: int | None = None) -> np.ndarray:
        return family.ours(column, name, stored(name, layer, plain[name]), config.head_dim)

    def parts_of(kernel: str, layer: int, suffix: str) -> dict[str, np.ndarray]:
        """The matrices of a kernel, or their biases, from the tensors that hold them."""
        found, axis = {}, -1 if suffix else -2
        for tensor, parts in family.tensors(column, kernel).items():
            shapes = [plain[part + suffix] for part in parts]
            array = stored(tensor + suffix, layer, family.shape(column, tensor, shapes, axis))
            rows = [shape[axis] for shape in shapes]
            for part, one in zip(parts, family.apart(column, tensor, array, rows, axis), strict=True):
                found[part] = family.ours(column, part, one, config.head_dim)
        return found

    def kernel(name: str, layer: int) -> np.ndarray:
        return join_kernel(name, parts_of(name, layer, ""), config)

    def rows_in(part: str) -> int:
        return math.prod(plain[part][:-1])

    @functools.cache
    def places(name: str) -> np.ndarray:
        """Where the rows of one of our kernels are: tensors one after another, each with its matrices."""
        parts = [part for several in family.tensors(column, name).values() for part in several]
        begins = np.cumsum([0, *(rows_in(part) for part in parts)])
        rows = {}
        for part, begin in zip(parts, begins, strict=False):
            numbers = np.arange(begin, begin + rows_in(part)).reshape(*plain[part][:-1], 1)
            rows[part] = family.ours(column, part, numbers, config.head_dim)
        return join_kernel(name, rows, config).reshape(-1)

    def some_rows(name: str, layer: int, index: np.ndarray) -> np.ndarray:
        at, found = places(name)[index], np.empty((len(index), packed[f"{name}/kernel"][-1]), np.float32)
        begin = 0
        for tensor, parts in family.tensors(column, name).items():
            end = begin + sum(map(rows_in, parts))
            inside = (at >= begin) & (at < end)
            found[inside] = files.rows(family.tensor(column, tensor, layer), at[inside] - begin)
            begin = end
        return found

    def bias(name: str, layer: int) -> np.ndarray:
        parts = {part: one[..., None] for part, one in parts_of(name, layer, "_bias").items()}
        return join_kernel(name, parts, config)[..., 0]

    def rows_of(name: str, layer: int) -> Callable[[np.ndarray], np.ndarray] | None:
        is_whole = config.experts and name in OF_EXPERTS and column == TRANSFORMERS  # its tensors have no such rows
        return None if is_whole else functools.partial(some_rows, name, layer)

    def layer(l: int) -> Params:
        kernels = {
            name: {"kernel": Deferred(packed[f"{name}/kernel"], functools.partial(kernel, name, l), rows_of(name, l))}
            for name in kernel_names(config)
        }
        for name in config.biases:
            kernels[name]["bias"] = Deferred(packed[f"{name}/bias"], functools.partial(bias, name, l))
        return kernels | {
            name: {"weight": Deferred(plain[name], functools.partial(read, name, l))} for name in vector_names(config)
        }

    params = {
        name: Deferred(
            (vocab, config.embed),
            lambda name=name: grow_rows(read(name), vocab),
            lambda index, name=name: files.rows(family.tensor(column, name), index),
        )
        for name in (("embed",) if config.tied_head else ("embed", "head"))
    }
    final_norm = {"weight": Deferred(plain["final_norm"], functools.partial(read, "final_norm"))}
    return params | {"final_norm": final_norm, "layers": tuple(map(layer, range(config.layers)))}
