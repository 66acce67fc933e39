"""The TPU kernels of attention by blocks: in Pallas's interpreter they equal the dense form, gradients too."""

import dataclasses

import jax
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl

from pasta_jax.models import flash_tpu
from pasta_jax.models.blocked import blocked_attention
from pasta_jax.models.sight import EVERYTHING
from tests.test_attention_blocks import TOY, dense, inputs, sight, with_gradients


@pytest.fixture
def interpreted(monkeypatch):
    """The kernels instead of plain JAX, interpreted, and in blocks that no TPU would take; lists those that ran."""
    called = []
    real = pl.pallas_call

    def pallas_call(kernel, name, **rest):
        called.append(name)
        return real(kernel, name=name, interpret=True, **rest)

    monkeypatch.setattr(flash_tpu.pl, "pallas_call", pallas_call)
    monkeypatch.setattr(flash_tpu, "TILE", 1)
    monkeypatch.setattr(lax, "platform_dependent", lambda *arrays, tpu, default: tpu(*arrays))
    return called


@pytest.mark.parametrize(
    ("block", "window", "cap", "heads"),
    [
        (64, EVERYTHING, 2.0, (4, 2)),
        (32, 16, None, (8, 2)),
        (23, EVERYTHING, None, (3, 3)),
        (512, 9, 2.0, (8, 1)),
    ],
)
def test_kernels_equal_the_whole(interpreted, block, window, cap, heads):
    config = dataclasses.replace(TOY, attention_cap=cap, heads=heads[0], kv_heads=heads[1])
    qkv = inputs(config=config)
    wanted = with_gradients(lambda *qkv: dense(config, *qkv, window))(*qkv)
    found = with_gradients(lambda *qkv: blocked_attention(config, *qkv, sight(block, window)))(*qkv)
    assert interpreted == ["forward_kernel", "queries_kernel", "keys_kernel"]
    for ours, theirs in zip(jax.tree.leaves(found[1]), jax.tree.leaves(wanted[1]), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    np.testing.assert_allclose(found[0][1], wanted[0][1], atol=1e-5)
