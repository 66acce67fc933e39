"""Files of mixtures of experts: gpt-oss's matrices in 4 bits, blocks of GGUF files, and what an adapter can't have."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from pasta_jax.errors import PastaError
from pasta_jax.files import safetensors
from pasta_jax.models.kernels.cpu import library
from pasta_jax.weights import adapter as lora
from pasta_jax.weights import huggingface
from pasta_jax.weights.model import Model
from tests.helpers.byte_tokenizer import ByteTokenizer
from tests.helpers.families import IN_GGUF, VARIANTS, our_logits, read
from tests.helpers.gguf_models import gguf_bytes
from tests.helpers.loading import load_model
from tests.helpers.models import random_params
from tests.helpers.requires import requires_dev


@requires_dev("transformers")
@pytest.mark.filterwarnings("ignore")
def test_matrices_in_mxfp4_are_those_of_transformers(tmp_path):
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    config = dataclasses.replace(VARIANTS["gpt_oss"], embed=64, ff=32, layers=1)
    huggingface.write_model(tmp_path, random_params(config, seed=0), config)
    rng, kept, expected = np.random.default_rng(0), {}, {}
    files = huggingface.Files(tmp_path)
    for name in files._place_of:
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            kept[name] = files.read(name)
            continue
        experts, inputs, outputs = files.read(name).shape
        blocks = rng.integers(0, 256, (experts, outputs, inputs // 32, 16)).astype(np.uint8)
        scales = rng.integers(120, 130, (experts, outputs, inputs // 32)).astype(np.uint8)
        kept |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        theirs = convert_moe_packed_tensors(torch.tensor(blocks), torch.tensor(scales), dtype=torch.float32)
        expected[name.rpartition(".")[2]] = theirs.numpy()
    safetensors.write(tmp_path / "model.safetensors", kept, {"format": "pt"})
    layer = read(tmp_path)[0]["layers"][0]
    np.testing.assert_array_equal(layer["gate_up"]["kernel"].swapaxes(1, 2), expected["gate_up_proj"])
    np.testing.assert_array_equal(layer["down"]["kernel"].swapaxes(1, 2), expected["down_proj"])


def test_blocks_without_their_scales_are_refused():
    blocks, scales = np.zeros((2, 3, 1, 16), np.uint8), np.zeros((2, 3, 1), np.uint8)
    huggingface.from_mxfp4(blocks, scales)
    for wrong in ((blocks[..., :8], scales), (blocks, scales[:1]), (blocks.astype(np.float32), scales)):
        with pytest.raises(PastaError, match="are no MXFP4"):
            huggingface.from_mxfp4(*wrong)


@pytest.mark.slow
@pytest.mark.usefixtures("kernels_on_simulated_devices")
@pytest.mark.skipif(library.library() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("kind", ["qwen3_moe", "gpt_oss"])
def test_experts_are_decoded_with_from_the_blocks_of_a_file(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("PASTA_JAX_CACHE", str(tmp_path / "cache"))
    sizes = dict(layers=2, embed=64, ff=32, heads=4, kv_heads=2, head_dim=16)
    config = dataclasses.replace(VARIANTS[kind], **IN_GGUF[kind], **sizes)
    formats = {"ffn_gate_exps": "Q4_0", "ffn_up_exps": "Q4_1", "ffn_down_exps": "Q8_0", "attn_output": "Q8_0"}
    name = {"qwen3_moe": "qwen3moe", "gpt_oss": "gpt-oss"}[kind]
    (tmp_path / "toy.gguf").write_bytes(gguf_bytes(name, config, formats=formats)[0])
    expected = load_model("", str(tmp_path / "toy.gguf"))
    model = load_model("", str(tmp_path / "toy.gguf"), dtype="q4", only_decoding=True)
    experts = model.params["layers"][1]["gate_up"]
    assert (experts["codes"].dtype, len(experts["codes"])) == (jnp.uint32, config.experts)
    assert model.fingerprint == expected.fingerprint
    tokens = np.random.default_rng(0).integers(0, 300, 12)
    ours, theirs = (our_logits(one.params, one.config, tokens) for one in (model, expected))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


def test_an_adapter_of_experts_is_refused(tmp_path):
    config, tokenizer, settings = VARIANTS["qwen3_moe"], ByteTokenizer(), lora.AdapterSettings(rank=2, alpha=4.0)
    base = Model("mixture", config, random_params(config, seed=0), tokenizer)
    with pytest.raises(PastaError, match="adapter targets gate_up, down: matrices of experts"):
        lora.new_adapter(base.params, settings, tokenizer.tags, seed=0)
    attention = dataclasses.replace(settings, targets=("qkv", "out"))
    adapter = lora.new_adapter(base.params, attention, tokenizer.tags, seed=0)
    lora.save_adapter(tmp_path, adapter, base, lora.describe(base, settings, None))  # which says that it's of experts
    with pytest.raises(PastaError, match=f"{tmp_path}: adapter targets gate_up, down: matrices of experts"):
        lora.load_adapter(tmp_path, base)
