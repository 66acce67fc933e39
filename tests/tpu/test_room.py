"""The room for lanes on a topology, computed from shapes, without the TPU's compiler."""

import dataclasses

import pytest

from pasta_jax.device.devices import CHIPS
from pasta_jax.models.config import PRESETS
from pasta_jax.tpu.report import GIB
from pasta_jax.tpu.room import USABLE, Largest, Room

SMALL = dataclasses.replace(CHIPS["TPU v5 lite"], gib=1.0)
GEMMA_2B = Room(PRESETS["gemma_2b"], "v5e:2x4", 8, dataclasses.replace(SMALL, gib=0.8))
TOY = Room(PRESETS["toy"], "v5e:2x2", 4, SMALL)


def test_lanes_fill_what_parameters_leave():
    """Of Gemma 7B: 8.54e9 parameters, and per slot 28 layers of 16 keys and values of 256."""
    room = Room(PRESETS["gemma_7b"], "v5e:2x4", 8, CHIPS["TPU v5 lite"])
    left = USABLE * 16 * GIB - 8.5385e9 * 2 / 8
    lane = 4096 * 28 * 16 * 256 * 2 * 2 / 8
    assert room.lanes(4096, 1, 8, 0.0) == int(left / (lane * 1.001))
    assert room.lanes(4096, 1, 8, lane) == int(left / (lane * 2.001))
    assert room.lanes(4096, 8, 1, 0.0) == 0  # 16 GiB of parameters on each chip


def test_the_best_mesh_divides_what_it_can():
    assert Room(PRESETS["gemma_7b"], "v5e:2x4", 8, CHIPS["TPU v5 lite"]).best(4096, 8, 0.0).model == 8
    assert TOY.best(4096, 4, 0.0) == Largest(TOY.lanes(4096, 4, 1, 0.0), 4, 1)  # two key/value heads


def test_slots_up_to_the_context_are_searched():
    found = TOY.search(512, 0.0)
    assert list(found) == [512, 1024, 2048, 4096]
    assert found[512].lanes > found[1024].lanes > found[4096].lanes > 0


@pytest.mark.slow
def test_a_larger_topology_is_suggested_where_nothing_fits():
    assert GEMMA_2B.best(4096, 8, 0.0).lanes == 0
    assert GEMMA_2B.suggestion(4096).startswith("; v5e:4x4 holds ")
    nowhere = Room(PRESETS["gemma2_27b"], "v5e:2x4", 8, dataclasses.replace(SMALL, gib=0.01))
    assert nowhere.suggestion(4096) == "; no topology of this kind holds a lane"
    assert TOY.suggestion(4096).startswith("; v5e:2x2 holds ")
