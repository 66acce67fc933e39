"""Weights repacked for fast small-batch products on the CPU (inference only)."""

import concurrent.futures
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from pasta_jax.files.gguf import GGUF as File
from pasta_jax.lang.tags import NUM_TAGS, TagIds
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.kernels.cpu import quantized
from pasta_jax.models.kernels.cpu.calls import BITS, by_codes, by_panels, of_blocks
from pasta_jax.models.kernels.cpu.huge_pages import on_large_pages
from pasta_jax.models.kernels.cpu.quantized import GROUP, Blocks
from pasta_jax.models.parameters import (
    OF_EXPERTS,
    Params,
    kernel_names,
    parts_of,
    plain_shapes,
    table_names,
    vector_names,
)
from pasta_jax.models.transformer import uses_kernels
from pasta_jax.progress import say
from pasta_jax.weights.family import GGUF, Family
from pasta_jax.weights.lazy import READERS, places_of, require_shape, split_rows

_ROWS = 1 << 10  # of a table that are laid out at a time; whole panels
CODED = "q8"  # a dtype: float32, with matrices of 8-bit codes
_PLAIN = ("F32", "F16", "BF16")  # formats without codes


def by_columns(params: Params) -> Params:
    """Parameters with each kernel [*outputs, in], and the head's table, transposed to `columns` [in, *outputs].

    On large pages XLA's CPU product with two to eight rows then takes a quarter less time, and with one row no more.
    """
    return _replaced(params, lambda kernel: {"columns": np.moveaxis(kernel, -1, 0)})


def in_panels(params: Params, precision: str = "float32") -> Params:
    """Parameters with each kernel, and the head's table, in panels for our own kernels; see kernels/cpu/calls.py."""
    return _replaced(params, lambda kernel: panels_of(kernel, precision))


def panels_of(kernel: np.ndarray, precision: str) -> Params:
    """A kernel in panels, in float32, bfloat16, or CODED, codes of 8 bits and a scale where the inputs allow that."""
    matrix_OxI = _matrix(kernel)
    if precision == CODED and matrix_OxI.shape[1] % GROUP == 0:
        return by_codes(matrix_OxI)
    dtype = ml_dtypes.bfloat16 if precision == "bfloat16" else np.float32
    return {"panels": by_panels(np.asarray(matrix_OxI, dtype))}


def in_blocks(
    gguf: File, family: Family, config: TransformerConfig, params: Params, tags: TagIds, tag_rows: Params
) -> Params:
    """Unrolled parameters of a GGUF file, with the file's own blocks in panels where it has such, and others read.

    The tags' rows, which no file has, stay exact. Each layer is placed when it is complete, so that little is in memory
    twice.
    """

    places = functools.cache(functools.partial(places_of, GGUF, family))
    vocab = gguf.info(family.tensor(GGUF, "embed")).shape[0]  # without the tags
    implied = plain_shapes(dataclasses.replace(config, vocab=vocab))
    kept = {*quantized.FORMATS, *_PLAIN}
    others = [one for one in gguf.tensors.values() if len(one.shape) > 1 and one.format.name not in kept]
    if others:
        names = ", ".join(sorted({one.format.name for one in others}))
        gb = 4e-9 * sum(math.prod(one.shape) for one in others)
        say(f"{gguf.path}: {names}: held as float32, {gb:.1f} GB; a file in Q4, Q5, Q6 or Q8 stays as small as it is")

    def rows_of(counts: dict[str, int], at: np.ndarray) -> Blocks:
        """Some rows of tensors that lie one under another, of so many rows each; zeros beyond them."""
        parts, inside = {}, {}
        for tensor, where, rows in split_rows(counts, at):
            info = gguf.tensors[tensor]
            stored = gguf.stored(tensor).reshape(-1, info.row_bytes)[rows]
            parts[tensor] = quantized.read(stored, info.format.name, (len(rows), info.shape[-1]))
            inside[tensor] = where

        def join(fields: dict[str, np.ndarray]) -> np.ndarray:
            first = next(iter(fields.values()))
            whole = np.zeros((len(at), first.shape[1]), first.dtype)
            for tensor, field in fields.items():
                whole[inside[tensor]] = field
            return whole

        return quantized.joined(parts, join)

    def laid_out(tensors: Sequence[str], at: np.ndarray, each: Callable = map) -> Params:
        """The same in panels; some rows at a time, where all tensors have one format."""
        counts = {name: math.prod(gguf.tensors[name].shape[:-1]) for name in tensors}
        step = _ROWS if len({gguf.tensors[name].format for name in tensors}) == 1 else len(at)
        starts = range(0, min(sum(counts.values()), len(at)), step)
        pieces = list(each(lambda *some: of_blocks(rows_of(counts, at[slice(*some)])), starts, [*starts[1:], len(at)]))
        gguf.forget()
        return {field: np.concatenate([one.pop(field) for one in pieces]) for field in list(pieces[0])}

    def has_blocks(shapes: dict[str, tuple[int, ...]]) -> bool:
        """Whether all of these tensors are in blocks, which nothing else reads; of other shapes they are refused."""
        for tensor, shape in shapes.items():
            require_shape(gguf.path, tensor, gguf.info(tensor).shape, shape)
        return all(gguf.tensors[tensor].format.name in quantized.FORMATS for tensor in shapes)

    def kernel(l: int, name: str, leaves: Params) -> Params:
        c, others = config.of_layer(l), {name: np.asarray(leaf) for name, leaf in leaves.items() if name != "kernel"}
        if name == "router":
            return others | {"kernel": np.asarray(leaves["kernel"])}
        experts = config.experts if name in OF_EXPERTS else None
        plain = plain_shapes(c)
        shapes = {
            family.tensor(GGUF, tensor, l): family.shape(GGUF, tensor, [plain[part] for part in parts], -2)
            for tensor, parts in family.tensors(GGUF, parts_of(name, c)).items()
        }
        if has_blocks(shapes):
            return others | _each(places(c, name), experts, functools.partial(laid_out, [*shapes]))
        return others | _each(np.asarray(leaves["kernel"]), experts, lambda one: {"panels": by_panels(_matrix(one))})

    def whole(name: str, leaf: Any, each: Callable) -> Params:
        tensor = family.tensor(GGUF, name)
        if has_blocks({tensor: implied[name]}):
            found = laid_out([tensor], np.arange(leaf.shape[0]), each)
        else:
            found = {"panels": by_panels(np.asarray(leaf))}
        if name in tag_rows:
            at = np.arange(tags.base, tags.base + NUM_TAGS, dtype=np.int32)
            found |= {"exact": by_panels(tag_rows[name]), "exact_at": at}
        return on_large_pages(found)

    def one(l: int, layer: Params) -> Params:
        vectors = {name: {"weight": np.asarray(layer[name]["weight"])} for name in vector_names(config.of_layer(l))}
        return on_large_pages(vectors | {name: kernel(l, name, layer[name]) for name in kernel_names(config)})

    with concurrent.futures.ThreadPoolExecutor(min(READERS, os.cpu_count() or 1)) as threads:
        layers = tuple(threads.map(one, range(config.layers), params["layers"]))
        leaves = {name: params[name] for name in table_names(config)}
        if config.layer_embed:
            leaves["layer_projection"] = params["layer_projection"]["kernel"]
        matrices = {name: whole(name, leaf, threads.map) for name, leaf in leaves.items()}
    norms = {
        name: {"weight": np.asarray(params[name]["weight"])} for name in ("final_norm", "layer_norm") if name in params
    }
    return norms | {"layers": layers} | matrices


