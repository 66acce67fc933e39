"""LoRA adapters: attach, merge, save, load."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pasta_jax.errors import PastaError
from pasta_jax.lang.tags import TagIds
from pasta_jax.models import adapter as lora
from pasta_jax.models import transformer
from pasta_jax.models.config import PRESETS
from tests.models import random_params

TOY = PRESETS["toy"]
TAGS = TagIds(256)
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, TOY.vocab, (2, 30)))


def logits(params):
    positions = jnp.broadcast_to(jnp.arange(30), (2, 30))
    return transformer.forward(params, TOY, TOKENS, positions, transformer.causal(positions))


def disturbed(adapter, seed=1):
    """An adapter as training would leave it."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: leaf + 0.3 * rng.standard_normal(leaf.shape).astype(np.float32), adapter)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_attach_equals_merge_and_starts_as_the_base(stacked, tied):
    config = dataclasses.replace(TOY, tied_head=tied)
    params = jax.tree.map(jnp.asarray, random_params(config, seed=3, stacked=stacked))
    fresh = lora.new_adapter(params, lora.AdapterConfig(rank=4, alpha=8.0), TAGS, seed=0)
    np.testing.assert_array_equal(logits(params), logits(lora.merge(params, fresh, TAGS)))
    np.testing.assert_array_equal(logits(params), logits(lora.attach(params, fresh, TAGS)))
    trained = disturbed(fresh)
    merged, attached = logits(lora.merge(params, trained, TAGS)), logits(lora.attach(params, trained, TAGS))
    np.testing.assert_allclose(merged, attached, atol=2e-5)
    assert np.abs(merged - logits(params)).max() > 0.1


def test_gradients_reach_every_leaf_of_the_adapter_and_nothing_else():
    params = jax.tree.map(jnp.asarray, random_params(TOY, seed=3))
    adapter = disturbed(lora.new_adapter(params, lora.AdapterConfig(rank=2, alpha=2.0), TAGS, seed=0))
    gradient = jax.grad(lambda a: jnp.sum(logits(lora.attach(params, a, TAGS)) ** 2))(adapter)
    assert all(float(jnp.abs(leaf).max()) > 0 for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("stacked", [False, True])
def test_saved_and_loaded_is_the_same_in_either_layout(stacked, tmp_path):
    params = jax.tree.map(jnp.asarray, random_params(TOY, seed=3, stacked=stacked))
    adapter = disturbed(
        lora.new_adapter(params, lora.AdapterConfig(rank=3, alpha=3.0, targets=("qkv", "out")), TAGS, 0)
    )
    lora.save_adapter(tmp_path / "a.safetensors", adapter, {"base": "toy", "rank": 3})
    back, about = lora.load_adapter(tmp_path / "a.safetensors", params, TOY)
    assert about == {"base": "toy", "rank": 3}
    jax.tree.map(np.testing.assert_array_equal, back, adapter)
    other_layout = transformer.unstack_layers(params, TOY) if stacked else transformer.stack_layers(params)
    moved, _ = lora.load_adapter(tmp_path / "a.safetensors", other_layout, TOY)
    expected = logits(lora.merge(params, adapter, TAGS))
    np.testing.assert_allclose(logits(lora.merge(other_layout, moved, TAGS)), expected, atol=1e-5)


def test_foreign_and_damaged_files_are_refused_by_name(tmp_path):
    params = jax.tree.map(jnp.asarray, random_params(TOY, seed=3))
    path = tmp_path / "a.safetensors"
    lora.save_adapter(path, lora.new_adapter(params, lora.AdapterConfig(2, 2.0), TAGS, 0), {})
    wider = dataclasses.replace(TOY, ff=96)
    with pytest.raises(PastaError, match="down was trained for kernels of another shape"):
        lora.load_adapter(path, random_params(wider, seed=0), wider)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(PastaError, match="not a whole adapter file"):
        lora.load_adapter(path, params, TOY)
    with pytest.raises(PastaError, match="not a whole adapter file"):
        lora.load_adapter(tmp_path / "none", params, TOY)
    from safetensors.numpy import save_file

    save_file({"x": np.zeros(1, np.float32)}, path)
    with pytest.raises(PastaError, match="not an adapter of this program"):
        lora.load_adapter(path, params, TOY)
    with pytest.raises(PastaError, match="target 'qvk'"):
        lora.AdapterConfig(2, 2.0, targets=("qvk",))
