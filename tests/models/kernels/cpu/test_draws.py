"""Draws by our kernel, which computes the noise of few ids, are those of XLA's, which computes all of it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pasta_jax.decode.sampling import FORBIDDEN, draw
from pasta_jax.models.kernels.cpu.library import library
from pasta_jax.weights.rules import Rules

pytestmark = pytest.mark.skipif(library() is None, reason="needs a C++ compiler")


def rules_of(temperature_N: np.ndarray, **others: float) -> Rules:
    fields = {"temperature": temperature_N, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | others
    fields = {name: jnp.broadcast_to(jnp.asarray(value), temperature_N.shape) for name, value in fields.items()}
    return dataclasses.replace(Rules(), **fields, seed=jnp.arange(len(temperature_N), dtype=jnp.uint32))


def both(logits_NxV: np.ndarray, temperature_N: np.ndarray, number: int = 0, ids_V=None, **others: float):
    """What the kernel and XLA draw."""
    return [drawn(by_kernel, logits_NxV, temperature_N, number, ids_V, **others) for by_kernel in (True, False)]


def drawn(by_kernel: bool, logits_NxV, temperature_N, number: int = 0, ids_V=None, **others: float) -> np.ndarray:
    rules_N, count = rules_of(temperature_N.astype(np.float32), **others), len(temperature_N)
    where = jnp.arange(count, dtype=jnp.int32), jnp.full(count, number, jnp.int32)
    return np.asarray(_draw(jnp.asarray(logits_NxV, jnp.float32), rules_N, *where, ids_V, by_kernel))


_draw = jax.jit(draw, static_argnames="by_kernel")


# The same shapes in two tests, to compile few programs.
TEMPERATURES = np.array([0.0, 1e-30, 0.2, 0.6, 1.0, 3.0, 1e30])


@pytest.mark.parametrize("vocab", [1, 2, 15, 16, 1000, 49_152])
@pytest.mark.parametrize("spread", [0.0, 1.0, 6.0])
def test_draws_are_xlas(vocab, spread):
    rng = np.random.default_rng(vocab)
    for number in range(6):
        logits_NxV = spread * rng.standard_normal((len(TEMPERATURES), vocab))
        logits_NxV[rng.random(logits_NxV.shape) < 0.3] = FORBIDDEN
        np.testing.assert_array_equal(*both(logits_NxV, TEMPERATURES, number))


FILTERS = [
    {"top_k": 3},
    {"top_p": 0.7},
    {"min_p": 0.2},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.05},
    {"top_k": 10_000, "top_p": 0.99},
    {"top_k": 1, "top_p": 0.0, "min_p": 1.0},
]


@pytest.mark.parametrize("vocab", [1, 2, 1000, 49_152])
@pytest.mark.parametrize("others", FILTERS)
def test_so_they_are_of_what_filters_keep(vocab, others):
    rng = np.random.default_rng(vocab)
    for number in range(4):
        logits_NxV = 3 * rng.standard_normal((len(TEMPERATURES), vocab))
        logits_NxV[rng.random(logits_NxV.shape) < 0.3] = FORBIDDEN
        np.testing.assert_array_equal(*both(logits_NxV, TEMPERATURES, number, **others))


@pytest.mark.parametrize("leaders", [1, 3, 40])
@pytest.mark.parametrize("others", [{}, {"min_p": 0.001}, {"top_p": 0.999}])
def test_as_many_as_top_k_far_above_the_rest_are_all_that_stay(leaders, others):
    """The rest has most of the mass, so that it shows if it isn't filtered."""
    logits_V = np.full(30_000, -5.0)
    logits_V[100 : 100 + leaders] = -np.linspace(0, 1, leaders)
    ours, theirs = both(np.tile(logits_V, (100, 1)), np.ones(100), top_k=leaders, **others)
    assert set(ours.tolist()) <= set(range(100, 100 + leaders))
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("top_k", [1, 2, 5, 20])
def test_filters_of_likely_answers(top_k):
    """Logits as models have them: a few far above a long tail, at any distance."""
    rng = np.random.default_rng(top_k)
    logits_NxV = rng.standard_normal((200, 5000)) - 2 * np.log(np.arange(1, 5001))
    logits_NxV[:, :top_k] += rng.uniform(0, 12, (200, 1))
    for others in ({}, {"top_p": 0.8}, {"min_p": 0.02}):
        np.testing.assert_array_equal(*both(logits_NxV, rng.uniform(0.3, 2, 200), top_k=top_k, **others))


