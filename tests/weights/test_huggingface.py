"""Hugging Face's layout, read and written, against `transformers` itself."""

import dataclasses
import itertools
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import PREDICTED, Positions
from pasta_jax.weights import config_file, huggingface
from pasta_jax.weights.config_file import TagRecord, config_to_json
from tests.helpers.families import VARIANTS, read
from tests.helpers.models import random_params

RECORDED = (Positions("constant", 13), Positions("oracle"), PREDICTED, None)


@pytest.mark.parametrize(("kind", "positions"), [*zip(VARIANTS, itertools.cycle(RECORDED), strict=False)])
def test_config_params_and_positions_survive_a_round_trip(kind, positions, tmp_path):
    params = random_params(VARIANTS[kind], seed=2)
    record = TagRecord(256, positions)
    huggingface.write_model(tmp_path, params, VARIANTS[kind], record)
    back, config, read_record = read(tmp_path)
    assert (config, read_record) == (VARIANTS[kind], record)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), params, back)


@pytest.mark.parametrize("kind", [kind for kind in VARIANTS if kind != "gemma4_text"])  # which came with version 5
def test_the_names_that_transformers_4_reads_say_the_same(kind, tmp_path):
    raw = config_to_json(VARIANTS[kind], None)
    for new in ("rope_parameters", "dtype"):
        del raw[new]
    if "sliding_window_pattern" in raw:
        del raw["layer_types"]
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert config_file.read_config(tmp_path)[1] == VARIANTS[kind]
    assert raw["torch_dtype"] == "float32"


MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "mlp_bias": False}

YARN = {"rope_type": "yarn", "factor": 4.0}
GEMMA3 = {"model_type": "gemma3_text", "sliding_window": 8} | dict.fromkeys(
    ("hidden_size", "intermediate_size", "num_hidden_layers"), 8
)
GEMMA4 = {
    "model_type": "gemma4_text",
    "attention_bias": False,
    "mlp_bias": False,
    "sliding_window": 8,
    "rope_parameters": None,
}


def write_folder(folder, **changes):
    huggingface.write_model(folder, random_params(VARIANTS["llama"], seed=0), VARIANTS["llama"])
    older = {"rope_scaling": None} if "rope_parameters" in changes else {}
    raw = json.loads((folder / "config.json").read_text()) | older | changes
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "unsupported model_type 'mamba'"),
        ({"model_type": "gemma"}, "unsupported attention_bias of a gemma model"),
        ({"model_type": "granite", "sliding_window": 64}, "unsupported sliding_window of a granite model"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope scaling without factor"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4}}, "unsupported rope scaling 'dynamic'"),
        ({"rope_parameters": YARN, "rope_scaling": YARN | {"factor": 8.0}}, "rope_scaling and rope_parameters differ"),
        ({"rope_parameters": {"rope_type": "default"}, "rope_scaling": YARN}, "rope_scaling and rope_parameters diff"),
        ({"partial_rotary_factor": 0.5}, "unsupported partial_rotary_factor of a llama model"),
        ({"text_config": GEMMA3 | {"rope_parameters": YARN}}, "rope_parameters of no kind of layers"),
        ({"text_config": GEMMA3 | {"rope_parameters": {"rope_theta": 1e4}}}, "rope_parameters of no kind of layers"),
        (
            {"text_config": GEMMA3 | {"rope_parameters": {"sliding_attention": YARN}}},
            "unsupported rope_parameters.sliding_attention.rope_type 'yarn'",
        ),
        ({"model_type": "smollm3", "no_rope_layers": [1, 0, 0]}, r"unsupported no_rope_layers\[2\] 0"),
        ({"model_type": "qwen3_moe", "mlp_bias": False}, "num_local_experts: missing"),
        ({"model_type": "qwen3_moe", **MIXTURE, "mlp_only_layers": [1]}, "unsupported mlp_only_layers"),
        ({"model_type": "qwen3_moe", **MIXTURE, "decoder_sparse_step": 2}, "unsupported decoder_sparse_step"),
        ({**GEMMA4, "attention_k_eq_v": True}, "unsupported attention_k_eq_v"),
        ({**GEMMA4, "enable_moe_block": True}, "unsupported enable_moe_block"),
        ({**GEMMA4, "vocab_size_per_layer_input": 7}, "unsupported vocab_size_per_layer_input"),
        ({**GEMMA4, "per_layer_config": {"2": {"head_dim": 16}, "3": {}}}, "unsupported per_layer_config"),
        ({"per_layer_config": {"1": {"sliding_window": 4}}}, "unsupported per_layer_config of a llama model"),
        ({**GEMMA4, "num_kv_shared_layers": 3}, "shared_layers .3.: layer 0 has no earlier one of its kind"),
        ({"quantization_config": {"quant_method": "fp8"}}, "unsupported quantization_config 'fp8'"),
        ({"quantization_config": {"quant_method": "fp8"}, "text_config": GEMMA3}, "quantization_config 'fp8'"),
        ({"text_config": GEMMA3 | {"use_bidirectional_attention": True}}, "unsupported use_bidirectional_attention"),
        ({"is_causal": False}, "unsupported is_causal"),
        ({"model_type": "olmoe", **MIXTURE, "clip_qkv": 8.0}, "unsupported clip_qkv"),
        ({"hidden_act": "relu", "hidden_activation": "relu"}, "unsupported activation 'relu'"),
        ({"hidden_act": "gelu", "hidden_activation": None}, "unsupported activation 'gelu'"),
        ({"intermediate_size": 65}, "down_proj.weight has shape"),
        ({"num_hidden_layers": 4}, "no tensor 'model.layers.3."),
    ],
)
def test_unsupported_features_are_refused(changes, message, tmp_path):
    folder = write_folder(tmp_path, **changes)
    with pytest.raises(PastaError, match=message):
        read(folder)


