"""Each family of models beside `transformers` and `peft`, and in other forms; tests/families.py prints the table."""

import dataclasses
import json

import numpy as np
import pytest

from pasta_jax.errors import PastaError
from pasta_jax.files.gguf import GGUF
from pasta_jax.models.parameters import plain_shapes
from pasta_jax.models.rope import Rope
from pasta_jax.weights import config_file, families, gguf_model
from pasta_jax.weights.family import TRANSFORMERS
from tests import configurations
from tests.helpers.families import CHECKS, IN_GGUF, MOST, VARIANTS, applies, difference
from tests.helpers.gguf_models import gguf_bytes
from tests.helpers.requires import requires_dev

# What a config.json must state: of each family but Gemma 3's, which leaves most out; and what some must besides.
FEWEST = {"model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "sliding_window"}
NEEDED = FEWEST - {"sliding_window"} | {"num_attention_heads", "max_position_embeddings", "rms_norm_eps", "vocab_size"}
ALSO = {
    "ministral3": {"rope_parameters"},
    "qwen3_moe": {"moe_intermediate_size", "num_experts_per_tok", "num_local_experts"},
    "olmoe": {"num_experts", "num_experts_per_tok"},
    "gpt_oss": {"head_dim", "num_experts_per_tok", "num_local_experts", "rope_parameters", "sliding_window"},
    "olmo3": {"sliding_window"},
    "gemma2": {"sliding_window"},
    "gemma4_text": {"sliding_window"},
}


@pytest.mark.slow
@pytest.mark.usefixtures("few_programs")
@requires_dev("peft")
@requires_dev("cyllama")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "check"),
    [
        # What most families have in their layers is decoded with in many other tests.
        pytest.param(kind, check, marks=pytest.mark.extended)
        if check == "decoding" and kind not in ("qwen3_moe", "gpt_oss", "gemma4_text")
        else (kind, check)
        for kind in VARIANTS
        for check in CHECKS
    ],
)
def test_a_family_is_as_in_other_programs(kind, check, tmp_path):
    if not applies(check, kind):
        pytest.skip("not for this family")
    assert difference(check, kind, tmp_path) < MOST


def test_every_family_is_compared():
    assert {family.kinds[TRANSFORMERS] for family in families.FAMILIES} == VARIANTS.keys()


def in_gguf(path, kind: str, architecture: str, **metadata):
    config = dataclasses.replace(VARIANTS[kind], **IN_GGUF[kind])
    metadata = {f"{architecture}.{key}": value for key, value in metadata.items()}
    path.write_bytes(gguf_bytes(architecture, config, **metadata)[0])
    return gguf_model.read_config(GGUF.open(path))[1]


def test_olmo_3_files_state_the_whole_factor_of_yarn(tmp_path):
    config = in_gguf(tmp_path / "a.gguf", "olmo3", "olmo2", **{"rope.scaling.attn_factor": np.float32(1.25)})
    assert (config.rope.amplitude, config.local_rope.base) == (1.25, 500_000.0)


def test_without_a_scaling_local_layers_have_the_rope_of_all_as_from_a_folder(tmp_path):
    config = dataclasses.replace(VARIANTS["olmo3"], **IN_GGUF["olmo3"] | {"rope": Rope(500_000.0), "local_rope": None})
    (tmp_path / "a.gguf").write_bytes(gguf_bytes("olmo2", config)[0])
    (tmp_path / "config.json").write_text(json.dumps(config_file.config_to_json(config, None)))
    found = gguf_model.read_config(GGUF.open(tmp_path / "a.gguf"))[1], config_file.read_config(tmp_path)[1]
    assert [(one.rope, one.local_rope) for one in found] == [(Rope(500_000.0), None)] * 2


@pytest.mark.parametrize(
    ("metadata", "scale"),
    [
        ({"rope.scaling.factor": np.float32(4)}, 4.0),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": np.float32(4)}, 4.0),
        ({"rope.scaling.type": "none", "rope.scaling.factor": np.float32(4)}, 1.0),
        ({"rope.scale_linear": np.float32(4)}, 4.0),  # as files of 2023 say it
        ({}, 1.0),
    ],
)
def test_a_linear_scaling_is_what_llama_cpp_reads(metadata, scale, tmp_path):
    assert in_gguf(tmp_path / "a.gguf", "qwen2", "qwen2", **metadata).rope.scale == scale


def test_a_window_of_0_is_none(tmp_path):
    zeros = {"attention.sliding_window": np.uint32(0), "expert_count": np.uint32(0)}
    assert in_gguf(tmp_path / "a.gguf", "phi3", "phi3", **zeros).window is None


def test_gguf_files_whose_mlps_differ_are_refused(tmp_path):
    for kind, widths in (("llama", [64, 128, 64]), ("gemma4_text", [64] * 5 + [128])):
        architecture = families.of_kind(kind).kinds[1]
        with pytest.raises(PastaError, match="unsupported metadata feed_forward_length by layer"):
            in_gguf(tmp_path / "a.gguf", kind, architecture, feed_forward_length=np.array(widths, "<i4"))


@pytest.mark.parametrize("kind", families.RECURRENT)
def test_families_that_carry_a_state_are_refused_with_the_reason(kind, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(PastaError, match=f"unsupported model_type '{kind}': it carries a state"):
        config_file.read_config(tmp_path)


@requires_dev("transformers")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", VARIANTS)
def test_what_a_file_leaves_out_is_what_transformers_takes_it_for(kind, tmp_path):
    from transformers import CONFIG_MAPPING

    def config_of(raw):
        (tmp_path / "config.json").write_text(json.dumps(raw))
        return config_file.read_config(tmp_path)[1]

    whole = json.loads(CONFIG_MAPPING[kind]().to_json_string(use_diff=False))
    expected, refused = config_of(whole), set()
    for name in whole:
        try:
            config = config_of({field: value for field, value in whole.items() if field != name})
        except PastaError:
            refused.add(name)
            continue
        # Another shape is refused with the first tensor.
        assert config == expected or plain_shapes(config) != plain_shapes(expected), name
    assert refused == (FEWEST if kind == "gemma3_text" else NEEDED | ALSO.get(kind, set()))


def test_the_text_half_of_gemma_3_4b_leaves_most_out(tmp_path):
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 34}
    text |= {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    config = config_file.read_config(tmp_path)[1]
    assert (config.vocab, config.heads, config.kv_heads, config.head_dim) == (262_208, 8, 4, 256)
    assert (config.rope, config.local_rope) == (Rope(1e6, scale=8.0), Rope(10_000.0))
    assert (config.window, config.global_every, config.score_scale, config.context) == (1024, 6, 1 / 16, 131_072)


@pytest.mark.slow
@requires_dev("transformers")
@pytest.mark.filterwarnings("ignore")
def test_every_configuration_of_transformers_is_read_or_refused_in_one_line(tmp_path):
    said = configurations.sweep(tmp_path)
    assert not any(said[kind] for kind in VARIANTS)
    assert not any("\n" in why for why in said.values())
    assert sum(map(bool, said.values())) > 300
