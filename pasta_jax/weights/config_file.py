"""Read config.json of a Hugging Face folder: its fields as types with ranges, then our configuration."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from pasta_jax.errors import PastaError
from pasta_jax.files.validated import MIB, AboveZero, Count, Positive, read_json, typed
from pasta_jax.lang.structure import PREDICTED, Positions
from pasta_jax.models.config import Layers, Rows, Size, TransformerConfig, config_of

SECTION = "pasta_jax"  # our key in config.json
ARCHITECTURES = {
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "llama": "LlamaForCausalLM",
}
_FIX = "use the config.json of a Gemma or Llama model"


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

    @property
    def name(self) -> str:
        return self.rope_type or self.type or "default"


@dataclasses.dataclass(frozen=True)
class _Ropes(_Rope):
    """Rope of all layers, or of each kind."""

    full_attention: _Rope | None = None
    sliding_attention: _Rope | None = None


@dataclasses.dataclass(frozen=True)
class _Kind:
    model_type: str


@dataclasses.dataclass(frozen=True)
class _File(_Kind):
    """The fields of config.json that we read, under their names there."""

    vocab_size: Rows
    num_hidden_layers: Layers
    hidden_size: Size
    intermediate_size: Size
    num_attention_heads: Size
    max_position_embeddings: Positive
    rms_norm_eps: Annotated[float, Meta(ge=0, le=1)]
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    hidden_activation: str | None = None
    hidden_act: str | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    tie_word_embeddings: bool | None = None
    attn_logit_softcapping: AboveZero | None = None
    final_logit_softcapping: AboveZero | None = None
    query_pre_attn_scalar: Size | None = None
    sliding_window: Positive | None = None
    sliding_window_pattern: Positive | None = None
    layer_types: Annotated[tuple[str, ...], Meta(max_length=1000)] | None = None
    rope_theta: AboveZero | None = None
    rope_local_base_freq: AboveZero | None = None
    rope_scaling: _Rope | None = None
    rope_parameters: _Ropes | None = None


def read_config(folder: Path) -> tuple[TransformerConfig, TagRecord | None]:
    """The transformer that config.json describes, and our own section (None in files written by other tools)."""
    path = folder / "config.json"
    if not path.is_file():
        raise PastaError(f"{path}: not found; use a folder with config.json and *.safetensors")
    raw = read_json(path, dict[str, Any], most=4 * MIB, fix="fetch the file again")
    return _config(raw.get("text_config", raw), path), _tag_record(raw, path)


def _tag_record(raw: dict[str, Any], path: Path) -> TagRecord | None:
    if SECTION not in raw:
        return None
    try:
        return msgspec.convert(raw[SECTION], TagRecord)
    except (msgspec.ValidationError, PastaError) as error:
        raise PastaError(f"{path}: malformed section {SECTION!r} ({error}); export the model again") from None


def _config(raw: Any, path: Path) -> TransformerConfig:
    """Translate the fields; features that our transformer lacks are refused with an error that names them."""
    kind = typed(raw, _Kind, str(path), _FIX).model_type
    if kind not in ARCHITECTURES:
        raise PastaError(f"{path}: unsupported model_type {kind!r}; use a model of {', '.join(ARCHITECTURES)}")
    file = typed(raw, _File, str(path), _FIX)
    for key in ("attention_bias", "mlp_bias"):
        if getattr(file, key):
            raise PastaError(f"{path}: unsupported {key}; use a model without biases")
    gemma, local = kind != "llama", kind in ("gemma2", "gemma3_text")
    activation = file.hidden_activation or file.hidden_act or ("gelu_pytorch_tanh" if gemma else "silu")
    if activation not in ("gelu", "gelu_pytorch_tanh", "silu"):
        raise PastaError(f"{path}: unsupported activation {activation!r}; use a model with gelu_pytorch_tanh or silu")
    if local and file.sliding_window is None:
        raise PastaError(f"{path}: sliding_window: missing; {_FIX}")
    fields = dict(
        vocab=file.vocab_size,
        layers=file.num_hidden_layers,
        embed=file.hidden_size,
        ff=file.intermediate_size,
        heads=file.num_attention_heads,
        kv_heads=file.num_key_value_heads or file.num_attention_heads,
        head_dim=file.head_dim or file.hidden_size // file.num_attention_heads,
        context=file.max_position_embeddings,
        norm_eps=file.rms_norm_eps,
        activation="silu" if activation == "silu" else "gelu",
        tied_head=gemma if file.tie_word_embeddings is None else file.tie_word_embeddings,
        scaled_embed=gemma,
        post_norms=local,
        qk_norm=kind == "gemma3_text",
        rope=_rope(file, path),
    )
    if kind == "gemma2":
        fields |= dict(attention_cap=file.attn_logit_softcapping, logit_cap=file.final_logit_softcapping)
    if local:
        every = _global_every(file, path)
        fields |= dict(query_scalar=file.query_pre_attn_scalar, window=file.sliding_window, global_every=every)
    if kind == "gemma3_text":
        own = file.rope_parameters and file.rope_parameters.sliding_attention
        fields["local_rope"] = {"base": (own and own.rope_theta) or file.rope_local_base_freq or 10_000.0}
    return config_of(fields, str(path), _FIX)


def _global_every(file: _File, path: Path) -> int:
    types = file.layer_types
    if types is None:
        return file.sliding_window_pattern or (2 if file.model_type == "gemma2" else 6)
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

    match scaling.name:
        case "default":
            return rope
        case "linear":
            return rope | {"scale": required("factor")}
        case "llama3":
            keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
            return rope | {"llama3": tuple(required(key) for key in keys)}
    raise PastaError(
        f"{path}: unsupported rope scaling {scaling.name!r}; use a model with default, linear or llama3 scaling"
    )
