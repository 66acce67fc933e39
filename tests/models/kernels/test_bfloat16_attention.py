"""Attention in bands with narrow products equals dense attention under the masks of real programs, but for rounding."""

import dataclasses

import numpy as np
import pytest

from pasta_jax.data.packing import mask
from pasta_jax.models.kernels import bfloat16
from tests.models.kernels.test_blocked import LENGTH, TOY, batch, dense, inputs, with_gradients


def banded(config, q, k, v, see):
    return bfloat16.mixed_attention(config, q, k.swapaxes(1, 2), v.swapaxes(1, 2), see)


@pytest.mark.parametrize("band", [LENGTH, 128, 100])
def test_bands_equal_dense_attention(band, monkeypatch):
    monkeypatch.setattr(bfloat16, "BAND", band)
    config = dataclasses.replace(TOY, attention_cap=None)
    expected = with_gradients(lambda *qkv: dense(config, *qkv))(*inputs())
    actual = with_gradients(lambda *qkv: banded(config, *qkv, mask(batch())))(*inputs())
    np.testing.assert_allclose(actual[0][1], expected[0][1], atol=0.03)
    for ours, theirs in zip(actual[1], expected[1], strict=True):
        assert np.abs(theirs).max() > 1
        np.testing.assert_allclose(ours, theirs, atol=0.01 * np.abs(theirs).max())
