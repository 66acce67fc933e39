"""Weights in memory of large pages: a decoding step on the CPU reads them all, and looking up small pages takes time.

Linux gives large pages (2 MiB instead of 4 KiB) where a program asks for them and the memory is in one piece; what JAX
allocates by itself asks for none.
"""

import contextlib
import mmap

import jax
import numpy as np

ALIGNED = 64  # bytes; JAX uses host memory as it lies from this on, and copies what lies otherwise


def on_large_pages(params):
    """NumPy arrays as JAX arrays on the CPU, in one piece of memory; as they come on systems without large pages."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return jax.device_put(params)
    leaves, tree = jax.tree.flatten(params)
    starts = np.cumsum([0, *(-(-leaf.nbytes // ALIGNED) * ALIGNED for leaf in leaves)])
    memory = mmap.mmap(-1, max(int(starts[-1]), ALIGNED), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel built without them
        memory.madvise(mmap.MADV_HUGEPAGE)

    def placed(leaf, start):
        there = np.frombuffer(memory, leaf.dtype, leaf.size, start).reshape(leaf.shape)
        for piece in pieces(leaf):
            there[piece] = leaf[piece]
        return jax.device_put(there)

    return jax.tree.unflatten(tree, map(placed, leaves, map(int, starts)))


def pieces(array) -> list:
    """What to copy of an array at a time: a turned matrix goes several times as fast in pieces that a cache holds."""
    if array.ndim != 2 or array.flags.c_contiguous:
        return [...]
    return [np.s_[:, start : start + 256] for start in range(0, array.shape[1], 256)]
