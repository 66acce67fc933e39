"""Parameters that are read from a model's files array by array: a host that shares a model never holds all of it."""

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
from flax import traverse_util
from jax.typing import DTypeLike

from pasta_jax.errors import PastaError
from pasta_jax.files.gguf import GGUF
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.parameters import (
    OF_EXPERTS,
    Params,
    grow_rows,
    join_kernel,
    packed_shapes,
    parts_of,
    plain_shapes,
    table_names,
)
from pasta_jax.weights import huggingface
from pasta_jax.weights.family import TRANSFORMERS, Family

READERS = 8  # arrays read at a time: each has copies of its own


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


def read_now(params: Params, dtype: DTypeLike | None = None) -> Params:
    """The parameters as host arrays, several read at a time: dequantising one array keeps one core busy."""
    with ThreadPoolExecutor(min(READERS, os.cpu_count() or 1)) as readers:
        reading = jax.tree.map(lambda leaf: readers.submit(np.asarray, leaf, dtype), params)
        return jax.tree.map(lambda one: one.result(), reading)


Tensors = huggingface.Files | GGUF  # a model's tensors in its files, as float32


def params_of(files: Tensors, column: int, family: Family, config: TransformerConfig, vocab: int) -> Params:
    """Our parameters, unrolled, to be read as float32; tables are grown to `vocab` rows."""
    shapes = plain_shapes(config)

    def whole(name: str) -> Deferred:
        theirs, shape = family.tensor(column, name), shapes[name]
        return Deferred(shape, lambda: family.ours(column, name, _stored(files, theirs, shape), config.head_dim))

    def table(name: str) -> Deferred:
        return Deferred(
            (vocab, shapes[name][1]),
            lambda: grow_rows(np.asarray(whole(name)), vocab),
            lambda index: files.rows(family.tensor(column, name), index),
        )

    params = {name: table(name) for name in table_names(config)} | {"final_norm": {"weight": whole("final_norm")}}
    if config.layer_embed:
        params |= {
            "layer_projection": {"kernel": whole("layer_projection")},
            "layer_norm": {"weight": whole("layer_norm")},
        }
    places = functools.cache(functools.partial(places_of, column, family))
    return params | {
        "layers": tuple(
            _layer(files, column, family, config.of_layer(layer), layer, places) for layer in range(config.layers)
        )
    }


def _stored(files: Tensors, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A tensor of the shape that the configuration implies; with a `*` in its name, one for each expert."""
    if "*" in name:
        array = np.stack([files.read(name.replace("*", str(expert))) for expert in range(shape[0])])
    else:
        array = files.read(name)
    require_shape(files.path, name, array.shape, shape)
    return array


def require_shape(path: Path, name: str, found: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Refuse a tensor of another shape than the configuration's."""
    if found != shape:
        raise PastaError(
            f"{path}: {name} has shape {found}, the model's configuration implies {shape}; "
            "use the configuration that belongs to it, or fetch or convert the model again"
        )


# Where the rows of a kernel are in its tensors; of a layer's configuration and the kernel's name.
Places = Callable[[TransformerConfig, str], np.ndarray]


def split_rows(counts: dict[str, int], at: np.ndarray) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Of rows `at` of tensors under one another, those in each: the tensor, where in `at`, and which of its rows."""
    begin = 0
    for tensor, count in counts.items():
        (where,) = np.nonzero((at >= begin) & (at < begin + count))
        if len(where):
            yield tensor, where, at[where] - begin
        begin += count


def places_of(column: int, family: Family, config: TransformerConfig, kernel: str) -> np.ndarray:
    """Where the rows of one of our kernels are: tensors one after another, each with its matrices."""
    shapes, parts = plain_shapes(config), parts_of(kernel, config)
    begins = np.cumsum([0, *(math.prod(shapes[part][:-1]) for part in parts)])
    rows = {}
    for part, begin, end in zip(parts, begins, begins[1:], strict=False):
        numbers = np.arange(begin, end).reshape(*shapes[part][:-1], 1)
        rows[part] = family.ours(column, part, numbers, config.head_dim)
    return join_kernel(kernel, rows, config).reshape(-1)


def _layer(
    files: Tensors, column: int, family: Family, config: TransformerConfig, layer: int, places: Places
) -> Params:
    """One layer, of its own configuration."""
    plain, packed = plain_shapes(config), packed_shapes(config)

    def tensors(kernel: str) -> dict[str, tuple[str, ...]]:
        return family.tensors(column, parts_of(kernel, config))

    def joined(kernel: str, suffix: str) -> np.ndarray:
        """A kernel, or its bias, from the tensors that hold it."""
        found, axis = {}, -1 if suffix else -2
        for tensor, parts in tensors(kernel).items():
            shapes = [plain[part + suffix] for part in parts]
            shape = family.shape(column, tensor, shapes, axis)
            array = _stored(files, family.tensor(column, tensor + suffix, layer), shape)
            rows = [shape[axis] for shape in shapes]
            for part, one in zip(parts, family.apart(column, tensor, array, rows, axis), strict=True):
                found[part] = family.ours(column, part, one[..., None] if suffix else one, config.head_dim)
        whole = join_kernel(kernel, found, config)
        return whole[..., 0] if suffix else whole

    def some_rows(kernel: str, index: np.ndarray) -> np.ndarray:
        found = np.empty((len(index), packed[f"{kernel}/kernel"][-1]), np.float32)
        counts = {tensor: sum(math.prod(plain[p][:-1]) for p in parts) for tensor, parts in tensors(kernel).items()}
        for tensor, where, rows in split_rows(counts, places(config, kernel)[index]):
            found[where] = files.rows(family.tensor(column, tensor, layer), rows)
        return found

    def leaf(name: str) -> Deferred:
        array, _, kind = name.partition("/")
        if kind == "weight":
            theirs = family.tensor(column, array, layer)
            return Deferred(
                plain[array], lambda: family.ours(column, array, _stored(files, theirs, plain[array]), config.head_dim)
            )
        suffix = "_bias" if kind == "bias" else ""
        # Experts in a folder have no rows to pick: its tensors may be transposed, or one for each expert.
        is_whole = kind == "bias" or (config.experts and array in OF_EXPERTS and column == TRANSFORMERS)
        rows = None if is_whole else functools.partial(some_rows, array)
        return Deferred(packed[name], functools.partial(joined, array, suffix), rows)

    return traverse_util.unflatten_dict({name: leaf(name) for name in packed}, sep="/")
