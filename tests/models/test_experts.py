"""Mixtures of experts equal a loop over tokens, by ragged products and by blocks, with gradients, and on a mesh."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from pasta_jax.models import experts
from pasta_jax.models.config import PRESETS
from pasta_jax.models.parameters import with_gate_and_up
from pasta_jax.models.parts import gated
from pasta_jax.models.sharding import make_mesh, shard

SILU = dataclasses.replace(
    PRESETS["toy"], activation="silu", embed=16, ff=8, experts=5, active_experts=2, mlp_bias=True, router_bias=True
)
CLAMPED = dataclasses.replace(SILU, gate_limit=0.8, gate_slope=1.7, shares_of_all=True)
LANES, LENGTH = 4, 37


def inputs(config):
    """Hidden states, the router's scores (one expert is never chosen), and matrices."""
    rng = np.random.default_rng(0)

    def some(*shape: int):
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    x_BxTxE, scores_BxTxX = some(LANES, LENGTH, config.embed), some(LANES, LENGTH, config.experts)
    shapes = {"gate_up": (2 * config.ff, config.embed), "down": (config.embed, config.ff)}
    matrices = {
        name: {"kernel": some(config.experts, *shape), "bias": some(config.experts, shape[0])}
        for name, shape in shapes.items()
    }
    return x_BxTxE, scores_BxTxX.at[..., 3].add(-100.0), matrices


def token_by_token(config, x_BxTxE, scores_BxTxX, matrices):
    """What the mixture is defined as."""

    def one(x_E, scores_X):
        said = []
        for expert in range(config.experts):
            of = jax.tree.map(lambda leaf, expert=expert: leaf[expert], matrices)
            both = of["gate_up"]["kernel"] @ x_E + of["gate_up"]["bias"]
            said.append(of["down"]["kernel"] @ gated(config, both[0::2], both[1::2]) + of["down"]["bias"])
        chosen = jnp.zeros(config.experts).at[jnp.argsort(-scores_X)[: config.active_experts]].set(1.0)
        if config.shares_of_all:
            shares = chosen * jax.nn.softmax(scores_X)
        else:
            shares = jax.nn.softmax(jnp.where(chosen == 1, scores_X, -jnp.inf))
        return shares @ jnp.stack(said)

    return jax.vmap(jax.vmap(one))(x_BxTxE, scores_BxTxX)


def with_gradients(function, config):
    def total(*arguments):
        y = function(config, *arguments)
        return jnp.sum(y * np.random.default_rng(1).standard_normal(y.shape)), y

    return jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True))


def assert_close(ours, expected) -> None:
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-4, rtol=1e-4), ours, expected)


@pytest.mark.parametrize("form", ["_by_groups", "_by_blocks"])
@pytest.mark.parametrize("config", [SILU, CLAMPED], ids=["silu", "clamped"])
def test_a_mixture_equals_its_definition(config, form, monkeypatch):
    monkeypatch.setattr(experts, "_by_blocks", getattr(experts, form))  # what this platform takes
    expected = with_gradients(token_by_token, config)(*inputs(config))
    assert_close(with_gradients(experts.mixture, config)(*inputs(config)), expected)


def test_gate_and_up_may_be_apart():
    x, scores, matrices = inputs(SILU)
    mixture = jax.jit(experts.mixture, static_argnums=0)
    apart = with_gate_and_up(matrices)
    assert "gate_up" not in apart
    assert_close(mixture(SILU, x, scores, apart), mixture(SILU, x, scores, matrices))


@pytest.mark.parametrize("mesh", [(2, 4), (4, 1), (1, 8)], ids=str)
def test_devices_share_each_experts_width(mesh):
    devices = make_mesh(*mesh, jax.devices()[: mesh[0] * mesh[1]])
    x, scores, matrices = inputs(CLAMPED)
    lanes = NamedSharding(devices, P("data"))
    placed = jax.device_put(x, lanes), jax.device_put(scores, lanes), shard(matrices, devices)
    assert placed[2]["gate_up"]["kernel"].sharding.spec == (P(None, "model") if mesh[1] > 1 else P())
    both = with_gradients(experts.mixture, CLAMPED)
    assert_close(both(*placed), both(x, scores, matrices))


def test_an_expert_without_tokens_is_not_computed():
    """Elsewhere than on a TPU too: one that nobody chose may hold anything."""
    x, scores, matrices = inputs(SILU)
    broken = jax.tree.map(lambda leaf: leaf.at[3].set(jnp.nan), matrices)
    broken["down"]["bias"] = matrices["down"]["bias"]
    mixture = jax.jit(experts.mixture, static_argnums=0)
    np.testing.assert_array_equal(mixture(SILU, x, scores, broken), mixture(SILU, x, scores, matrices))