@pytest.mark.parametrize("half", ["language_model.model.", "model.language_model.", "model.text_model."])
def test_the_text_half_of_a_model_for_images_is_read(half, tmp_path):
    config = VARIANTS["mistral"]
    params = random_params(config, seed=0)
    huggingface.write_model(tmp_path, params, config)
    raw, weights = json.loads((tmp_path / "config.json").read_text()), tmp_path / "model.safetensors"
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mistral3", "text_config": raw}))
    renamed = {name.replace("model.", half, 1): array for name, array in load_file(weights).items()}
    renamed |= {
        "vision_tower.x": np.zeros(3, np.float32),
        "language_model.lm_head.weight": renamed.pop("lm_head.weight"),
    }
    save_file(renamed, weights)
    back, read_config, _ = read(tmp_path)
    assert read_config == config
    jax.tree.map(np.testing.assert_array_equal, back, params)


def test_the_base_of_rope_may_stand_beside_its_scaling(tmp_path):
    scaling = {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e6}
    for changes in ({}, {"rope_theta": 1e4}):  # transformers takes the inner one
        write_folder(tmp_path, rope_parameters=None, rope_scaling=scaling, **changes)
        rope = config_file.read_config(tmp_path)[1].rope
        assert (rope.base, rope.scale) == (5e6, 4.0)


@pytest.mark.parametrize(("changes", "original"), [({}, 4096), ({"original_max_position_embeddings": 64}, 64)])
def test_the_original_context_of_phi_3_stands_beside_its_scaling(changes, original, tmp_path):
    raw = config_to_json(VARIANTS["phi3"], None) | {"rope_parameters": None, "max_position_embeddings": 8192}
    del raw["original_max_position_embeddings"]
    raw["rope_scaling"]["original_max_position_embeddings"] = 512
    (tmp_path / "config.json").write_text(json.dumps(raw | changes))
    assert config_file.read_config(tmp_path)[1].context == original


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {"hidden_act": "swish", "hidden_activation": None}),
        ("gemma2", {"hidden_activation": "gelu_new"}),
        ("olmoe", {"norm_topk_prob": None, "decoder_sparse_step": None}),
        ("qwen2", {"attention_bias": True}),
        ("mistral", {"attention_bias": True}),
    ],
)
def test_other_words_for_the_same_are_read(kind, changes, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config_to_json(VARIANTS[kind], None) | changes))
    assert config_file.read_config(tmp_path)[1] == VARIANTS[kind]


