"""The published figures of devices, whose kinds JAX names."""

from types import SimpleNamespace

import jax
import pytest

from pasta_jax.device.devices import CHIPS, share_of_chip
from pasta_jax.train.speed import peak_flops


def devices(kind: str, *coords: tuple[int, ...]) -> list[SimpleNamespace]:
    return [SimpleNamespace(device_kind=kind, coords=one) for one in coords]


@pytest.mark.parametrize(
    ("kind", "chip"),
    [("TPU v5 lite", "TPU v5 lite"), ("TPU v5", "TPU v5"), ("TPU v6 lite", "TPU v6 lite"), ("TPU v4", "TPU v4")],
)
def test_a_device_has_the_figures_of_the_longest_name_it_begins_with(kind, chip):
    assert share_of_chip(devices(kind, (0, 0, 0), (1, 0, 0))) == CHIPS[chip]


def test_two_cores_share_a_chip():
    cores = devices("TPU7x", (0, 0, 0), (0, 0, 0), (1, 0, 0), (1, 0, 0))
    assert share_of_chip(cores).gib == 96
    assert peak_flops(cores) == 2 * 2307e12


def test_cards_have_no_coordinates_and_a_cpu_no_figures():
    cards = [SimpleNamespace(device_kind="NVIDIA H200")] * 4
    assert peak_flops(cards) == 4 * 989e12
    assert share_of_chip(jax.devices()) is peak_flops(jax.devices()) is None
