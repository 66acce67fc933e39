"""The devices that programs run on: their memory, which what can't fit must not exceed, and their published figures."""

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

import jax

from pasta_jax.errors import PastaError
from pasta_jax.files import container


def require(shapes: Any, what: str, fix: str, copies: int = 1, shared_by: int = 0) -> None:
    """Refuse arrays of these shapes, a tree, if `copies` of them are larger than the memory of the devices that share
    them; 0: all do."""
    needed = copies * sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    if (limit := bytes_of(shared_by)) and needed > limit:
        raise PastaError(f"{what}: {needed / 2**30:,.1f} GiB, there are {limit / 2**30:,.1f}; {fix}")


def bytes_of(devices: int = 0) -> int:
    """Bytes of so many devices, or of all (0), or of the machine or its container if they are CPUs; 0: unknown."""
    if jax.default_backend() == "cpu":
        return min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), container.memory())
    own = [(device.memory_stats() or {}).get("bytes_limit", 0) for device in jax.local_devices()]
    return min(own) * (devices or len(own) * jax.process_count())  # only its own process can ask a device


@dataclasses.dataclass(frozen=True)
class Chip:
    """One chip, or one card."""

    tflops: float  # dense bfloat16 products, 10^12 operations per second
    gb_per_s: float  # of its memory, 10^9 bytes per second
    gib: float  # of memory


# By jax.Device.device_kind. From https://docs.cloud.google.com/tpu/docs/v4, v5p, v6e (which has v5e's) and tpu7x, and
# NVIDIA's data sheets of the SXM cards.
CHIPS = {
    "NVIDIA A100-SXM4-40GB": Chip(312, 1555, 40),
    "NVIDIA A100-SXM4-80GB": Chip(312, 2039, 80),
    "NVIDIA H100 80GB HBM3": Chip(989, 3350, 80),
    "NVIDIA H200": Chip(989, 4800, 141),
    "TPU v4": Chip(275, 1200, 32),
    "TPU v5 lite": Chip(197, 800, 16),
    "TPU v5e": Chip(197, 800, 16),
    "TPU v5": Chip(459, 2765, 95),
    "TPU v5p": Chip(459, 2765, 95),
    "TPU v6 lite": Chip(918, 1600, 32),
    "TPU v6e": Chip(918, 1600, 32),
    "TPU7x": Chip(2307, 7380, 192),
}


def share_of_chip(devices: Sequence[jax.Device]) -> Chip | None:
    """The figures of one of these devices, which may be one of a chip's two cores; None if none are published."""
    if (chip := CHIPS.get(devices[0].device_kind)) is None:
        return None
    chips = {tuple(getattr(device, "coords", (number,))) for number, device in enumerate(devices)}
    part = len(chips) / len(devices)
    return Chip(chip.tflops * part, chip.gb_per_s * part, chip.gib * part)
