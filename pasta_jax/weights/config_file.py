"""config.json of a Hugging Face folder, read and written: its fields as types with ranges, and our configuration."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from pasta_jax.errors import PastaError
from pasta_jax.files.validated import MIB, AboveZero, Count, Positive, read_json, typed
from pasta_jax.lang.structure import PREDICTED, Positions
from pasta_jax.models.config import Rows, Size, TransformerConfig
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
    for key in ("attention_bias", "mlp_bias"):
        if getattr(file, key):
            raise PastaError(f"{path}: unsupported {key}; use a model without biases")
    fields: dict[str, Any] = {"vocab": file.vocab_size, "rope": _rope(file, path)}
    if activation := file.hidden_activation or file.hidden_act:
        if activation not in _ACTIVATIONS:
            raise PastaError(
                f"{path}: unsupported activation {activation!r}; use a model with gelu_pytorch_tanh or silu"
            )
        fields["activation"] = _ACTIVATIONS[activation]
    if file.tie_word_embeddings is not None:
        fields["tied_head"] = file.tie_word_embeddings
    if "window" in family.options:
        if file.window is None:
            raise PastaError(f"{path}: sliding_window: missing; {_FIX}")
        fields |= {"global_every": _global_every(file, family, path), "query_scalar": file.query_pre_attn_scalar}
    elif file.use_sliding_window or (file.window is not None and file.use_sliding_window is None):
        raise PastaError(f"{path}: unsupported sliding_window of a {kind} model; use a model without")
    if "local_rope" in family.features:
        own = file.rope_parameters and file.rope_parameters.sliding_attention
        if base := (own and own.rope_theta) or file.rope_local_base_freq:
            fields["local_rope"] = {"base": base}
    return family, family.config(file, path, _FIX, **fields)


def _global_every(file: _File, family: Family, path: Path) -> int:
    types = file.layer_types
    if types is None:
        return file.sliding_window_pattern or family.features["global_every"]
    every = 1 + (types.index("full_attention") if "full_attention" in types else len(types))
    for layer, name in enumerate(types):
        expected = "full_attention" if (layer + 1) % every == 0 else "sliding_attention"
        if name != expected:
            raise PastaError(
                f"{path}: unsupported layer_types[{layer}] {name!r}; use a model in which every n-th layer is global"
            )
    return every


def _rope(file: _File, path: Path) -> dict[str, Any]:
    """Rope base and scaling of global layers, from the fields of either version of config.json."""
    parameters = file.rope_parameters or _Ropes()
    nested = parameters.full_attention or parameters.sliding_attention
    whole = (parameters.full_attention or _Rope()) if nested else parameters
    scaling = whole if whole.rope_type else (file.rope_scaling or _Rope())
    rope: dict[str, Any] = {"base": whole.rope_theta or file.rope_theta or 10_000.0}

    def required(key: str) -> float:
        if (value := getattr(scaling, key)) is None:
            raise PastaError(f"{path}: rope scaling without {key}; {_FIX}")
        return value

    match scaling.rope_type or scaling.type or "default":
        case "default":
            return rope
        case "linear":
            return rope | {"scale": required("factor")}
        case "llama3":
            return rope | {"llama3": tuple(map(required, _LLAMA3))}
        case other:
            raise PastaError(
                f"{path}: unsupported rope scaling {other!r}; use a model with default, linear or llama3 scaling"
            )


_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def config_to_json(config: TransformerConfig, record: TagRecord | None) -> dict[str, Any]:
    """config.json of an export, of the family that has the features of the config."""
    family = families.of_config(config)
    activation = "silu" if config.activation == "silu" else "gelu_pytorch_tanh"
    scaling: dict[str, Any] = {"rope_type": "default"}
    if config.rope.scale != 1.0:
        scaling = {"rope_type": "linear", "factor": config.rope.scale}
    if config.rope.llama3 is not None:
        scaling = {"rope_type": "llama3", **dict(zip(_LLAMA3, config.rope.llama3, strict=True))}
    rope = scaling | {"rope_theta": config.rope.base}
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
    }
    if record is not None:
        raw[SECTION] = dataclasses.asdict(record)
    if "window" in family.options:
        types = ["sliding_attention" if config.is_local(layer) else "full_attention" for layer in range(config.layers)]
        scalar = config.head_dim if config.query_scalar is None else config.query_scalar
        raw |= {"layer_types": types, "sliding_window": config.window, "query_pre_attn_scalar": scalar}
    if config.scaled_embed:
        raw |= {FIELD_NAMES[name][TRANSFORMERS]: getattr(config, name) for name in ("attention_cap", "logit_cap")}
    if "local_rope" in family.features:
        local = config.local_rope or config.rope
        raw["rope_parameters"] = {
            "full_attention": rope,
            "sliding_attention": {"rope_type": "default", "rope_theta": local.base},
        }
        raw |= {"rope_local_base_freq": local.base, "sliding_window_pattern": config.global_every}
    return raw
