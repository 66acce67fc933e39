"""Products and attention of float32 activations in bfloat16, and training with them, beside float32."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pasta_jax.data.packing import mask
from pasta_jax.models.kernels import bfloat16
from pasta_jax.models.kernels.bfloat16 import mixed_product, multiplies_bfloat16
from pasta_jax.train.loss import sft_loss, token_losses
from tests.models.kernels.test_blocked import LENGTH, TOY, batch, dense, inputs, with_gradients
from tests.train.test_loss import EVEN, SCORING, params, records, row, total

MIXED = dataclasses.replace(
    SCORING, config=dataclasses.replace(SCORING.config, attention_cap=None), products=jnp.bfloat16
)
PLAIN = dataclasses.replace(MIXED, products=jnp.float32)


def rounded(array) -> np.ndarray:
    """As a product reads it."""
    return np.asarray(jnp.asarray(array, jnp.bfloat16), np.float64)


def test_a_product_sums_rounded_factors_in_float32_in_both_directions():
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal(shape).astype(np.float32) for shape in ((33, 600), (33, 40)))
    kernel = jnp.asarray(rng.standard_normal((40, 600)), jnp.bfloat16)
    y, transposed = jax.vjp(mixed_product, jnp.asarray(x), kernel)
    dx, d_kernel = transposed(jnp.asarray(dy))
    assert (y.dtype, dx.dtype, d_kernel.dtype) == (jnp.float32, jnp.float32, jnp.bfloat16)
    np.testing.assert_allclose(y, rounded(x) @ rounded(kernel).T, atol=1e-3)
    np.testing.assert_allclose(dx, rounded(dy) @ rounded(kernel), atol=1e-4)
    np.testing.assert_allclose(rounded(d_kernel), rounded(dy).T @ rounded(x), rtol=2**-7, atol=1e-3)


@pytest.mark.slow
def test_losses_with_narrow_products_are_close_and_not_equal():
    packed = row([example for example, _ in records()])
    plain, mixed = (np.asarray(jax.jit(token_losses, static_argnums=0)(s, params(), packed)) for s in (PLAIN, MIXED))
    assert plain.max() > 4  # so that the next line says something
    assert 0 < np.abs(plain - mixed).max() < 0.1


@pytest.mark.slow
def test_gradients_with_narrow_products_point_the_same_way():
    packed = row([example for example, _ in records()])

    def flat(scoring):
        loss = sft_loss(scoring, EVEN)
        gradient, _ = jax.jit(jax.grad(lambda p: total(loss, p, None, packed), has_aux=True))(params())
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(gradient)])

    plain, mixed = flat(PLAIN), flat(MIXED)
    assert plain.dtype == mixed.dtype == np.float32
    assert np.dot(plain, mixed) / np.linalg.norm(plain) / np.linalg.norm(mixed) > 0.999
    assert abs(np.linalg.norm(mixed) / np.linalg.norm(plain) - 1) < 0.02


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model name : A\nflags\t\t: fpu avx512f avx512_bf16 fsrm\n", True),
        ("flags\t\t: fpu avx2 avx512f\nflags\t\t: fpu avx2 avx512f\n", False),
        ("Features\t: fp asimd bf16 i8mm\n", True),
        ("Features\t: fp asimd\n", False),
        ("processor : 0\n", True),
        (None, True),
    ],
)
def test_a_cpu_that_multiplies_bfloat16_is_told_by_its_flags(text, expected, tmp_path):
    if text is not None:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/cpuinfo").write_text(text)
    assert multiplies_bfloat16(tmp_path) is expected
