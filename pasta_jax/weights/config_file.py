"""config.json of a Hugging Face folder, read and written: its fields as types with ranges, and our configuration."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from pasta_jax.errors import PastaError
from pasta_jax.files.validated import MIB, AboveZero, AtLeastZero, Count, Positive, read_json, typed
from pasta_jax.lang.structure import PREDICTED, Positions
from pasta_jax.models.config import Rope, Rows, Size, TransformerConfig
from pasta_jax.weights import families
from pasta_jax.weights.families import FIELD_NAMES, SHAPE, TRANSFORMERS, Family

SECTION = "pasta_jax"  # our key in config.json
_FIX = "use the config.json of a supported model"
_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu", "gelu": "gelu"}  # Gemma 1 states the last for the second


@dataclasses.dataclass(frozen=True)
class TagRecord:
    """What an exported model records about the tags, in our section of config.json."""

    tags_base: Count  # first of the rows that hold the tags
    positions: Positions | None = PREDICTED  # None: not trained on the tags; absent in early exports, all `predicted`


@dataclasses.dataclass(frozen=True)
class _Rope:
    """Rope of one kind of layers; `type` is an older name of `rope_type`."""

    rope_theta: AboveZero | None = None
    rope_type: str | None = None
    type: str | None = None
    factor: AboveZero | None = None
    low_freq_factor: AboveZero | None = None
    high_freq_factor: AboveZero | None = None
    original_max_position_embeddings: Positive | None = None
    partial_rotary_factor: AboveZero | None = None
    attention_factor: AboveZero | None = None
    beta_fast: AboveZero | None = None
    beta_slow: AboveZero | None = None
    mscale: AtLeastZero | None = None
    mscale_all_dim: AtLeastZero | None = None
    truncate: bool = True
    short_factor: Annotated[tuple[AboveZero, ...], Meta(max_length=4096)] | None = None
    llama_4_scaling_beta: AtLeastZero | None = None


@dataclasses.dataclass(frozen=True)
class _Ropes(_Rope):
    """Rope of all layers, or of each kind."""

    full_attention: _Rope | None = None
    sliding_attention: _Rope | None = None


@dataclasses.dataclass(frozen=True)
class _Kind:
    model_type: str


class _File(families.stated_in(TRANSFORMERS), frozen=True, kw_only=True):
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
    partial_rotary_factor: AboveZero | None = None
    original_max_position_embeddings: Positive | None = None
    layer_types: Annotated[tuple[str, ...], Meta(max_length=1000)] | None = None
    rope_theta: AboveZero | None = None
    rope_local_base_freq: AboveZero | None = None
    rope_scaling: _Rope | None = None
    rope_parameters: _Ropes | None = None


def read_config(folder: Path) -> tuple[Family, TransformerConfig, TagRecord | None]:
    """The family, the transformer that config.json describes, and our section (None in files of other tools)."""
    path = folder / "config.json"
    if not path.is_file():
        raise PastaError(f"{path}: not found; use a folder with config.json and *.safetensors")
    raw = read_json(path, dict[str, Any], most=4 * MIB, fix="fetch the file again")
    return *_config(raw.get("text_config", raw), path), _tag_record(raw, path)


def _tag_record(raw: dict[str, Any], path: Path) -> TagRecord | None:
    if SECTION not in raw:
        return None
    try:
        return msgspec.convert(raw[SECTION], TagRecord)
    except (msgspec.ValidationError, PastaError) as error:
        raise PastaError(f"{path}: malformed section {SECTION!r} ({error}); export the model again") from None


def _config(raw: Any, path: Path) -> tuple[Family, TransformerConfig]:
    """Translate the fields; features that our transformer lacks are refused with an error that names them."""
    kind = typed(raw, _Kind, str(path), _FIX).model_type
    family = families.of_file(TRANSFORMERS, kind, path, "model_type")
    file = typed(raw, _File, str(path), _FIX)
    rope, fields = _rope(file, path), {"vocab": file.vocab_size}
    fields["rope"], fields["context"] = rope, _context(file)
    for key, ours in (("attention_bias", ("qkv_bias", "out_bias")), ("mlp_bias", ("mlp_bias",))):
        if getattr(file, key) and not set(ours) <= set(family.options):
            raise PastaError(f"{path}: unsupported {key} of a {kind} model; use a model without")
        fields |= dict.fromkeys(ours, True) if getattr(file, key) else {}
    if activation := file.hidden_activation or file.hidden_act:
        if activation not in _ACTIVATIONS:
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
    return family, family.config(file, path, _FIX, **fields)


def _context(file: _File) -> int:
    """The longest position; of scalings that depend on the length of the text, the longest that isn't scaled."""
    scaling = file.rope_parameters or file.rope_scaling or _Rope()
    if scaling.short_factor is None and not scaling.llama_4_scaling_beta:
        return file.context
    return min(file.context, _original(file, scaling) or file.context)


def _original(file: _File, scaling: _Rope) -> int | None:
    return scaling.original_max_position_embeddings or file.original_max_position_embeddings


