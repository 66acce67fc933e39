"""The optimizer: which leaves decay, the schedule, clipping."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pasta_jax.errors import PastaError
from pasta_jax.lang.tags import TagIds
from pasta_jax.train.optimizer import decay_mask, new_optimizer, schedule
from pasta_jax.train.settings import TrainingSettings
from pasta_jax.weights.adapter import new_adapter
from pasta_jax.weights.settings import AdapterSettings
from tests.helpers.models import UNTIED, random_params

STEPS, SETTINGS = 10, TrainingSettings(learning_rate=0.1, weight_decay=0.5)


@pytest.mark.parametrize("name", ["params", "adapter"])
def test_decay_applies_to_kernels_and_adapters_only(name):
    """With a gradient of zero, only decay changes a weight."""
    params = jax.device_put(random_params(UNTIED, seed=0))
    tree = params if name == "params" else new_adapter(params, AdapterSettings(2, 2.0), TagIds(256), seed=0)
    optimizer = new_optimizer(SETTINGS, STEPS)

    @jax.jit
    def step(tree):
        updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, tree), optimizer.init(tree), tree)
        return optax.apply_updates(tree, updates)

    moved = step(tree)
    decayed = set()
    for (path, before), after in zip(jax.tree_util.tree_leaves_with_path(tree), jax.tree.leaves(moved), strict=True):
        kind = path[-1].key
        if kind in ("kernel", "lora_a", "lora_b"):
            np.testing.assert_allclose(after, before * (1 - 0.1 * 0.5), rtol=1e-5)
            decayed.add(kind)
        else:
            np.testing.assert_array_equal(after, before)
    assert decayed == ({"kernel"} if name == "params" else {"lora_a", "lora_b"})


def test_a_leaf_that_no_pattern_matches_is_an_error_that_names_it():
    with pytest.raises(PastaError, match="layers/0/gate: no pattern decides whether it decays"):
        decay_mask({"layers": ({"gate": jnp.ones(3)},)})


@pytest.mark.parametrize(
    ("decay", "fall"),
    [
        ("linear", np.arange(6, -1, -1) / 6),
        ("cosine", (1 + np.cos(np.pi * np.arange(7) / 6)) / 2),
        ("constant", np.ones(7)),
    ],
)
def test_the_learning_rate_rises_linearly_and_decays(decay, fall):
    settings = dataclasses.replace(SETTINGS, decay=decay)
    rate = schedule(dataclasses.replace(settings, warmup=4), STEPS)
    climb = [float(rate(step)) for step in range(4)]
    np.testing.assert_allclose(climb, [0.02, 0.04, 0.06, 0.08], rtol=1e-6)
    np.testing.assert_allclose([float(rate(step)) for step in range(4, 11)], 0.1 * fall, atol=1e-7)
    assert float(schedule(settings, STEPS)(0)) == pytest.approx(0.1)
    # A short run warms up for half of its steps.
    long, half = (schedule(dataclasses.replace(settings, warmup=steps), STEPS) for steps in (50, STEPS // 2))
    assert [float(long(step)) for step in range(STEPS)] == [float(half(step)) for step in range(STEPS)]


def test_the_schedule_is_the_learning_rate_that_is_applied():
    """Under a constant gradient, Adam's first steps each change a weight by the learning rate."""
    settings = dataclasses.replace(SETTINGS, warmup=4, weight_decay=0.0)
    optimizer = new_optimizer(settings, STEPS)
    tree = {"kernel": jnp.zeros(3)}
    state = optimizer.init(tree)
    for step in range(3):
        updates, state = optimizer.update({"kernel": jnp.full(3, 0.1)}, state, tree)
        np.testing.assert_allclose(-updates["kernel"], schedule(settings, STEPS)(step), rtol=1e-4)


def test_large_gradients_are_clipped_and_small_ones_not():
    """A huge gradient must not have more weight in the moments than one of norm 1."""
    optimizer = new_optimizer(SETTINGS, STEPS)
    tree = {"kernel": jnp.zeros(4)}
    states = [
        optimizer.update({"kernel": jnp.full(4, size)}, optimizer.init(tree), tree)[1] for size in (0.25, 0.5, 1e6)
    ]
    small, one, huge = (optax.tree.get(state, "mu")["kernel"] for state in states)
    np.testing.assert_allclose(huge, one, rtol=1e-6)
    np.testing.assert_allclose(small, one / 2, rtol=1e-6)
