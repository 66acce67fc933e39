"""The published figures of devices, whose kinds JAX names."""

from types import SimpleNamespace

import jax
import pytest

from pasta_jax.device.devices import Chip, share_of_chip
from pasta_jax.train.speed import peak_flops

PLACES = ((0, 0, 0), (1, 0, 0))


@pytest.mark.parametrize(
    ("kind", "figures"),
    [
        ("TPU v4", (275, 1200, 32)),
        ("TPU v5 lite", (197, 800, 16)),
        ("TPU v5", (459, 2765, 95)),
        ("TPU v6 lite", (918, 1600, 32)),
        ("NVIDIA A100-SXM4-40GB", (312, 1555, 40)),
        ("NVIDIA A100-SXM4-80GB", (312, 2039, 80)),
        ("NVIDIA H100 80GB HBM3", (989, 3350, 80)),
        ("NVIDIA H200", (989, 4800, 141)),
    ],
)
def test_a_device_has_the_figures_of_its_kind(kind, figures):
    assert share_of_chip([SimpleNamespace(device_kind=kind, coords=place) for place in PLACES]) == Chip(*figures)


@pytest.mark.parametrize("kind", ["TPU v4 lite", "NVIDIA H100 PCIe", "NVIDIA H200 NVL"])
def test_a_slower_kind_has_not_the_figures_of_one_whose_name_it_begins_with(kind):
    assert share_of_chip([SimpleNamespace(device_kind=kind)]) is None


def test_cores_share_a_chip_cards_have_no_coordinates_and_a_cpu_no_figures():
    cores = [SimpleNamespace(device_kind="TPU7x", coords=place) for place in PLACES for _ in range(2)]
    assert (share_of_chip(cores).gib, peak_flops(cores)) == (96, 2 * 2307e12)
    assert peak_flops([SimpleNamespace(device_kind="NVIDIA H200")] * 4) == 4 * 989e12
    assert share_of_chip(jax.devices()) is peak_flops(jax.devices()) is None
