"""One table of the families of models that are read and written.

A new family is a record in `FAMILIES`; CONTRIBUTING.md says how to add one.
"""

import dataclasses
from pathlib import Path
from typing import Any

from pasta_jax.errors import PastaError
from pasta_jax.models.config import TransformerConfig
from pasta_jax.weights.family import (
    ALWAYS,
    EXPERTS,
    FUSED,
    IN_TURN,
    SHAPE,
    TRANSFORMERS,
    WITH_OWN,
    WITH_POST_NORMS,
    Family,
)

_BIASES = ("qkv_bias", "out_bias", "mlp_bias")
_WINDOWS = ("window", "global_every")
_QWEN = (*_WINDOWS, "use_sliding_window")  # without the last, their windows don't count
_CAPS = ("attention_cap", "logit_cap")
_EXPERT_FIELDS = ("experts", "active_experts")
_SILU = {"activation": "silu", "tied_head": False}
_GEMMA = {"activation": "gelu", "tied_head": True, "scaled_embed": True}
_GEMMA2 = _GEMMA | {"post_norms": True, "global_every": 2}
_GEMMA3 = _GEMMA | {"post_norms": True, "qk_norm": True, "global_every": 6, "local_rope": {"base": 10_000.0}}
# Gemma 3 4B, 12B and 27B state little but what differs from this.
_GEMMA3_FILE = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "query_pre_attn_scalar": 256,
}
_GEMMA4 = _GEMMA3 | {"value_norm": True, "layer_scales": True, "attention_scale": 1.0, "global_head_dim": 512}
_OLMO = _SILU | {"pre_norms": False, "post_norms": True, "qk_norm": True, "whole_qk_norm": True}
_YARN = {"rope_scaling": {"rope_type": "yarn"}}  # whose other fields no file leaves out
_SCALES = ("embed_scale", "residual_scale", "attention_scale", "logit_divisor")
FAMILIES = (
    Family(("llama", "llama"), "LlamaForCausalLM", _SILU, _BIASES, rotates_pairs=True),
    Family(
        ("mistral", "llama"),
        "MistralForCausalLM",
        _SILU,
        ("window",),
        implied={"sliding_window": 4096},
        rotates_pairs=True,
    ),
    Family(("ministral", None), "MinistralForCausalLM", _SILU, _WINDOWS, implied={"sliding_window": 4096}),
    # Queries past the original context are longer: beta is how fast they grow. We read no further than that.
    Family(
        ("ministral3", "mistral3"),
        "Ministral3ForCausalLM",
        _SILU,
        ("window",),
        implied=_YARN,
        rotates_pairs=True,
        rope_fields={"llama_4_scaling_beta": 0.0},
    ),
    Family(("qwen2", "qwen2"), "Qwen2ForCausalLM", _SILU | {"qkv_bias": True}, _QWEN),
    Family(("qwen3", "qwen3"), "Qwen3ForCausalLM", _SILU | {"qk_norm": True}, (*_QWEN, "qkv_bias", "out_bias")),
    Family(
        ("qwen3_moe", "qwen3moe"),
        "Qwen3MoeForCausalLM",
        _SILU | {"qk_norm": True},
        ("use_sliding_window", "qkv_bias", "out_bias", *_EXPERT_FIELDS, "expert_ff", "shares_of_all"),
        (*_EXPERT_FIELDS, "expert_ff"),
        layer=EXPERTS,
    ),
    Family(
        ("olmoe", "olmoe"),
        "OlmoeForCausalLM",
        _SILU | {"qk_norm": True, "whole_qk_norm": True, "shares_of_all": True},
        ("qkv_bias", "out_bias", *_EXPERT_FIELDS, "shares_of_all"),
        _EXPERT_FIELDS,
        layer=EXPERTS,
    ),
    Family(
        ("gpt_oss", "gpt-oss"),
        "GptOssForCausalLM",
        _SILU
        | dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias", "router_bias", "sinks"), True)
        | {"global_every": 2, "gate_limit": 7.0, "gate_slope": 1.702},
        (*_WINDOWS, "qkv_bias", "out_bias", *_EXPERT_FIELDS, "gate_limit", "gate_slope"),
        ("window", *_EXPERT_FIELDS),
        {"rope_theta": 150_000.0, **_YARN},
        IN_TURN,
        yarn_is_whole=False,
    ),
    Family(
        ("smollm3", "smollm3"),
        "SmolLM3ForCausalLM",
        _SILU | {"tied_head": True, "nope_every": 4},
        (*_BIASES, "nope_every"),
        implied={"rope_theta": 2e6},
        rotates_pairs=True,
    ),
    Family(
        ("granite", "granite"),
        "GraniteForCausalLM",
        _SILU | {"attention_scale": 1.0},
        (*_BIASES, *_SCALES),
        rotates_pairs=True,
    ),
    Family(("olmo2", "olmo2"), "Olmo2ForCausalLM", _OLMO, ("qkv_bias", "out_bias"), layer=WITH_POST_NORMS),
    Family(
        ("olmo3", "olmo2"),
        "Olmo3ForCausalLM",
        _OLMO | {"global_every": 4},
        (*_WINDOWS, "local_rope", "qkv_bias", "out_bias"),
        ("window",),
        {"rope_theta": 500_000.0},
        WITH_POST_NORMS,
    ),
    Family(
        ("phi3", "phi3"),
        "Phi3ForCausalLM",
        _SILU,
        ("window", "share"),
        implied={"original_max_position_embeddings": 4096},
        layer=FUSED,
    ),
    Family(("gemma", "gemma"), "GemmaForCausalLM", _GEMMA, norm_offset=1.0),
    Family(
        ("gemma2", "gemma2"),
        "Gemma2ForCausalLM",
        _GEMMA2,
        (*_WINDOWS, *_CAPS, "query_scalar"),
        ("window", *_CAPS),
        {"query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        WITH_POST_NORMS,
        norm_offset=1.0,
        query_scalars={46: 144},  # of 27B
    ),
    Family(
        ("gemma3_text", "gemma3"),
        "Gemma3ForCausalLM",
        _GEMMA3,
        (*_WINDOWS, *_CAPS, "query_scalar", "local_rope"),
        ("window",),
        _GEMMA3_FILE,
        WITH_POST_NORMS,
        norm_offset=1.0,
        query_scalars={62: 168},  # of 27B
    ),
    Family(
        ("gemma4_text", "gemma4"),
        "Gemma4ForCausalLM",
        _GEMMA4,
        (
            *_WINDOWS,
            "logit_cap",
            "local_rope",
            "share",
            "global_head_dim",
            "shared_layers",
            "wide_shared",
            "layer_embed",
        ),
        ("window",),
        {"rope_theta": 1e6, "rope_scaling": {"rope_type": "proportional", "partial_rotary_factor": 0.25}},
        WITH_OWN,
    ),
)
# Families that carry a state from token to token instead of keys and values.
RECURRENT = (
    *("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3next", "qwen35", "qwen35moe"),
    *("kimi_linear", "nemotron_h", "nemotron_h_moe", "granitemoehybrid", "granitehybrid", "olmo_hybrid", "minimax"),
    *("lfm2", "lfm2_moe", "lfm2moe", "mamba", "mamba2", "falcon_mamba", "falcon_h1", "bamba", "jamba", "zamba"),
    *("zamba2", "recurrent_gemma", "plamo2", "rwkv", "rwkv6", "rwkv7", "xlstm"),
)


def of_config(config: TransformerConfig) -> Family:
    """The family whose files can say what a configuration is: that of an export."""
    for family in FAMILIES:
        if config.family in ("", family.kinds[TRANSFORMERS]) and family.can_state(config):
            return family
    plain = {field.name: field.default for field in dataclasses.fields(config)}
    set_ = ", ".join(
        f"{name}={getattr(config, name)!r}"
        for name, default in plain.items()
        if name not in (*SHAPE, *ALWAYS) and getattr(config, name) != default
    )
    whose = f"a {config.family} model" if config.family else "a model of any family"
    raise PastaError(f"{whose} can't have all of {set_}; change one of these to export it")


def of_kind(kind: str) -> Family:
    """The family with this model_type."""
    return next(family for family in FAMILIES if family.kinds[TRANSFORMERS] == kind)


def of_file(column: int, kind: Any, place: Path, what: str) -> Family:
    """The family that a file names as its `what`."""
    for family in FAMILIES:
        if isinstance(kind, str) and family.kinds[column] == kind:
            return family
    if isinstance(kind, str) and kind in RECURRENT:
        raise PastaError(
            f"{place}: unsupported {what} {kind!r}: it carries a state from token to token, and where threads join, "
            "states can't be merged without reading their text again; use a model of attention layers only"
        )
    known = ", ".join(dict.fromkeys(family.kinds[column] for family in FAMILIES if family.kinds[column]))
    named = repr(kind) if isinstance(kind, str | None) else f"of type {type(kind).__name__}"
    raise PastaError(f"{place}: unsupported {what} {named}; use a model of {known}")
