"""Hugging Face's layout, read and written, against `transformers` itself."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import PREDICTED, Positions
from pasta_jax.models import transformer
from pasta_jax.models.config import PRESETS, Rope
from pasta_jax.weights import config_file, huggingface
from pasta_jax.weights.config_file import TagRecord, config_to_json
from pasta_jax.weights.families import TRANSFORMERS
from pasta_jax.weights.lazy import params_of, read_now
from tests.helpers.models import random_params
from tests.helpers.requires import requires_dev

TOY = dataclasses.replace(PRESETS["toy"], query_scalar=12)
# transformers applies Gemma 2's caps in Gemma 2 only
VARIANTS = {
    "gemma": dataclasses.replace(
        TOY, post_norms=False, qk_norm=False, window=None, global_every=1, local_rope=None,
        attention_cap=None, logit_cap=None, query_scalar=None,
    ),
    "gemma2": dataclasses.replace(TOY, qk_norm=False, global_every=2, local_rope=None),
    "gemma3_text": dataclasses.replace(TOY, attention_cap=None, logit_cap=None),
    "llama": dataclasses.replace(
        TOY, scaled_embed=False, post_norms=False, qk_norm=False, window=None, global_every=1, local_rope=None,
        attention_cap=None, logit_cap=None, query_scalar=None, activation="silu", tied_head=False,
        rope=Rope(500_000.0, llama3=(8.0, 1.0, 4.0, 64)),
    ),
}  # fmt: skip
VARIANTS["qwen2"] = dataclasses.replace(VARIANTS["llama"], rope=Rope(1e6), qkv_bias=True)


def our_logits(params, config, ids):
    tokens = jnp.asarray(ids)[None]
    positions = jnp.arange(len(ids))[None]
    return np.asarray(transformer.forward(params, config, tokens, positions, transformer.causal(positions))[0])


def read(folder):
    """Parameters, configuration and record of a folder."""
    family, config, record = config_file.read_config(folder)
    files = huggingface.Files(folder)
    return read_now(params_of(files, TRANSFORMERS, family, config, config.vocab)), config, record


@pytest.mark.slow
@requires_dev("transformers")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", VARIANTS)
def test_transformers_loads_an_export_with_equal_logits(kind, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    config = VARIANTS[kind]
    params = random_params(config, seed=1)
    huggingface.write_model(tmp_path, params, config)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == kind
    ids = np.random.default_rng(0).integers(0, config.vocab, 40)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        expected = theirs(torch.tensor(ids)[None]).logits[0].numpy()
    np.testing.assert_allclose(our_logits(params, config, ids), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.slow
@requires_dev("transformers")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [*VARIANTS, "mistral"])
def test_reads_what_transformers_writes(kind, tmp_path):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    raw = config_to_json(VARIANTS.get(kind, VARIANTS["llama"]), None) | {"model_type": kind}
    raw |= {"sliding_window": None} if kind == "mistral" else {}
    raw.pop("architectures")
    torch.manual_seed(0)
    theirs = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(raw.pop("model_type"), **raw), attn_implementation="eager"
    )
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    theirs.save_pretrained(tmp_path)
    params, config, record = read(tmp_path)
    assert record is None
    ids = np.random.default_rng(0).integers(0, config.vocab, 40)
    with torch.no_grad():
        expected = theirs(torch.tensor(ids)[None]).logits[0].numpy()
    np.testing.assert_allclose(our_logits(params, config, ids), expected, atol=5e-5, rtol=1e-4)


RECORDED = (Positions("constant", 13), Positions("oracle"), PREDICTED, None, None)


@pytest.mark.parametrize(("kind", "positions"), [*zip(VARIANTS, RECORDED, strict=True)])
def test_config_params_and_positions_survive_a_round_trip(kind, positions, tmp_path):
    params = random_params(VARIANTS[kind], seed=2)
    record = TagRecord(256, positions)
    huggingface.write_model(tmp_path, params, VARIANTS[kind], record)
    back, config, read_record = read(tmp_path)
    assert (config, read_record) == (VARIANTS[kind], record)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), params, back)


@pytest.mark.parametrize("kind", VARIANTS)
def test_the_names_that_transformers_4_reads_say_the_same(kind, tmp_path):
    raw = config_to_json(VARIANTS[kind], None)
    for new in ("rope_parameters", "layer_types", "dtype"):
        raw.pop(new, None)
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert config_file.read_config(tmp_path)[1] == VARIANTS[kind]
    assert raw["torch_dtype"] == "float32"


def write_folder(folder, **changes):
    huggingface.write_model(folder, random_params(VARIANTS["llama"], seed=0), VARIANTS["llama"])
    raw = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "unsupported model_type 'mamba'"),
        ({"attention_bias": True}, "unsupported attention_bias"),
        ({"model_type": "mistral", "sliding_window": 64}, "unsupported sliding_window of a mistral model"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "unsupported rope scaling 'yarn'"),
        ({"hidden_act": "relu", "hidden_activation": "relu"}, "unsupported activation 'relu'"),
        ({"intermediate_size": 65}, "down_proj.weight has shape"),
        ({"num_hidden_layers": 4}, "no tensor 'model.layers.3."),
    ],
)
def test_unsupported_features_are_refused(changes, message, tmp_path):
    folder = write_folder(tmp_path, **changes)
    with pytest.raises(PastaError, match=message):
        read(folder)


def test_damaged_folders_are_named(tmp_path):
    with pytest.raises(PastaError, match=r"config\.json: not found"):
        config_file.read_config(tmp_path)
    (tmp_path / "config.json").write_text('{"a": 1,\n}')
    with pytest.raises(PastaError, match="line 2, column 1: not JSON"):
        config_file.read_config(tmp_path)
    with pytest.raises(PastaError, match=r"no \*\.safetensors file"):
        huggingface.Files(tmp_path)
    folder = write_folder(tmp_path / "cut")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(PastaError, match="not a complete safetensors file"):
        huggingface.Files(folder)


def write_section(folder, section):
    raw = json.loads((write_folder(folder) / "config.json").read_text()) | {"pasta_jax": section}
    (folder / "config.json").write_text(json.dumps(raw))


def test_an_early_export_without_positions_has_predicted_ones(tmp_path):
    write_section(tmp_path, {"tags_base": 256})
    assert config_file.read_config(tmp_path)[2] == TagRecord(256, PREDICTED)


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"tags_base": 256, "positions": {"policy": "late", "constant": 40}}, "unknown position policy 'late'"),
        ({"tags_base": 256, "positions": {"policy": "constant", "constant": "far"}}, r"Expected `int`.*constant"),
        ({"tags_base": 256, "positions": ["predicted"]}, "Expected `object"),
        ({"positions": None}, "missing required field `tags_base`"),
        (None, "Expected `object`"),
    ],
)
def test_a_malformed_section_is_refused_in_one_line(section, problem, tmp_path):
    write_section(tmp_path, section)
    with pytest.raises(PastaError, match=rf"config\.json: malformed section 'pasta_jax' \(.*{problem}") as caught:
        config_file.read_config(tmp_path)
    assert str(caught.value).endswith("export the model again")
    assert "\n" not in str(caught.value)
