"""Attention to a pool equals NumPy's in float64, and depends on nothing else in the pool; writing equals XLA's."""

import ctypes

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pasta_jax.models.attention import write_by_kernel
from pasta_jax.models.kernels.cpu.calls import attend, by_thread, visible, written
from pasta_jax.models.pool import write_kv
from tests.models.kernels.cpu.test_calls import at_any_address, every_level

ONE = np.zeros((1, 1), np.int32)  # the lane of a row of a pool of one


def attended(q, k, v, see, scale: float, cap: float | None) -> np.ndarray:
    """Attention by NumPy in float64; zero where nothing is visible."""
    scores = np.einsum("btkgd,bksd->btkgs", q, k, dtype=np.float64) * scale
    scores = scores if cap is None else cap * np.tanh(scores / cap)
    weights = np.where(see[:, :, None, None], np.exp(scores - scores.max(-1, keepdims=True)), 0)
    total = weights.sum(-1, keepdims=True)
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return np.einsum("btkgs,bksd->btkgd", weights, v)


def random_attention(lanes: int, rows: int, heads: int, groups: int, slots: int, dims: int, seed: int):
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((lanes, rows, heads, groups, dims), np.float32)
    k, v = rng.standard_normal((2, lanes, heads, slots, dims), np.float32)
    see = rng.random((lanes, rows, slots)) < rng.random((lanes, rows, 1))
    see[0, 0] = False
    return q, k, v, see


@every_level
def test_attention_equals_numpys(library):
    rng = np.random.default_rng(4)
    for case in range(40):
        library.pasta_threads(case % 8 + 1)
        sizes = [int(n) for n in rng.integers(1, (4, 5, 4, 8, 150, 150))]  # lanes, rows, heads, groups, slots, dims
        scale = sizes[-1] ** -0.5
        q, k, v, see = random_attention(*sizes, seed=case)
        own = rng.permutation(sizes[0] + 2)[: sizes[0]].astype(np.int32)
        lanes = np.repeat(own[:, None], sizes[1], axis=1)  # of each row
        pools = [np.full((sizes[0] + 2, *pool.shape[1:]), np.nan, np.float32) for pool in (k, v)]
        for pool, values in zip(pools, (k, v), strict=True):
            pool[own] = values
        out = at_any_address(np.full_like(q, -7), case % 16)
        order = np.stack([rng.permutation(sizes[4]) for _ in pools[0]]).astype(np.int32)
        arrays = [at_any_address(array, case % 16) for array in (q, *pools, lanes, see, order)]
        given = np.asarray([sizes[0] * sizes[1], *sizes[2:], len(pools[0])], np.int64)
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (*arrays, out, given)]
        cap = 3.0 if case % 2 else None
        library.pasta_attend(*pointers, ctypes.c_float(scale), ctypes.c_float(cap or 0))
        np.testing.assert_allclose(out, attended(q, k, v, see, scale, cap), rtol=0, atol=5e-6, err_msg=str(sizes))
        assert not out[0, 0].any()


def test_attention_in_a_program_ignores_hidden_slots_whatever_they_hold(library):
    q, k, v, see = random_attention(2, 3, 2, 3, 40, 16, seed=5)
    expected = attended(q, k, v, see, 0.25, None)
    for pool in (k, v):
        pool[~see.any(axis=1)[:, None].repeat(2, axis=1)] = np.nan
    order = np.broadcast_to(np.arange(40, dtype=np.int32), (2, 40))
    lanes = np.repeat(np.arange(2, dtype=np.int32)[:, None], 3, axis=1)

    @jax.jit
    def read(*arrays):
        return attend(*arrays[:3], lanes, visible(*arrays[3:], lanes), 0.25, None)

    result = read(q, k, v, see, order)
    np.testing.assert_allclose(result, expected, atol=5e-6)
    with pytest.raises(jax.errors.JaxRuntimeError, match="mask, order and lanes don't fit"):
        visible(see, order[:, 1:], lanes)
    with pytest.raises(jax.errors.JaxRuntimeError, match="queries, keys, values and visible slots don't fit"):
        attend(q, k, v, lanes, visible(see[:, :, 1:], order[:, 1:], lanes), 0.25, None)


