"""Adapters in PEFT's layout, against `peft` on a model in `transformers`."""

import dataclasses
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from pasta_jax.lang.structure import PREDICTED
from pasta_jax.models import parameters
from pasta_jax.weights import adapter as lora
from pasta_jax.weights import huggingface
from pasta_jax.weights.model import Model
from tests.helpers.byte_tokenizer import ByteTokenizer
from tests.helpers.families import VARIANTS, our_logits
from tests.helpers.models import random_params, trained
from tests.helpers.requires import requires_dev

TOKENIZER = ByteTokenizer()
KINDS = {
    "llama": VARIANTS["llama"],
    "llama, tied": dataclasses.replace(VARIANTS["llama"], tied_head=True),
}


TARGETS = lora.AdapterSettings().targets


def saved(folder, kind: str, targets=TARGETS, dtype="float32"):
    """A base and a trained adapter of it, saved; the base's parameters with the adapter merged."""
    config = KINDS[kind]
    params = random_params(config, seed=1)
    base = Model("toy", config, params, TOKENIZER)
    settings = lora.AdapterSettings(rank=3, alpha=6.0, targets=targets)
    adapter = trained(lora.new_adapter(params, settings, TOKENIZER.tags, seed=0), seed=2)
    lora.save_adapter(folder, adapter, base, lora.describe(base, settings, PREDICTED), dtype)
    huggingface.write_model(folder.parent / "base", params, config)
    return lora.merge_on_host(params, lora.rounded(adapter, dtype), TOKENIZER.tags), config


@pytest.mark.slow
@requires_dev("peft")
@pytest.mark.filterwarnings("ignore")
def test_peft_loads_an_adapter_in_bfloat16_with_equal_logits(tmp_path):
    """In float32, and without a tied head, every family's is compared in helpers/families.py."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    merged, config = saved(tmp_path / "adapter", "llama, tied", dtype="bfloat16")
    options = {"attn_implementation": "eager", "dtype": torch.float32}
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", **options)
    tags = TOKENIZER.tags
    ids = np.concatenate([np.random.default_rng(0).integers(0, tags.base, 20), np.arange(tags.base, tags.end)])
    with torch.no_grad():
        plain = base(torch.tensor(ids)[None]).logits[0].numpy()
        theirs = PeftModel.from_pretrained(base, tmp_path / "adapter")
        expected = theirs(torch.tensor(ids)[None]).logits[0].numpy()
    ours = our_logits(merged, config, ids)
    np.testing.assert_allclose(ours, expected, atol=5e-5, rtol=1e-4)
    assert np.abs(ours - plain).max() > 0.1


def test_a_pair_of_a_fused_kernel_becomes_one_per_matrix(tmp_path):
    saved(tmp_path / "adapter", "llama", targets=("qkv", "down"))
    about = json.loads((tmp_path / "adapter" / lora.CONFIG).read_text())
    assert about["target_modules"] == ["q_proj", "k_proj", "v_proj", "down_proj"]
    tags = list(range(TOKENIZER.tags.base, TOKENIZER.tags.end))
    assert about["trainable_token_indices"] == {"embed_tokens": tags, "lm_head": tags}
    assert about["r"] == about["lora_alpha"] == 3
    flat = load_file(tmp_path / "adapter" / lora.WEIGHTS)
    layer = "base_model.model.model.layers.2.self_attn"
    q, k, v = (flat[f"{layer}.{name}_proj.lora_A.weight"] for name in "qkv")
    assert np.array_equal(q, k)
    assert np.array_equal(q, v)
    assert flat["base_model.model.lm_head.token_adapter.trainable_tokens_delta"].shape == (68, KINDS["llama"].embed)
    assert len(flat) == 2 * 4 * KINDS["llama"].layers + 2


def test_a_tied_head_follows_the_embedding(tmp_path):
    saved(tmp_path / "adapter", "llama, tied")
    assert list(json.loads((tmp_path / "adapter" / lora.CONFIG).read_text())["trainable_token_indices"]) == [
        "embed_tokens"
    ]


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in ("gemma3_text", "gpt_oss") for name in parameters.kernel_names(VARIANTS[kind])],
)
def test_the_parts_of_a_kernel_give_the_kernel(kind, name):
    config = VARIANTS[kind]
    kernel = random_params(config, seed=3)["layers"][0][name]["kernel"]
    parts = parameters.split_kernel(name, kernel, config)
    np.testing.assert_array_equal(parameters.join_kernel(name, parts, config), kernel)