def _windows(file: _File, family: Family, path: Path) -> dict[str, Any]:
    """Which layers are local, and how far they see."""
    is_used = file.use_sliding_window or (
        file.use_sliding_window is None and "use_sliding_window" not in family.options
    )
    is_local = is_used and file.window is not None and file.window < file.context
    if "window" not in family.options:
        if is_local:
            raise PastaError(
                f"{path}: unsupported sliding_window of a {family.kinds[TRANSFORMERS]} model; use a model without"
            )
        return {}
    if "window" in family.required and file.window is None:
        raise PastaError(f"{path}: sliding_window: missing; {_FIX}")
    if not is_local:
        return {"window": None, "global_every": 1}
    if file.layer_types is None and "use_sliding_window" in family.options:
        raise PastaError(f"{path}: use_sliding_window without layer_types, so which layers is unknown; state them")
    if file.layer_types is None:
        every = file.sliding_window_pattern or family.features.get("global_every", file.layers + 1)
    else:
        every = _period(file.layer_types, "full_attention", "sliding_attention", "layer_types", "is global", path)
    return {"window": file.window if every > 1 else None, "global_every": every}


def _period(values: Sequence[Any], rare: Any, usual: Any, key: str, what: str, path: Path) -> int:
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
    every = _period(file.no_rope_layers[: file.layers], 0, 1, "no_rope_layers", "has no rope", path)
    return every if every <= file.layers else None


def _local_rope(file: _File, family: Family, rope: dict[str, Any]) -> dict[str, Any]:
    """The rope of local layers, where it differs."""
    own = file.rope_parameters and file.rope_parameters.sliding_attention
    base = (own and own.rope_theta) or file.rope_local_base_freq
    if "local_rope" in family.features:
        return {"local_rope": {"base": base}} if base else {}
    local = {"base": base or rope["base"]}  # unscaled
    return {} if local == rope else {"local_rope": local}


def _rope(file: _File, path: Path) -> dict[str, Any]:
    """Rope base and scaling of global layers, from the fields of either version of config.json."""
    parameters = file.rope_parameters or _Ropes()
    nested = parameters.full_attention or parameters.sliding_attention
    whole = (parameters.full_attention or _Rope()) if nested else parameters
    scaling = whole if whole.rope_type or whole.type else (file.rope_scaling or _Rope())
    rope: dict[str, Any] = {"base": whole.rope_theta or file.rope_theta or 10_000.0}
    if (share := whole.partial_rotary_factor or file.partial_rotary_factor) not in (None, 1.0):
        rope["share"] = share

    def required(key: str, value: float | None = None) -> float:
        value = getattr(scaling, key) if value is None else value
        if value is None:
            raise PastaError(f"{path}: rope scaling without {key}; {_FIX}")
        return value

    match scaling.rope_type or scaling.type or "default":
        case "default":
            return rope
        case "linear":
            return rope | {"scale": required("factor")}
        case "llama3":
            return rope | {"llama3": tuple(map(required, _LLAMA3))}
        case "yarn":
            original = required("original_max_position_embeddings", _original(file, scaling))
            factor = scaling.factor or file.context / original
            return rope | {"yarn": _yarn(scaling, factor, original), "amplitude": _yarn_amplitude(scaling, factor)}
        case "longrope" | "su":
            original = _original(file, scaling) or file.context
            factor = scaling.factor or file.context / original
            is_longer = factor > 1 and original > 1
            amplitude = math.sqrt(1 + math.log(factor) / math.log(original)) if is_longer else 1.0
            divisors = required("short_factor")
            return rope | {"divisors": divisors, "amplitude": scaling.attention_factor or amplitude}
        case other:
            raise PastaError(
                f"{path}: unsupported rope scaling {other!r}; "
                "use a model with default, linear, llama3, yarn or longrope scaling"
            )


def _yarn(scaling: _Rope, factor: float, original: float) -> dict[str, Any]:
    speeds = {"fast": scaling.beta_fast, "slow": scaling.beta_slow}
    stated = {name: value for name, value in speeds.items() if value is not None}
    return {"factor": factor, "context": original, "whole": scaling.truncate, **stated}


def _yarn_amplitude(scaling: _Rope, factor: float) -> float:
    def sharpened(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return sharpened(scaling.mscale) / sharpened(scaling.mscale_all_dim)
    return sharpened(1.0)


_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def config_to_json(config: TransformerConfig, record: TagRecord | None) -> dict[str, Any]:
    """config.json of an export, of the family that has the features of the config."""
    family = families.of_config(config)
    activation = "silu" if config.activation == "silu" else "gelu_pytorch_tanh"
    scaling = _scaling(config.rope, config.context) | family.rope_fields
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
        raw |= {"attention_bias": config.out_bias, "mlp_bias": config.mlp_bias}
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


def _scaling(rope: Rope, context: int) -> dict[str, Any]:
    """The scaling of a rope in the words of config.json."""
    if rope.llama3 is not None:
        return {"rope_type": "llama3", **dict(zip(_LLAMA3, rope.llama3, strict=True))}
    if rope.divisors is not None:
        both = {"short_factor": list(rope.divisors), "long_factor": list(rope.divisors)}
        about = {"attention_factor": rope.amplitude, "original_max_position_embeddings": context}
        return {"rope_type": "longrope", **both, **about}
    if (yarn := rope.yarn) is not None:
        speeds = {"beta_fast": yarn.fast, "beta_slow": yarn.slow, "truncate": yarn.whole}
        about = {"attention_factor": rope.amplitude, "original_max_position_embeddings": yarn.context}
        return {"rope_type": "yarn", "factor": yarn.factor, **about, **speeds}
    return {"rope_type": "linear", "factor": rope.scale} if rope.scale != 1.0 else {"rope_type": "default"}
