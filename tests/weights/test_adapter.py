"""LoRA adapters: attach, merge, save, load."""

import dataclasses
import errno
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import Positions
from pasta_jax.lang.tags import TagIds
from pasta_jax.models import transformer
from pasta_jax.models.config import PRESETS
from pasta_jax.models.parameters import stack, unstack
from pasta_jax.weights import adapter as lora
from pasta_jax.weights.model import Model
from tests.helpers.byte_tokenizer import ByteTokenizer
from tests.helpers.models import random_params, trained

TOY = PRESETS["toy"]
TAGS = TagIds(256)
TOKENS = np.random.default_rng(0).integers(0, TOY.vocab, (2, 30))


@jax.jit  # one by one, its operations take far longer to compile
def logits(params):
    positions = np.broadcast_to(np.arange(30), (2, 30))
    return transformer.forward(params, TOY, TOKENS, positions, transformer.causal(positions))


@pytest.mark.parametrize(
    ("tied", "stacked"),
    [
        (False, True),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((False, False), (True, False), (True, True))),
    ],
)
def test_attach_equals_merge_and_a_fresh_adapter_changes_nothing(stacked, tied):
    config = dataclasses.replace(TOY, tied_head=tied)
    params = jax.device_put(random_params(config, seed=3, stacked=stacked))
    fresh = lora.new_adapter(params, lora.AdapterSettings(rank=4, alpha=8.0), TAGS, seed=0)
    np.testing.assert_array_equal(logits(params), logits(lora.merge(params, fresh, TAGS)))
    beside = logits(lora.attach(params, fresh, TAGS))  # the tags' logits are a product of their own
    np.testing.assert_allclose(logits(params), beside, rtol=0, atol=2e-6)
    adapter = trained(fresh)
    merged, attached = logits(lora.merge(params, adapter, TAGS)), logits(lora.attach(params, adapter, TAGS))
    np.testing.assert_allclose(merged, attached, atol=2e-5)
    assert np.abs(merged - logits(params)).max() > 0.1


def test_gradients_reach_every_leaf_of_the_adapter_and_nothing_else():
    params = jax.device_put(random_params(TOY, seed=3))
    adapter = trained(lora.new_adapter(params, lora.AdapterSettings(rank=2, alpha=2.0), TAGS, seed=0))
    gradient = jax.jit(jax.grad(lambda a: jnp.sum(logits(lora.attach(params, a, TAGS)) ** 2)))(adapter)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradient))


def model(config=TOY, seed=3, stacked=False, tokenizer=None) -> Model:
    params = jax.device_put(random_params(config, seed, stacked=stacked))
    return Model("toy", config, params, tokenizer or ByteTokenizer(), fingerprint=f"of {seed}")


def saved(path, base):
    """A trained adapter of the base, in a file."""
    settings = lora.AdapterSettings(rank=3, alpha=3.0, targets=("qkv", "out"))
    adapter = trained(lora.new_adapter(base.params, settings, TAGS, 0))
    about = lora.describe(base, settings, Positions("shared_start"))
    lora.save_adapter(path, adapter, base, about)
    return adapter, about


@pytest.mark.parametrize("stacked", [False, True])
def test_an_adapter_is_restored_in_either_layout_and_from_bfloat16(stacked, tmp_path):
    base, other, path = model(stacked=stacked), model(stacked=not stacked), tmp_path / "a"
    adapter, about = saved(path, base)
    restored, record = lora.load_adapter(path, base)
    assert record == about
    assert record.positions == Positions("shared_start")
    jax.tree.map(np.testing.assert_array_equal, restored, adapter)
    moved, _ = lora.load_adapter(path, other)
    layers = unstack(base.params) if stacked else stack(base.params)
    expected = logits(lora.merge(base.params, adapter, TAGS))
    np.testing.assert_allclose(logits(lora.merge(layers, moved, TAGS)), expected, atol=1e-5)

    lora.save_adapter(path, adapter, base, about, jnp.bfloat16)
    restored, record = lora.load_adapter(path, base)
    assert record == about
    assert {leaf.dtype for leaf in jax.tree.leaves(restored)} == {jnp.dtype(jnp.float32)}
    jax.tree.map(np.testing.assert_array_equal, restored, lora.rounded(adapter, jnp.bfloat16))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2**-8), restored, adapter)