def test_attention_adds_up_by_thread_whatever_else_is_in_the_pool(library):
    """Two threads' tokens, interleaved in three ways and beside others, give the same bits."""
    rng, results = np.random.default_rng(3), []
    q = rng.standard_normal((1, 1, 2, 3, 16), np.float32)
    keys, values = rng.standard_normal((2, 2, 60, 16), np.float32)  # of thread 0, then of thread 1
    for case in range(3):
        slots = 80 + 40 * case
        thread = np.full((1, slots), 9, np.int32)
        at = np.sort(rng.permutation(slots)[:60])
        thread[0, at] = rng.permutation(np.repeat([0, 1], 30))
        k, v = np.full((2, 1, 2, slots, 16), np.nan, np.float32)
        for pool, rows in ((k, keys), (v, values)):
            for of in (0, 1):
                pool[0][:, np.flatnonzero(thread[0] == of)] = rows[:, 30 * of : 30 * (of + 1)]
        order = by_thread(jnp.asarray(thread))
        assert (np.asarray(order)[0] == np.argsort(thread[0], kind="stable")).all()
        results.append(np.asarray(attend(q, k, v, ONE, visible((thread < 2)[:, None], order, ONE), 0.25, None)))
    assert np.isfinite(results[0]).all()
    assert all((result == results[0]).all() for result in results[1:])


def test_attention_to_extreme_scores(library):
    """Scores of 1e4 and -1e4 leave one visible slot; an undefined one leaves nothing."""
    q, k = np.ones((1, 1, 1, 2, 4), np.float32), np.zeros((1, 1, 3, 4), np.float32)
    v = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    see, order = np.ones((1, 1, 3), bool), np.arange(3, dtype=np.int32)[None]
    k[0, 0, :, 0] = 1e4, -1e4, 0
    np.testing.assert_array_equal(attend(q, k, v, ONE, visible(see, order, ONE), 1.0, None)[0, 0, 0, 1], v[0, 0, 0])
    k[0, 0, 1, 0] = np.nan
    assert np.isnan(attend(q, k, v, ONE, visible(see, order, ONE), 1.0, None)).all()


@pytest.mark.parametrize("lanes", [[0, 1, 2], [2, 0]])
def test_keys_and_values_are_written_as_by_xla(lanes, library):
    rng = np.random.default_rng(6)
    kv = tuple(tuple(pool) for pool in rng.standard_normal((2, 2, 3, 2, 5, 4), np.float32))
    slots = np.stack([rng.permutation(7)[:3] for _ in lanes]).astype(np.int32)  # 5 and 6 are beyond the pool
    k, v = rng.standard_normal((2, len(lanes), 3, 2, 4), np.float32)
    at = jnp.asarray(lanes, jnp.int32)
    ways = (write_by_kernel, jnp.repeat(at[:, None], 3, axis=1)), (write_kv, at)
    by_kernel, by_xla = (jax.jit(lambda kv, w=write, at=at: w(kv, 1, at, slots, k, v))(kv) for write, at in ways)
    jax.tree.map(np.testing.assert_array_equal, by_kernel, by_xla)


def test_lanes_beyond_the_pool_are_dropped_and_what_does_not_fit_is_refused(library):
    pools, new = np.zeros((2, 2, 1, 3, 4), np.float32), np.ones((2, 2, 1, 1, 4), np.float32)
    lanes, slots = np.array([[-1], [2]], np.int32), np.zeros((2, 1), np.int32)
    assert not np.any(written(*pools, lanes, slots, *new))
    with pytest.raises(jax.errors.JaxRuntimeError, match="keys, values and slots don't fit the pool"):
        written(*pools, lanes[:1], slots, *new)
