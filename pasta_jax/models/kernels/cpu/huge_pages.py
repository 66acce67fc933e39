"""Weights on large pages: a decoding step on the CPU reads all weights, and address translation of small pages is slow.

Linux provides large pages (2 MiB instead of 4 KiB) where a program requests them for contiguous memory. JAX's own
allocations don't.
"""

import contextlib
import math
import mmap
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import numpy as np

Tree = TypeVar("Tree")

READERS = 2  # threads; each holds one array at a time, beside the whole
ALIGNMENT = 64  # bytes; JAX uses host memory with this alignment as it is, and copies any other


def on_large_pages(params: Tree) -> Tree:
    """Host arrays as JAX arrays on the CPU, in contiguous memory; plain copies on systems without large pages.

    JAX's own arrays stay where they are.
    """
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return jax.device_put(jax.tree.map(np.asarray, params))
    leaves, tree = jax.tree.flatten(params)
    sizes = [0 if isinstance(leaf, jax.Array) else leaf.nbytes for leaf in leaves]
    starts = np.cumsum([0, *(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)])
    memory = mmap.mmap(-1, max(int(starts[-1]), ALIGNMENT), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # kernels built without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)

    def placed(leaf: np.ndarray, start: int) -> jax.Array:
        if isinstance(leaf, jax.Array):
            return leaf
        leaf = np.asarray(leaf)  # perhaps to be read
        copy = np.frombuffer(memory, leaf.dtype, leaf.size, start).reshape(leaf.shape)
        for piece in pieces(leaf):
            copy[piece] = leaf[piece]
        return jax.device_put(copy)

    with ThreadPoolExecutor(READERS) as readers:  # reading and copying leave Python's lock to others
        return jax.tree.unflatten(tree, readers.map(placed, leaves, map(int, starts)))


def pieces(array: np.ndarray) -> list[Any]:
    """Indices to copy one after another: a transposed array copies several times faster in pieces that fit a cache."""
    if array.ndim < 2 or array.flags.c_contiguous:
        return [...]
    step = max(1, 256 // math.prod(array.shape[2:]))
    return [np.s_[:, start : start + step] for start in range(0, array.shape[1], step)]
