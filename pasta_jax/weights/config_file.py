"""config.json of a Hugging Face folder, read and written: its fields as types with ranges, and our configuration."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from pasta_jax.errors import PastaError
from pasta_jax.files.validated import MIB, AboveZero, Count, Positive, read_json, typed
from pasta_jax.lang.structure import PREDICTED, Positions
from pasta_jax.models.config import Experts, Rows, Size, TransformerConfig
from pasta_jax.weights import families
from pasta_jax.weights.family import FIELD_NAMES, SHAPE, TRANSFORMERS, Family, stated_in
from pasta_jax.weights.rope_file import (
    FIX,
    RopeFields,
    RopesFields,
    original_context,
    require_one_reading,
    rope_of,
    scaling_in,
    scaling_of,
)

SECTION = "pasta_jax"  # our key in config.json
# Gemma 1 means the tanh by `gelu`.
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu", "gelu_new": "gelu", "gelu": "gelu"}
_IGNORE_BIAS = ("mistral", "qwen2")  # attention_bias isn't a field of theirs


@dataclasses.dataclass(frozen=True)
class TagRecord:
    """What an exported model records about the tags, in our section of config.json."""

    tags_base: Count  # first of the rows that hold the tags
    positions: Positions | None = PREDICTED  # None: not trained on the tags; absent in early exports, all `predicted`


@dataclasses.dataclass(frozen=True)
class _Kind:
    model_type: str


@dataclasses.dataclass(frozen=True)
class _Quantization:
    quant_method: str | None = None


@dataclasses.dataclass(frozen=True)
class _OfLayer:
    head_dim: Size | None = None


class _File(stated_in(TRANSFORMERS), frozen=True, kw_only=True):
    """The fields of config.json that we read; those of families.py are under our names."""

    vocab_size: Rows
    hidden_activation: str | None = None
    hidden_act: str | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    tie_word_embeddings: bool | None = None
    query_pre_attn_scalar: Size | None = None
    use_sliding_window: bool | None = None
    sliding_window_pattern: Positive | None = None
    no_rope_layers: Annotated[tuple[Literal[0, 1], ...], Meta(max_length=1000)] | None = None
    no_rope_layer_interval: Positive | None = None
    num_experts: Experts | None = None
    global_head_dim: Size | None = None
    per_layer_config: dict[str, _OfLayer] | None = None
    hidden_size_per_layer_input: Count | None = None
    vocab_size_per_layer_input: Rows | None = None
    attention_k_eq_v: bool = False
    enable_moe_block: bool = False
    use_bidirectional_attention: bool | str | None = None
    is_causal: bool | None = None
    clip_qkv: float | None = None
    norm_topk_prob: bool | None = None
    decoder_sparse_step: Count | None = None
    mlp_only_layers: Annotated[tuple[Count, ...], Meta(max_length=1000)] | None = None
    quantization_config: _Quantization | None = None
    partial_rotary_factor: AboveZero | None = None
    original_max_position_embeddings: Positive | None = None
    layer_types: Annotated[tuple[str, ...], Meta(max_length=1000)] | None = None
    rope_theta: AboveZero | None = None
    rope_local_base_freq: AboveZero | None = None
    rope_scaling: RopeFields | None = None
    rope_parameters: RopesFields | None = None


def read_config(folder: Path) -> tuple[Family, TransformerConfig, TagRecord | None]:
    """The family, the transformer that config.json describes, and our section (None in files of other tools)."""
    path = folder / "config.json"
    if not path.is_file():
        raise PastaError(f"{path}: not found; use a folder with config.json and *.safetensors")
    raw = read_json(path, dict[str, Any], most=4 * MIB, fix="fetch the file again")
    text = raw.get("text_config", raw)
    if isinstance(text, dict) and "quantization_config" in raw:  # of both halves of a model for images and text
        text = text | {"quantization_config": raw["quantization_config"]}
    return *_config(text, path), _tag_record(raw, path)


def _tag_record(raw: dict[str, Any], path: Path) -> TagRecord | None:
    if SECTION not in raw:
        return None
    try:
        return msgspec.convert(raw[SECTION], TagRecord)
    except (msgspec.ValidationError, PastaError) as error:
        raise PastaError(f"{path}: malformed section {SECTION!r} ({error}); export the model again") from None


def _config(raw: Any, path: Path) -> tuple[Family, TransformerConfig]:
    """Translate the fields; features that our transformer lacks are refused with an error that names them."""
    kind = typed(raw, _Kind, str(path), FIX).model_type
    family = families.of_file(TRANSFORMERS, kind, path, "model_type")
    file = typed(family.implied | raw, _File, str(path), FIX)
    require_one_reading(file, family.options, bool(raw.get("rope_scaling")), path)
    rope, fields = rope_of(file, path), {"vocab": file.vocab_size}
    if "share" in rope and "share" not in family.options:
        raise PastaError(f"{path}: unsupported partial_rotary_factor of a {kind} model; use a model without")
    fields["rope"], fields["context"] = rope, _context(file)
    for key, ours in (("attention_bias", ("qkv_bias", "out_bias")), ("mlp_bias", ("mlp_bias",))):
        is_option, value = set(ours) <= set(family.options), getattr(file, key)
        is_ignored = key == "attention_bias" and kind in _IGNORE_BIAS
        if value and not (is_option or is_ignored):
            raise PastaError(f"{path}: unsupported {key} of a {kind} model; use a model without")
        fields |= dict.fromkeys(ours, value) if is_option and value is not None else {}
    method = file.quantization_config and file.quantization_config.quant_method
    if file.quantization_config and (method, kind) != ("mxfp4", "gpt_oss"):
        raise PastaError(f"{path}: unsupported quantization_config {method!r}; use the model in float32 or bfloat16")
    if "experts" in family.options:
        fields |= _experts(file, family, path)
    if "layer_embed" in family.options:
        fields |= _layers(file, path)
    elif file.per_layer_config:
        raise PastaError(f"{path}: unsupported per_layer_config of a {kind} model; use a model without")
    if file.use_bidirectional_attention in (True, "all") or file.is_causal is False:
        key = "is_causal" if file.is_causal is False else "use_bidirectional_attention"
        raise PastaError(f"{path}: unsupported {key}; use a model that reads from left to right")
    if file.clip_qkv is not None:
        raise PastaError(f"{path}: unsupported clip_qkv; use a model without")
    if activation := file.hidden_activation or file.hidden_act:
        if activation not in _ACTIVATIONS or (activation == "gelu" and kind != "gemma"):
            raise PastaError(
                f"{path}: unsupported activation {activation!r}; use a model with gelu_pytorch_tanh or silu"
            )
        fields["activation"] = _ACTIVATIONS[activation]
    if file.tie_word_embeddings is not None:
        fields["tied_head"] = file.tie_word_embeddings
    fields |= _windows(file, family, path)
    if "query_scalar" in family.options:
        fields["query_scalar"] = file.query_pre_attn_scalar
    if "local_rope" in family.options and fields["window"]:
        fields |= _local_rope(file, family, rope)
    if "nope_every" in family.options:
        fields["nope_every"] = _nope_every(file, path)
    return family, family.config(file, path, FIX, **fields)


def _experts(file: _File, family: Family, path: Path) -> dict[str, Any]:
    """How many experts, and how their shares are computed."""
    experts = file.experts or file.num_experts
    stated = {
        "num_local_experts": experts,
        **{FIELD_NAMES[n][TRANSFORMERS]: getattr(file, n) for n in family.required[1:]},
    }
    for key, value in stated.items():
        if value is None:
            raise PastaError(f"{path}: {key}: missing; {FIX}")
    if file.decoder_sparse_step not in (None, 1) or file.mlp_only_layers:
        key = "mlp_only_layers" if file.mlp_only_layers else "decoder_sparse_step"
        raise PastaError(f"{path}: unsupported {key}; use a model in which every layer is a mixture of experts")
    fields: dict[str, Any] = {"experts": experts}
    if "shares_of_all" in family.options:
        fields["shares_of_all"] = not file.norm_topk_prob
    return fields


def _layers(file: _File, path: Path) -> dict[str, Any]:
    """What is of one layer or of one kind of layers."""
    unsupported = {
        "attention_k_eq_v": file.attention_k_eq_v,
        "enable_moe_block": file.enable_moe_block,
        "layer_types": file.layer_types and file.layer_types[-1] != "full_attention",
        "vocab_size_per_layer_input": file.vocab_size_per_layer_input not in (None, file.vocab_size),
    }
    for key, is_set in unsupported.items():
        if is_set:
            raise PastaError(f"{path}: unsupported {key} of a {file.layers}-layer Gemma 4; use its E2B or E4B")
    sizes = {one.head_dim for one in (file.per_layer_config or {}).values()} or {file.global_head_dim}
    if len(sizes) > 1:
        raise PastaError(f"{path}: unsupported per_layer_config; use a model whose global layers are alike")
    (size,) = sizes
    width = 256 if file.hidden_size_per_layer_input is None else file.hidden_size_per_layer_input
    return {"layer_embed": width or None} | ({"global_head_dim": size} if size else {})


def _context(file: _File) -> int:
    """The longest position; of scalings that depend on the length of the text, the longest that isn't scaled."""
    _, scaling = scaling_in(file)
    if scaling.short_factor is None and not scaling.llama_4_scaling_beta:
        return file.context
    return min(file.context, original_context(file, scaling) or file.context)


