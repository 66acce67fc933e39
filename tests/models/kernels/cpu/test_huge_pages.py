"""Weights on large pages are equal arrays in contiguous memory, and outlive the memory's first owner."""

import gc

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pasta_jax.models.kernels.cpu.huge_pages import ALIGNMENT, on_large_pages


def tree():
    rng = np.random.default_rng(0)
    return {
        "a": rng.standard_normal((7, 5)).astype(np.float32),
        "b": (rng.standard_normal(3).astype(ml_dtypes.bfloat16), np.float32(4.0)),
        "empty": np.zeros((0, 4), np.float32),
        "c": rng.standard_normal((1000, 33)).astype(np.float32).T,
    }


def test_equal_arrays_in_contiguous_memory():
    placed = on_large_pages(tree())
    jax.tree.map(np.testing.assert_array_equal, placed, tree())
    assert jax.tree.map(lambda leaf: leaf.dtype, placed) == jax.tree.map(lambda leaf: leaf.dtype, tree())
    starts = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(placed) if leaf.size]
    assert all(start % ALIGNMENT == 0 for start in starts)
    assert max(starts) - min(starts) < sum(leaf.nbytes + ALIGNMENT for leaf in jax.tree.leaves(tree()))


@pytest.mark.slow
def test_donation_leaves_nothing_dangling():
    placed = on_large_pages(tree())["c"]
    twice = jax.jit(lambda x: 2 * x, donate_argnums=0)(placed)
    del placed
    gc.collect()
    junk = [on_large_pages(tree()) for _ in range(3)]
    np.testing.assert_array_equal(twice, 2 * tree()["c"])
    del junk


def test_arrays_that_were_placed_stay():
    placed = on_large_pages(tree())
    again = on_large_pages(placed | {"new": np.ones(3, np.float32)})
    places = [[leaf.unsafe_buffer_pointer() for leaf in one["b"]] for one in (placed, again)]
    assert places[0] == places[1]
    np.testing.assert_array_equal(again["new"], np.ones(3))


def test_empty_trees_and_arrays():
    assert on_large_pages({}) == {}
    assert jnp.size(on_large_pages([np.zeros(0)])[0]) == 0
