"""The published figures of accelerators: their peak in bfloat16, and the size and speed of their memory."""

import dataclasses
from collections.abc import Sequence

import jax


@dataclasses.dataclass(frozen=True)
class Chip:
    """One chip, or one card."""

    tflops: float  # dense bfloat16 products, 10^12 operations per second
    gb_per_s: float  # of its memory, 10^9 bytes per second
    gib: float  # of memory


# By jax.Device.device_kind. From https://docs.cloud.google.com/tpu/docs/v4, v5p, v6e (which has v5e's) and tpu7x, and
# NVIDIA's data sheets of the SXM cards.
CHIPS = {
    "NVIDIA A100": Chip(312, 2039, 80),
    "NVIDIA H100": Chip(989, 3350, 80),
    "NVIDIA H200": Chip(989, 4800, 141),
    "TPU v4": Chip(275, 1200, 32),
    "TPU v5 lite": Chip(197, 800, 16),
    "TPU v5e": Chip(197, 800, 16),
    "TPU v5": Chip(459, 2765, 95),
    "TPU v6 lite": Chip(918, 1600, 32),
    "TPU v6e": Chip(918, 1600, 32),
    "TPU7x": Chip(2307, 7380, 192),
}


def share_of_chip(devices: Sequence[jax.Device]) -> Chip | None:
    """The figures of one of these devices, which may be one of a chip's two cores; None if none are published."""
    matching = [name for name in CHIPS if devices[0].device_kind.startswith(name)]
    if not matching:
        return None
    chip = CHIPS[max(matching, key=len)]
    chips = {tuple(getattr(device, "coords", (number,))) for number, device in enumerate(devices)}
    part = len(chips) / len(devices)
    return Chip(chip.tflops * part, chip.gb_per_s * part, chip.gib * part)
