"""Weights on large pages are the same arrays, in one piece of memory, and outlive whoever made them."""

import gc

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from pasta_jax.models.large_pages import ALIGNED, on_large_pages


def tree():
    rng = np.random.default_rng(0)
    return {
        "a": rng.standard_normal((7, 5)).astype(np.float32),
        "b": (rng.standard_normal(3).astype(ml_dtypes.bfloat16), np.float32(4.0)),
        "empty": np.zeros((0, 4), np.float32),
        "c": rng.standard_normal((1000, 33)).astype(np.float32).T,
    }


def test_the_same_arrays_in_one_piece():
    found = on_large_pages(tree())
    jax.tree.map(np.testing.assert_array_equal, found, tree())
    assert jax.tree.map(lambda leaf: leaf.dtype, found) == jax.tree.map(lambda leaf: leaf.dtype, tree())
    starts = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(found) if leaf.size]
    assert all(start % ALIGNED == 0 for start in starts)
    assert max(starts) - min(starts) < sum(leaf.nbytes + ALIGNED for leaf in jax.tree.leaves(tree()))


def test_giving_them_away_leaves_nothing_dangling():
    found = on_large_pages(tree())["c"]
    twice = jax.jit(lambda x: 2 * x, donate_argnums=0)(found)
    del found
    gc.collect()
    junk = [on_large_pages(tree()) for _ in range(3)]
    np.testing.assert_array_equal(twice, 2 * tree()["c"])
    del junk


def test_no_weights_at_all():
    assert on_large_pages({}) == {}
    assert jnp.size(on_large_pages([np.zeros(0)])[0]) == 0
