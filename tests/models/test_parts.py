"""Norms: of NumPy's size, and to the bit the same whatever the number of rows."""

import functools

import jax
import numpy as np
import pytest

from pasta_jax.models.kernels.cpu.library import library
from pasta_jax.models.parts import of_size_one


@pytest.mark.parametrize("shape", [(1,), (50,), (576,), (1536,), (4, 128)])
def test_a_norm_depends_on_no_other_row(shape):
    """XLA adds up in another order from so many rows on: with 1536 numbers, from three."""
    if library() is None:  # not asked while tests are collected, since it may compile
        pytest.skip("needs a C++ compiler")
    x = np.random.default_rng(2).standard_normal((1, 33, *shape), np.float32)
    norm = jax.jit(functools.partial(of_size_one, eps=1e-5, ordered=True))
    alone = np.concatenate([norm(x[:, row : row + 1]) for row in range(33)], axis=1)
    for rows in (2, 3, 4, 7, 8, 9, 16, 33):
        np.testing.assert_array_equal(norm(x[:, :rows]), alone[:, :rows])
    expected = x / np.sqrt(np.mean(np.square(x, dtype=np.float64), axis=-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(alone, expected, rtol=1e-6)