def _windows(file: _File, family: Family, path: Path) -> dict[str, Any]:
    """Which layers are local, and how far they see."""
    is_used = file.use_sliding_window or (
        file.use_sliding_window is None and "use_sliding_window" not in family.options
    )
    is_seen = file.window is not None and ("global_every" in family.features or file.window < file.context)
    is_local = is_used and is_seen  # of local layers, more than the window may differ
    if "window" not in family.options:
        if is_local:
            raise PastaError(
                f"{path}: unsupported sliding_window of a {family.kinds[TRANSFORMERS]} model; use a model without"
            )
        return {}
    if "window" in family.required and file.window is None:
        raise PastaError(f"{path}: sliding_window: missing; {FIX}")
    if not is_local:
        return {"window": None, "global_every": 1}
    if file.layer_types is None and "use_sliding_window" in family.options:
        raise PastaError(f"{path}: use_sliding_window without layer_types, so which layers is unknown; state them")
    if file.layer_types is None:
        every = file.sliding_window_pattern or family.features.get("global_every", file.layers + 1)
    else:
        every = period(file.layer_types, "full_attention", "sliding_attention", "layer_types", "is global", path)
    return {"window": file.window if every > 1 else None, "global_every": every}


def period(values: Sequence[Any], rare: Any, usual: Any, key: str, what: str, path: Path) -> int:
    """n, where every n-th value is the rare one and all others are usual; one more than all if none is rare."""
    every = 1 + (values.index(rare) if rare in values else len(values))
    for layer, value in enumerate(values):
        if value != (rare if (layer + 1) % every == 0 else usual):
            raise PastaError(
                f"{path}: unsupported {key}[{layer}] {value!r}; use a model in which every n-th layer {what}"
            )
    return every


