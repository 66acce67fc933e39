"""LoRA adapters: attach, merge, save, load."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import save_file

from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import Positions
from pasta_jax.lang.tags import TagIds
from pasta_jax.models import adapter as lora
from pasta_jax.models import transformer
from pasta_jax.models.config import PRESETS
from pasta_jax.models.layers import stack, unstack
from pasta_jax.models.weights import Model
from tests.byte_tokenizer import ByteTokenizer
from tests.models import random_params

TOY = PRESETS["toy"]
TAGS = TagIds(256)
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, TOY.vocab, (2, 30)))


def logits(params):
    positions = jnp.broadcast_to(jnp.arange(30), (2, 30))
    return transformer.forward(params, TOY, TOKENS, positions, transformer.causal(positions))


def trained(adapter, seed=1):
    """An adapter as training would leave it."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: leaf + 0.3 * rng.standard_normal(leaf.shape).astype(np.float32), adapter)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_attach_equals_merge_and_a_fresh_adapter_changes_nothing(stacked, tied):
    config = dataclasses.replace(TOY, tied_head=tied)
    params = jax.tree.map(jnp.asarray, random_params(config, seed=3, stacked=stacked))
    fresh = lora.new_adapter(params, lora.AdapterConfig(rank=4, alpha=8.0), TAGS, seed=0)
    np.testing.assert_array_equal(logits(params), logits(lora.merge(params, fresh, TAGS)))
    np.testing.assert_array_equal(logits(params), logits(lora.attach(params, fresh, TAGS)))
    adapter = trained(fresh)
    merged, attached = logits(lora.merge(params, adapter, TAGS)), logits(lora.attach(params, adapter, TAGS))
    np.testing.assert_allclose(merged, attached, atol=2e-5)
    assert np.abs(merged - logits(params)).max() > 0.1


def test_gradients_reach_every_leaf_of_the_adapter_and_nothing_else():
    params = jax.tree.map(jnp.asarray, random_params(TOY, seed=3))
    adapter = trained(lora.new_adapter(params, lora.AdapterConfig(rank=2, alpha=2.0), TAGS, seed=0))
    gradient = jax.grad(lambda a: jnp.sum(logits(lora.attach(params, a, TAGS)) ** 2))(adapter)
    assert all(float(jnp.abs(leaf).max()) > 0 for leaf in jax.tree.leaves(gradient))


def model(config=TOY, seed=3, stacked=False, tokenizer=None) -> Model:
    params = jax.tree.map(jnp.asarray, random_params(config, seed, stacked=stacked))
    return Model("toy", config, params, tokenizer or ByteTokenizer(), fingerprint=f"of {seed}")


def saved(path, base):
    """A trained adapter of the base, in a file."""
    settings = lora.AdapterConfig(rank=3, alpha=3.0, targets=("qkv", "out"))
    adapter = trained(lora.new_adapter(base.params, settings, TAGS, 0))
    about = lora.describe(base, settings, Positions("shared_start"))
    lora.save_adapter(path, adapter, about)
    return adapter, about


@pytest.mark.parametrize("stacked", [False, True])
def test_an_adapter_is_restored_in_either_layout(stacked, tmp_path):
    base, other = model(stacked=stacked), model(stacked=not stacked)
    adapter, about = saved(tmp_path / "a.safetensors", base)
    restored, record = lora.load_adapter(tmp_path / "a.safetensors", base)
    assert record == about
    assert record.positions == Positions("shared_start")
    jax.tree.map(np.testing.assert_array_equal, restored, adapter)
    moved, _ = lora.load_adapter(tmp_path / "a.safetensors", other)
    layers = unstack(base.params) if stacked else stack(base.params)
    expected = logits(lora.merge(base.params, adapter, TAGS))
    np.testing.assert_allclose(logits(lora.merge(layers, moved, TAGS)), expected, atol=1e-5)


@pytest.mark.parametrize("stacked", [False, True])
def test_an_adapter_in_bfloat16_is_restored_in_float32(stacked, tmp_path):
    base, path = model(stacked=stacked), tmp_path / "a.safetensors"
    adapter, about = saved(path, base)
    lora.save_adapter(path, adapter, about, jnp.bfloat16)
    restored, record = lora.load_adapter(path, base)
    assert record == about
    assert {leaf.dtype for leaf in jax.tree.leaves(restored)} == {jnp.dtype(jnp.float32)}
    jax.tree.map(np.testing.assert_array_equal, restored, lora.rounded(adapter, jnp.bfloat16))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2**-8), restored, adapter)