def with_pairs(params: Params, adapter: Params) -> Params:
    """Parameters in blocks with an adapter beside them; matrices that are not in blocks get it added.

    Added to blocks it would have to be rounded to their codes, which loses most of it.
    """

    def join(leaves: Params, pair: Params) -> Params:
        a, b = np.asarray(pair["lora_a"]), _matrix(np.asarray(pair["lora_b"]))
        if "codes" in leaves:
            return leaves | {"a": a, "b": by_panels(b)}
        return leaves | {"panels": np.asarray(leaves["panels"]) + by_panels(b @ a)}

    layers = tuple(
        layer | {name: join(layer[name], pair) for name, pair in pairs.items()}
        for layer, pairs in zip(params["layers"], adapter["layers"], strict=True)
    )
    tables = {name: params[name] | {"exact": by_panels(np.asarray(rows))} for name, rows in adapter["tag_rows"].items()}
    return params | {"layers": layers} | tables


def with_bits(params: Params, bits: int) -> Params:
    """Parameters whose matrices of codes are multiplied with inputs of so many bits; see kernels/cpu/calls.py."""
    if bits == BITS or not uses_kernels(params):
        return params

    def one(leaves: Any) -> Any:
        return leaves | {"bits": np.int32(bits)} if isinstance(leaves, dict) and "codes" in leaves else leaves

    layers = tuple({name: one(leaves) for name, leaves in layer.items()} for layer in params["layers"])
    return {name: one(leaves) for name, leaves in params.items()} | {"layers": layers}


def _matrix(kernel: np.ndarray) -> np.ndarray:
    """A kernel [*outputs, any] as a matrix [out, any]."""
    return kernel.reshape(-1, kernel.shape[-1])


def _each(kernel: np.ndarray, experts: int | None, change: Callable[[np.ndarray], Params]) -> Params:
    """A changed kernel; of experts, each by itself, one after another."""
    if experts is None:
        return change(kernel)
    changed = [change(one) for one in np.split(kernel, experts)]
    return {name: np.stack([one[name] for one in changed]) for name in changed[0]}


def _replaced(params: Params, change: Callable[[np.ndarray], Params]) -> Params:
    def one(layer: Params, part: str) -> Params:
        leaves = layer[part]
        if "kernel" not in leaves or part == "router":  # which is small, and must be exact
            return leaves
        experts = len(leaves["kernel"]) if "router" in layer and part in OF_EXPERTS else None
        others = {name: leaf for name, leaf in leaves.items() if name != "kernel"}
        return _each(leaves["kernel"], experts, change) | others

    layers = tuple({part: one(layer, part) for part in layer} for layer in params["layers"])
    table = "head" if "head" in params else "embed"
    changed = {table: change(params[table]), "layers": layers}
    if "layer_projection" in params:
        changed["layer_projection"] = change(params["layer_projection"]["kernel"])
    return params | changed