def test_windows_of_qwen_count_where_the_file_says_so(tmp_path):
    huggingface.write_model(tmp_path, random_params(VARIANTS["qwen2"], seed=0), VARIANTS["qwen2"])
    plain = json.loads((tmp_path / "config.json").read_text())
    types = ["full_attention", "sliding_attention", "full_attention"]
    for changes, window in (
        ({"sliding_window": 16}, None),
        ({"sliding_window": 16, "use_sliding_window": False}, None),
        ({"sliding_window": 16, "use_sliding_window": True, "layer_types": [types[1]] * 3}, 16),
    ):
        (tmp_path / "config.json").write_text(json.dumps(plain | changes))
        assert config_file.read_config(tmp_path)[1].window == window
    for changes, message in (({}, "without layer_types"), ({"layer_types": types}, r"unsupported layer_types\[1\]")):
        raw = plain | {"sliding_window": 16, "use_sliding_window": True} | changes
        (tmp_path / "config.json").write_text(json.dumps(raw))
        with pytest.raises(PastaError, match=message):
            config_file.read_config(tmp_path)


@pytest.mark.parametrize("kind", ["gemma2", "gemma3_text", "gemma4_text", "gpt_oss", "olmo3"])
def test_local_layers_stay_what_they_are_where_their_window_holds_the_context(kind, tmp_path):
    config = dataclasses.replace(VARIANTS[kind], context=VARIANTS[kind].window)
    huggingface.write_model(tmp_path, random_params(config, seed=0), config)
    assert config_file.read_config(tmp_path)[1] == config


def test_damaged_folders_are_named(tmp_path):
    with pytest.raises(PastaError, match=r"config\.json: not found"):
        config_file.read_config(tmp_path)
    (tmp_path / "config.json").write_text('{"a": 1,\n}')
    with pytest.raises(PastaError, match="line 2, column 1: not JSON"):
        config_file.read_config(tmp_path)
    with pytest.raises(PastaError, match=r"no \*\.safetensors file"):
        huggingface.Files(tmp_path)
    folder = write_folder(tmp_path / "quantised")
    header = json.dumps({"model.norm.weight": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"ab")
    with pytest.raises(PastaError, match=r"model\.norm\.weight is of F8_E4M3, not BF16; use the model in float32"):
        huggingface.Files(folder).read("model.norm.weight")
    folder = write_folder(tmp_path / "cut")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(PastaError, match="not a complete safetensors file"):
        huggingface.Files(folder)


def test_only_the_files_that_the_index_names_are_read(tmp_path):
    folder = write_folder(tmp_path)
    whole, name = folder / "model.safetensors", "model.norm.weight"
    expected = load_file(whole)[name]
    stale = {other: np.zeros_like(array) for other, array in load_file(whole).items()}
    save_file(stale, folder / "model-00004-of-00004.safetensors")
    np.testing.assert_array_equal(huggingface.Files(folder).read(name), expected)
    first, index = whole.rename(folder / "model-00001-of-00001.safetensors"), folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(stale, first.name)}))
    np.testing.assert_array_equal(huggingface.Files(folder).read(name), expected)
    for named, message in (("../x.safetensors", "names files of other folders"), ("none.safetensors", "No such file")):
        index.write_text(json.dumps({"weight_map": {name: named}}))
        with pytest.raises(PastaError, match=message):
            huggingface.Files(folder)


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"short_factor": [1.0, 2.0, 3.0, 4.0], "original_max_position_embeddings": 32}


@pytest.mark.parametrize("stated", [YARN, LLAMA3])
def test_the_original_context_is_the_whole_where_a_scaling_leaves_it_out(stated, tmp_path):
    context = VARIANTS["llama"].context
    ropes = [
        config_file.read_config(write_folder(tmp_path / str(len(more)), rope_parameters=stated | more))[1].rope
        for more in ({}, {"original_max_position_embeddings": context})
    ]
    assert ropes[0] == ropes[1]
    assert context in (ropes[0].yarn.context if ropes[0].yarn else None, *(ropes[0].llama3 or ()))


def test_phi_3_calls_long_rope_yarn_too(tmp_path):
    ropes = [
        config_file.read_config(write_folder(tmp_path / name, rope_parameters=LONG | {"type": name}))[1].rope
        for name in ("longrope", "su", "yarn")
    ]
    assert ropes[0].divisors == (1.0, 2.0, 3.0, 4.0)
    assert ropes[0] == ropes[1] == ropes[2]


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
