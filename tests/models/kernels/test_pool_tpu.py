"""The TPU kernel of decoding: interpreted, it equals dense attention and decodes the same tokens; what it reads."""

import dataclasses

import numpy as np
import pytest
from jax.experimental import pallas as pl

from pasta_jax.decode import generate as generate_module
from pasta_jax.decode.generate import generate, loop_spec
from pasta_jax.models.kernels import pool_tpu
from pasta_jax.models.mask import EVERYTHING
from tests.helpers.pool_steps import FILLS, SLOTS, WINDOWS, Shape, difference
from tests.models.test_sharding import NARROW, REQUESTS, SETTINGS, model_on


@pytest.fixture
def interpreted(monkeypatch, own_programs):
    """Run the kernel interpreted, with blocks of one tile; its uses."""
    used, real = [], pl.pallas_call

    def pallas_call(kernel, name, **rest):
        used.append(name)
        return real(kernel, name=name, interpret=True, **rest)

    monkeypatch.setattr(pool_tpu.pl, "pallas_call", pallas_call)
    monkeypatch.setattr(pool_tpu, "LONGEST", pool_tpu.TILE)
    return used


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(Shape(1, 2, 1, 256), marks=pytest.mark.slow),
        Shape(16, 1, 2, 64, 20.0),
        pytest.param(Shape(8, 2, 4, 128), marks=pytest.mark.slow),
        pytest.param(Shape(3, 1, 16, 64), marks=pytest.mark.slow),
    ],
)
def test_the_kernel_equals_dense_attention(interpreted, shape):
    for seed, fills in enumerate(FILLS):
        for window in WINDOWS:
            assert difference(seed, shape, fills, window) < 1e-5


def test_no_other_slot_is_read(interpreted):
    """A block of 128 slots is read if a row sees one of them, or if it is between such blocks; the rest may be NaN."""
    shape, fills = Shape(1, 2, 1, 256), (0, 1, 128, 300)
    for window, first in ((EVERYTHING, 0), (60, 128)):
        stop = -(-np.asarray(fills) // pool_tpu.TILE) * pool_tpu.TILE
        slots = np.arange(SLOTS)
        unread = (slots >= np.maximum(stop, pool_tpu.TILE)[:, None]) | ((slots < first) & (stop > 2 * 128)[:, None])
        assert difference(5, shape, fills, window, np.where(unread, np.nan, 0).astype(np.float32)) < 1e-5
        assert not difference(5, shape, fills, window, np.where(unread, 0, np.nan).astype(np.float32)) < 1e-5


@pytest.mark.slow
def test_decoded_tokens_are_equal_with_the_kernel(interpreted, few_programs, monkeypatch):
    """On a mesh, with local and global layers, and more requests than lanes."""
    settings = dataclasses.replace(SETTINGS, slots=256)
    expected = generate(model_on(NARROW, "stacked", None), REQUESTS, settings)
    monkeypatch.setattr(generate_module, "_platform", lambda params: "tpu")
    assert not loop_spec(model_on(NARROW, "stacked", None), settings, 200, sequential=False).kernel
    ours = generate(model_on(NARROW, "stacked", (2, 2)), REQUESTS, settings)
    assert [one.trace.token.tolist() for one in ours] == [one.trace.token.tolist() for one in expected]
    assert interpreted
