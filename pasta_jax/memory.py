"""The memory of the devices that programs run on: what can't fit is refused before anything is allocated."""

import math
import os
from typing import Any

import jax

from pasta_jax.errors import PastaError


def require(shapes: Any, what: str, fix: str, copies: int = 1) -> None:
    """Refuse arrays of these shapes, a tree, if `copies` of them are larger than the memory of all devices."""
    needed = copies * sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    if (limit := total_bytes()) and needed > limit:
        raise PastaError(f"{what}: {needed / 2**30:,.1f} GiB, this machine has {limit / 2**30:,.1f}; {fix}")


def total_bytes() -> int:
    """Bytes of all devices together, or of the machine if they are CPUs; 0: unknown."""
    if jax.default_backend() == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    own = sum((device.memory_stats() or {}).get("bytes_limit", 0) for device in jax.local_devices())
    return own * jax.process_count()  # only its own process can ask a device
