"""The published figures of devices, whose kinds JAX names."""

from types import SimpleNamespace

import jax
import pytest

from pasta_jax.device.devices import CHIPS, share_of_chip
from pasta_jax.train.speed import peak_flops

PLACES = ((0, 0, 0), (1, 0, 0))


@pytest.mark.parametrize("kind", ["TPU v5 lite", "TPU v5", "TPU v6 lite", "TPU v4"])
def test_a_device_has_the_figures_of_its_kind(kind):
    assert share_of_chip([SimpleNamespace(device_kind=kind, coords=place) for place in PLACES]) == CHIPS[kind]


@pytest.mark.parametrize("kind", ["TPU v4 lite", "NVIDIA H100 PCIe", "NVIDIA H200 NVL"])
def test_a_slower_kind_has_not_the_figures_of_one_whose_name_it_begins_with(kind):
    assert share_of_chip([SimpleNamespace(device_kind=kind)]) is None


def test_cores_share_a_chip_cards_have_no_coordinates_and_a_cpu_no_figures():
    cores = [SimpleNamespace(device_kind="TPU7x", coords=place) for place in PLACES for _ in range(2)]
    assert (share_of_chip(cores).gib, peak_flops(cores)) == (96, 2 * 2307e12)
    assert peak_flops([SimpleNamespace(device_kind="NVIDIA H200")] * 4) == 4 * 989e12
    assert share_of_chip(jax.devices()) is peak_flops(jax.devices()) is None