def test_rank_16_of_smollm2_takes_8_megabytes_in_bfloat16(tmp_path):
    shapes = jax.eval_shape(lambda: transformer.init(PRESETS["smollm2_135m"], jax.random.key(0), stacked=True))
    settings = lora.AdapterConfig(rank=16, alpha=32.0)
    shapes = jax.eval_shape(lambda params: lora.new_adapter(params, settings, TagIds(49_152), 0), shapes)
    adapter = jax.tree.map(lambda shape: np.zeros(shape.shape, np.float32), shapes)
    path = tmp_path / "a.safetensors"
    lora.save_adapter(path, adapter, lora.About("", "", "", None, 16, 32.0, lora.TARGETS), "bfloat16")
    assert 8e6 < path.stat().st_size < 8.5e6


def test_merging_on_the_host_is_bit_equal():
    params = random_params(dataclasses.replace(TOY, tied_head=False), seed=3)
    on_device = jax.tree.map(jnp.asarray, params)
    adapter = trained(lora.new_adapter(on_device, lora.AdapterConfig(rank=2, alpha=2.0), TAGS, seed=0))
    merged = lora.merge_on_host(params, adapter, TAGS)
    assert {type(leaf) for leaf in jax.tree.leaves(merged)} == {np.ndarray}
    jax.tree.map(np.testing.assert_array_equal, merged, lora.merge(on_device, adapter, TAGS))


class OtherTokenizer(ByteTokenizer):
    name = "other"


def test_an_adapter_for_another_base_or_tokenizer_is_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    saved(path, model())
    with pytest.raises(PastaError, match="an adapter for other weights of toy") as caught:
        lora.load_adapter(path, model(seed=4))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(PastaError, match="an adapter for toy, not big"):
        lora.load_adapter(path, dataclasses.replace(model(seed=4), name="big"))
    with pytest.raises(PastaError, match="trained with another tokenizer than that of toy"):
        lora.load_adapter(path, model(tokenizer=OtherTokenizer()))


def test_foreign_and_damaged_files_are_refused(tmp_path):
    base, path = model(), tmp_path / "a.safetensors"
    adapter, about = saved(path, base)
    wider = dataclasses.replace(TOY, embed=16)
    with pytest.raises(PastaError, match=r"layers.out.lora_b has shape \(3, 32, 3\), .* it must be \(3, 16, 3\)"):
        lora.load_adapter(path, model(wider))
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    with pytest.raises(PastaError, match="not a complete adapter file"):
        lora.load_adapter(path, base)
    path.write_bytes(b"")
    with pytest.raises(PastaError, match="not a complete adapter file"):
        lora.load_adapter(path, base)
    with pytest.raises(PastaError, match="none: not found; use an adapter file"):
        lora.load_adapter(tmp_path / "none", base)
    save_file({"x": np.zeros(1, np.float32)}, path)
    with pytest.raises(PastaError, match="format None, expected 'pasta_jax adapter 2'"):
        lora.load_adapter(path, base)
    with pytest.raises(PastaError, match="unknown adapter target 'qvk'"):
        lora.AdapterConfig(2, 2.0, targets=("qvk",))
    lora.save_adapter(path, adapter, dataclasses.replace(about, rank=5))
    with pytest.raises(PastaError, match=r"lora_a has shape \(3, 3, 32\), for this base and rank 5"):
        lora.load_adapter(path, base)
    for wrong in (dataclasses.replace(about, targets=("qvk",)), dataclasses.replace(about, rank="3")):
        lora.save_adapter(path, adapter, wrong)
        with pytest.raises(PastaError, match=r"a\.safetensors: malformed record of the adapter"):
            lora.load_adapter(path, base)
    lora.save_adapter(path, {**adapter, "tag_rows": {}}, about)
    with pytest.raises(PastaError, match=r"tag_rows\.embed has shape None"):
        lora.load_adapter(path, base)


def test_a_full_disk_leaves_no_file(tmp_path, monkeypatch):
    def full(*_, **__):
        raise SafetensorError("Error while serializing: No space left on device")

    monkeypatch.setattr("pasta_jax.models.tensor_file.save_file", full)
    with pytest.raises(PastaError, match=r"a\.safetensors: .*No space left on device; choose a writable path"):
        saved(tmp_path / "a.safetensors", model())
    assert list(tmp_path.iterdir()) == []