def test_equal_ones_at_an_edge_stay():
    """Ids 2, 3, 5 and 6 are as likely, half of the mass in all; id 0 has the other half."""
    logits_V = np.full(8, FORBIDDEN)
    logits_V[0], logits_V[[2, 3, 5, 6]] = np.log(4), 0.0
    for others, kept in (
        ({"top_k": 2}, {0, 2, 3, 5, 6}),
        ({"top_p": 0.6}, {0, 2, 3, 5, 6}),
        ({"top_p": 0.4}, {0}),
        ({"min_p": 0.25}, {0, 2, 3, 5, 6}),
        ({"min_p": 0.26}, {0}),
    ):
        ours, theirs = both(np.tile(logits_V, (400, 1)), np.ones(400), **others)
        assert set(ours.tolist()) == kept
        np.testing.assert_array_equal(ours, theirs)


def test_masses_add_up_alike_whatever_rows_are_beside():
    rng = np.random.default_rng(5)
    logits_NxV = rng.standard_normal((8, 30_000)).astype(np.float32)
    one, three, whole = (drawn(True, logits_NxV[:rows], np.full(rows, 1.0), top_p=0.9) for rows in (1, 3, 8))
    np.testing.assert_array_equal(one, whole[:1])
    np.testing.assert_array_equal(three, whole[:3])


def test_a_neighbour_that_filters_decides_no_near_tie():
    count, temperature = 20_000, np.float32(0.7)
    rules = rules_of(np.full(count, temperature))
    key_N = jax.vmap(lambda seed: jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 0), 0))(rules.seed)
    noise_Nx2 = np.asarray(jax.vmap(lambda key: jax.random.gumbel(key, (2,)))(key_N), np.float64)
    first_N = 3 * np.random.default_rng(0).standard_normal(count).astype(np.float32)
    second_N = (first_N + temperature * (noise_Nx2[:, 0] - noise_Nx2[:, 1])).astype(np.float32)  # as likely to the bit
    logits_Nx2, zeros_N = np.stack([first_N, second_N], axis=1), jnp.zeros(count, jnp.int32)
    filtering = dataclasses.replace(rules, top_k=rules.top_k.at[0].set(2))
    alone, beside = (_draw(logits_Nx2, one, zeros_N, zeros_N, None, True) for one in (rules, filtering))
    np.testing.assert_array_equal(alone[1:], beside[1:])


def test_so_they_are_of_some_ids():
    rng, temperature_N = np.random.default_rng(1), np.full(8, 0.8)
    ids_V = jnp.asarray(np.sort(rng.choice(49_152, 700, replace=False)).astype(np.int32))
    for number in range(6):
        np.testing.assert_array_equal(*both(rng.standard_normal((8, 700)), temperature_N, number, ids_V))


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_of_logits_that_no_model_should_have(temperature):
    logits_NxV = np.zeros((5, 40), np.float32)
    logits_NxV[0] = FORBIDDEN
    logits_NxV[1] = -np.inf
    logits_NxV[2, [7, 9]] = np.inf
    logits_NxV[3, [30, 35]] = np.nan
    logits_NxV[4], logits_NxV[4, 11] = FORBIDDEN, -5.0
    ours, theirs = both(logits_NxV, np.full(5, temperature))
    assert ours.tolist() == [0, 0, 7, 30, 11]
    np.testing.assert_array_equal(ours[[0, 1, 2, 4]], theirs[[0, 1, 2, 4]])
