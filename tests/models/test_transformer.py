"""The transformer's own properties, on the toy that has every feature."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pasta_jax.errors import PastaError
from pasta_jax.models import attention, transformer
from pasta_jax.models.attention import Cache
from pasta_jax.models.config import PRESETS, Rope, TransformerConfig
from pasta_jax.models.parameters import stack, unstack
from pasta_jax.models.pool import empty_kv
from tests.helpers.models import random_params

TOY = PRESETS["toy"]
LENGTH = 40
FORWARD = jax.jit(transformer.forward, static_argnums=1)  # compiled whole: one by one, its operations take far longer


@functools.cache
def params(stacked: bool = False):
    return jax.device_put(random_params(TOY, seed=1, stacked=stacked))


def tokens(lanes: int = 2, seed: int = 0):
    return np.random.default_rng(seed).integers(0, TOY.vocab, (lanes, LENGTH)).astype(np.int32)


def positions(lanes: int = 2):
    return np.broadcast_to(np.arange(LENGTH, dtype=np.int32), (lanes, LENGTH))


def causal(lanes: int = 2):
    return np.broadcast_to(np.tri(LENGTH, dtype=bool), (lanes, LENGTH, LENGTH))


def test_causality_shows_in_which_gradients_are_exactly_zero():
    def loss(embedded_TxE, at):
        # token t is row t of the table, so the table's gradient is the gradient of each input
        table = params()["embed"].at[:LENGTH].set(embedded_TxE)
        x, _ = transformer.trunk(
            params() | {"embed": table},
            TOY,
            positions(1),
            positions(1),
            transformer.causal(positions(1)),
            positions(1),
        )
        return jnp.sum(x[0, at] ** 2)

    gradient = jax.jit(jax.grad(loss))
    for at in (0, 7, LENGTH - 1):
        size = np.abs(gradient(params()["embed"][:LENGTH], at)).max(axis=1)
        assert np.all(size[: at + 1] > 0)
        assert np.all(size[at + 1 :] == 0)


def test_windows_are_measured_in_positions_not_in_places():
    """All layers local: with positions spread out, far tokens fall out of a window of the same number of places."""
    config = dataclasses.replace(TOY, global_every=100)
    see = causal(1)[:, :8, :8]

    def last(first_token, spread):
        changed = tokens(1)[:, :8]
        changed[0, 0] = first_token
        return np.asarray(FORWARD(params(), config, changed, positions(1)[:, :8] * spread, see)[0, -1])

    near, far = 1, config.window  # 7 places are 7 positions, or 7 windows
    assert np.abs(last(5, near) - last(6, near)).max() > 1e-3
    assert np.array_equal(last(5, far), last(6, far))


def test_stacked_layers_equal_unrolled_ones():
    unrolled = FORWARD(params(), TOY, tokens(), positions(), causal())
    stacked_params = stack(params())
    np.testing.assert_allclose(FORWARD(stacked_params, TOY, tokens(), positions(), causal()), unrolled, atol=2e-5)
    back = unstack(stacked_params)
    jax.tree.map(np.testing.assert_array_equal, back, params())


@pytest.mark.slow
@pytest.mark.parametrize("stacked", [False, True])
def test_rematerialised_gradients_equal_plain_ones(stacked):
    def loss(p, *remat):
        x, _ = transformer.trunk(p, TOY, tokens(), positions(), causal(), positions(), None, *remat)
        return jnp.sum(x**2)

    gradient = jax.jit(jax.grad(loss), static_argnums=(1, 2))
    plain = gradient(params(stacked), False, False)
    for keep_products in (False, True):
        again = gradient(params(stacked), True, keep_products)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), plain, again)


@pytest.mark.parametrize("stacked", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_reading_a_prefix_of_the_pool_equals_reading_all_of_it(stacked):
    slots = 64
    weights, kv = params(stacked), empty_kv(TOY, 2, slots, jnp.float32, stacked)
    place = positions()[:, :20]
    see = np.broadcast_to(np.arange(slots)[None, None] <= np.arange(20)[None, :, None], (2, 20, slots))
    keys = np.broadcast_to(np.arange(slots), (2, slots))

    @functools.partial(jax.jit, static_argnums=0)
    def run(prefixes, fill):
        cache = Cache(kv, jnp.asarray(place), prefixes=prefixes, fill=fill)
        return transformer.trunk(weights, TOY, tokens()[:, :20], place, see, keys, cache)[0]

    whole = run((), 20)
    np.testing.assert_allclose(run((8, 24, 64), 20), whole, atol=1e-6)
    # a fill that fits the first prefix reads just that: the last rows then miss their own keys
    assert np.abs(run((8, 24, 64), 8) - whole).max() > 1e-3


def test_with_a_cache_all_layers_are_traced_once(monkeypatch):
    traced, real = [], attention.attention

    def counted(*arguments):
        traced.append(1)
        return real(*arguments)

    monkeypatch.setattr(attention, "attention", counted)
    place = jnp.arange(3)[None]
    cache = Cache(empty_kv(TOY, 1, 16, jnp.float32, False), place)
    see, keys = jnp.ones((1, 3, 16), bool), jnp.zeros((1, 16), int)
    jax.eval_shape(lambda params: transformer.trunk(params, TOY, tokens(1)[:, :3], place, see, keys, cache), params())
    assert len(traced) == 1 < TOY.layers


def test_slots_out_of_range_are_written_nowhere():
    kv = empty_kv(TOY, 1, 16, jnp.float32, stacked=False)
    slot = np.array([[3, 16, 17]])
    see = np.ones((1, 3, 16), bool)

    @jax.jit
    def write(kv):
        cache = Cache(kv, jnp.asarray(slot))
        return transformer.trunk(params(), TOY, tokens(1)[:, :3], slot, see, np.zeros((1, 16), int), cache)

    x, (k, _) = write(kv)
    assert np.flatnonzero(np.abs(x[0]).sum(axis=1)).tolist() == [0]  # rows without a token stay zeros
    assert np.flatnonzero(np.abs(np.asarray(k[0])).sum(axis=(0, 1, 3))).tolist() == [3]


def test_llama3_scaling_keeps_fast_waves_and_slows_slow_ones():
    plain, scaled = (Rope(500_000.0, llama3=l3).frequencies(64) for l3 in (None, (8.0, 1.0, 4.0, 8192)))
    assert scaled[0] == plain[0]
    assert scaled[-1] == pytest.approx(plain[-1] / 8)
    assert all(p / 8 <= s <= p for p, s in zip(plain, scaled, strict=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_heads": 3}, "multiple of kv_heads"),
        ({"head_dim": 7}, "must be even"),
        ({"window": None}, "set their window"),
    ],
)
def test_impossible_configs_are_refused(changes, message):
    with pytest.raises(PastaError, match=message):
        dataclasses.replace(TOY, **changes)


@pytest.mark.parametrize(
    ("name", "millions"), [("gemma_7b", 8538), ("gemma_2b", 2506), ("gemma3_270m", 268), ("smollm2_135m", 135)]
)
def test_presets_have_the_published_sizes(name, millions):
    config: TransformerConfig = PRESETS[name]
    shapes = jax.eval_shape(functools.partial(transformer.init, config, stacked=True), jax.random.key(0))
    assert round(sum(leaf.size for leaf in jax.tree.leaves(shapes)) / 1e6) == millions