def _nope_every(file: _File, path: Path) -> int | None:
    if file.no_rope_layers is None:
        return file.no_rope_layer_interval or 4
    every = period(file.no_rope_layers[: file.layers], 0, 1, "no_rope_layers", "has no rope", path)
    return every if every <= file.layers else None


def _local_rope(file: _File, family: Family, rope: dict[str, Any]) -> dict[str, Any]:
    """The rope of local layers, where it differs."""
    own = file.rope_parameters and file.rope_parameters.sliding_attention
    base = (own and own.rope_theta) or file.rope_local_base_freq
    if "local_rope" in family.features:
        return {"local_rope": {"base": base}} if base else {}
    local = {"base": base or rope["base"]}  # unscaled
    return {} if local == rope else {"local_rope": local}


def config_to_json(config: TransformerConfig, record: TagRecord | None) -> dict[str, Any]:
    """config.json of an export, of the family that has the features of the config."""
    family = families.of_config(config)
    activation = "silu" if config.activation == "silu" else "gelu_pytorch_tanh"
    scaling = scaling_of(config.rope, config.context) | family.rope_fields
    rope = scaling | {"rope_theta": config.rope.base}
    if config.rope.share != 1.0:
        rope["partial_rotary_factor"] = config.rope.share
    raw = {
        "architectures": [family.architecture],
        "model_type": family.kinds[TRANSFORMERS],
        "vocab_size": config.vocab,
        **{FIELD_NAMES[name][TRANSFORMERS]: getattr(config, name) for name in SHAPE},
        "hidden_act": activation,
        "hidden_activation": activation,
        "tie_word_embeddings": config.tied_head,
        "rope_parameters": rope,
        "dtype": "float32",
        # The names that transformers before version 5 reads; it ignores the new ones without a word.
        "rope_theta": config.rope.base,
        "rope_scaling": None if scaling["rope_type"] == "default" else scaling,
        "torch_dtype": "float32",
        "pad_token_id": None,  # a class's own default may be no id of this vocabulary
    }
    if record is not None:
        raw[SECTION] = dataclasses.asdict(record)
    raw |= {FIELD_NAMES[name][TRANSFORMERS]: getattr(config, name) for name in family.options if name in FIELD_NAMES}
    if config.rope.share != 1.0:
        raw["partial_rotary_factor"] = config.rope.share
    if config.rope.divisors is not None:
        raw["original_max_position_embeddings"] = config.context
    if config.window is not None and "global_every" in family.options:
        types = ["sliding_attention" if config.is_local(layer) else "full_attention" for layer in range(config.layers)]
        raw |= {"layer_types": types, "use_sliding_window": True, "max_window_layers": 0}
    if "query_scalar" in family.options:
        raw["query_pre_attn_scalar"] = config.head_dim if config.query_scalar is None else config.query_scalar
    if "out_bias" in family.options:
        raw["attention_bias"] = config.out_bias
    if "mlp_bias" in family.options:
        raw["mlp_bias"] = config.mlp_bias
    if "experts" in family.options:
        raw |= {"num_experts": config.experts, "norm_topk_prob": not config.shares_of_all}
    if "layer_embed" in family.options:
        size = config.global_head_dim or config.head_dim
        every = {str(layer): {"head_dim": size} for layer in range(config.layers) if not config.is_local(layer)}
        raw |= {"global_head_dim": size, "per_layer_config": every, "vocab_size_per_layer_input": config.vocab}
        raw["hidden_size_per_layer_input"] = config.layer_embed or 0
        del raw["rope_theta"], raw["rope_scaling"]  # no version before 5 has the family, and 5 prefers the latter
    if "nope_every" in family.options:
        raw["no_rope_layers"] = [int(config.has_rope(layer)) for layer in range(config.layers)]
    if "local_rope" in family.options:
        local = config.local_rope or dataclasses.replace(config.rope, yarn=None, amplitude=1.0)
        raw["rope_parameters"] = {
            "full_attention": rope,
            "sliding_attention": {"rope_type": "default", "rope_theta": local.base},
        }
        raw |= {"rope_local_base_freq": local.base, "sliding_window_pattern": config.global_every}
    return raw