def test_rank_16_of_smollm2_takes_10_megabytes_in_bfloat16(tmp_path):
    config, settings = PRESETS["smollm2_135m"], lora.AdapterSettings(rank=16, alpha=32.0)
    shapes = jax.eval_shape(lambda: transformer.init(config, jax.random.key(0), stacked=True))
    shapes = jax.eval_shape(lambda params: lora.new_adapter(params, settings, TagIds(49_152), 0), shapes)
    adapter = jax.tree.map(lambda shape: np.zeros(shape.shape, np.float32), shapes)
    base = Model("smollm2_135m", config, {}, ByteTokenizer())
    lora.save_adapter(tmp_path, adapter, base, lora.About("", "", "", None, 16, 32.0, settings.targets), "bfloat16")
    assert 9.5e6 < sum(path.stat().st_size for path in tmp_path.iterdir()) < 10.5e6


def test_merging_on_the_host_is_bit_equal():
    params = random_params(dataclasses.replace(TOY, tied_head=False), seed=3)
    on_device = jax.device_put(params)
    adapter = trained(lora.new_adapter(on_device, lora.AdapterSettings(rank=2, alpha=2.0), TAGS, seed=0))
    merged = lora.merge_on_host(params, adapter, TAGS)
    assert {type(leaf) for leaf in jax.tree.leaves(merged)} == {np.ndarray}
    jax.tree.map(np.testing.assert_array_equal, merged, lora.merge(on_device, adapter, TAGS))


class OtherTokenizer(ByteTokenizer):
    name = "other"


@pytest.mark.parametrize(
    ("changes", "name", "message"),
    [
        ({"seed": 4}, "toy", "an adapter for other weights of toy"),
        ({"seed": 4}, "big", "an adapter for toy, not big"),
        ({"tokenizer": OtherTokenizer()}, "toy", "trained with another tokenizer than that of toy"),
        ({"config": dataclasses.replace(TOY, embed=16)}, "toy", r"tokens_delta has shape \(68, 32\), .* \(68, 16\)"),
    ],
)
def test_an_adapter_for_another_base_or_tokenizer_is_refused(tmp_path, changes, name, message):
    path = tmp_path / "a"
    saved(path, model())
    with pytest.raises(PastaError, match=message) as caught:
        lora.load_adapter(path, dataclasses.replace(model(**changes), name=name))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def rewrite(folder, change=lambda flat: None, **about) -> None:
    """The folder's weights with changed tensors and a changed record."""
    path = folder / lora.WEIGHTS
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    flat = load_file(path)
    change(flat)
    record = json.loads(metadata["about"]) | about
    save_file(flat, path, metadata | {"about": json.dumps(record)})


QUERY, KEY = (f"base_model.model.model.layers.1.self_attn.{name}_proj" for name in "qk")
ROWS = "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"


@pytest.mark.parametrize(
    ("change", "about", "message"),
    [
        (
            lambda flat: None,
            {"rank": 5},
            r"shape \(3, 32\), for this base and rank 5 it must be \(5, 32\)",
        ),
        (lambda flat: None, {"targets": ("qvk",)}, r"/a: malformed record of the adapter"),
        (lambda flat: None, {"rank": "3"}, r"/a: malformed record of the adapter"),
        (lambda flat: flat.pop(ROWS), {}, r"trainable_tokens_delta has shape None"),
        (lambda flat: flat.update(x=np.zeros(1)), {}, r"x has shape \(1,\), .* it must be None"),
        (
            lambda flat: flat.update({f"{KEY}.lora_A.weight": flat[f"{KEY}.lora_A.weight"] + 1}),
            {},
            rf"{QUERY}\.lora_A\.weight and {KEY}\.lora_A\.weight differ",
        ),
    ],
)
def test_changed_files_are_refused(tmp_path, change, about, message):
    base, path = model(), tmp_path / "a"
    saved(path, base)
    rewrite(path, change, **about)
    with pytest.raises(PastaError, match=message):
        lora.load_adapter(path, base)


def test_foreign_and_damaged_files_are_refused(tmp_path):
    base, path = model(), tmp_path / "a"
    saved(path, base)
    weights = path / lora.WEIGHTS
    for content in (weights.read_bytes()[:-10], b""):
        weights.write_bytes(content)
        with pytest.raises(PastaError, match="not a complete adapter file"):
            lora.load_adapter(path, base)
    for place in (path / lora.WEIGHTS, path):
        weights.unlink(missing_ok=True)
        with pytest.raises(PastaError, match=f"{place}: not found; use one of .*qwen2_5_coder_1_5b, .*training run"):
            lora.load_adapter(place, base)
    save_file({"x": np.zeros(1, np.float32)}, weights)
    with pytest.raises(PastaError, match="format None, expected 'adapter 3'"):
        lora.load_adapter(path, base)


def test_a_full_disk_leaves_no_weights(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pasta_jax.files.safetensors.np.ascontiguousarray", full)
    with pytest.raises(PastaError, match=r"safetensors: .*No space left on device; choose a writable path"):
        saved(tmp_path / "a", model())
    assert not list(tmp_path.rglob("*.safetensors*"))
