"""Read and write models in Hugging Face's layout, config.json and safetensors, without torch."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (gives NumPy bfloat16, which safetensors needs)
import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open

from pasta_jax.errors import PastaError
from pasta_jax.files import write_whole
from pasta_jax.lang.structure import PREDICTED, Positions
from pasta_jax.models import tensor_file
from pasta_jax.models.config import Rope, TransformerConfig
from pasta_jax.models.layers import Params
from pasta_jax.models.layout import MATRICES, Plain, grow_rows, norm_names, pack_layer, plain_shapes, unpack_layer

SECTION = "pasta_jax"  # our key in config.json

_MATRIX_NAMES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "out": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
}
# One name, two norms: before the MLP in models without post-norms, after attention in models with them.
_PRE_NORM_NAMES = {"mlp_norm": "post_attention_layernorm"}
_POST_NORM_NAMES = {
    "post_attn_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "post_mlp_norm": "post_feedforward_layernorm",
}
_ARCHITECTURES = {
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "llama": "LlamaForCausalLM",
}


@dataclasses.dataclass(frozen=True)
class TagRecord:
    """What an exported model records about the tags, in our section of config.json."""

    tags_base: int  # first of the rows that hold the tags
    positions: Positions | None = PREDICTED  # None: not trained on the tags; absent in early exports, all `predicted`


def layer_name(config: TransformerConfig, layer: int, plain: str) -> str:
    """The file's name of a layer's array."""
    names = _MATRIX_NAMES | (_POST_NORM_NAMES if config.post_norms else _PRE_NORM_NAMES)
    return f"model.layers.{layer}.{names[plain]}.weight"


def is_gemma(config: TransformerConfig) -> bool:
    """Whether the files hold norm weights minus one."""
    return config.scaled_embed


def read_config(folder: Path) -> tuple[TransformerConfig, TagRecord | None]:
    """The transformer that config.json describes, and our own section (None in files written by other tools)."""
    path = folder / "config.json"
    if not path.is_file():
        raise PastaError(f"{path}: not found; use a folder with config.json and *.safetensors")
    try:
        raw = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise PastaError(
            f"{path}: line {error.lineno}, column {error.colno}: not JSON ({error.msg}); fetch the file again"
        ) from None
    return config_from_json(raw.get("text_config", raw), path), _tag_record(raw, path)


def _tag_record(raw: dict[str, Any], path: Path) -> TagRecord | None:
    if SECTION not in raw:
        return None
    try:
        return msgspec.convert(raw[SECTION], TagRecord)
    except (msgspec.ValidationError, PastaError) as error:
        raise PastaError(f"{path}: malformed section {SECTION!r} ({error}); export the model again") from None


def config_from_json(raw: dict[str, Any], path: Path) -> TransformerConfig:
    """Translate config.json; features that our transformer lacks are refused with an error that names them."""

    def required(key: str):
        if key not in raw:
            raise PastaError(f"{path}: no {key!r}; use the config.json of a Gemma or Llama model")
        return raw[key]

    kind = required("model_type")
    if kind not in _ARCHITECTURES:
        raise PastaError(f"{path}: unsupported model_type {kind!r}; use a model of {', '.join(_ARCHITECTURES)}")
    for key in ("attention_bias", "mlp_bias"):
        if raw.get(key):
            raise PastaError(f"{path}: unsupported {key}; use a model without biases")
    gemma = kind != "llama"
    activation = raw.get("hidden_activation") or raw.get("hidden_act") or ("gelu_pytorch_tanh" if gemma else "silu")
    if activation not in ("gelu", "gelu_pytorch_tanh", "silu"):
        raise PastaError(f"{path}: unsupported activation {activation!r}; use a model with gelu_pytorch_tanh or silu")
    heads = required("num_attention_heads")
    fields = dict(
        vocab=required("vocab_size"),
        layers=required("num_hidden_layers"),
        embed=required("hidden_size"),
        ff=required("intermediate_size"),
        heads=heads,
        kv_heads=raw.get("num_key_value_heads") or heads,
        head_dim=raw.get("head_dim") or required("hidden_size") // heads,
        context=required("max_position_embeddings"),
        norm_eps=required("rms_norm_eps"),
        activation="silu" if activation == "silu" else "gelu",
        tied_head=raw.get("tie_word_embeddings", gemma),
        scaled_embed=gemma,
        post_norms=kind in ("gemma2", "gemma3_text"),
        qk_norm=kind == "gemma3_text",
    )
    if kind == "gemma2":
        fields |= dict(attention_cap=raw.get("attn_logit_softcapping"), logit_cap=raw.get("final_logit_softcapping"))
    if kind in ("gemma2", "gemma3_text"):
        fields |= dict(
            query_scalar=raw.get("query_pre_attn_scalar"),
            window=required("sliding_window"),
            global_every=_global_every(raw, kind, path),
        )
    return TransformerConfig(**fields, **_ropes(raw, kind, path))


def _global_every(raw: dict[str, Any], kind: str, path: Path) -> int:
    every = raw.get("sliding_window_pattern") or (2 if kind == "gemma2" else 6)
    types = raw.get("layer_types")
    if types is None:
        return every
    every = 1 + (types.index("full_attention") if "full_attention" in types else len(types))
    for layer, name in enumerate(types):
        expected = "full_attention" if (layer + 1) % every == 0 else "sliding_attention"
        if name != expected:
            raise PastaError(
                f"{path}: unsupported layer_types[{layer}] {name!r}; use a model in which every n-th layer is global"
            )
    return every


def _ropes(raw: dict[str, Any], kind: str, path: Path) -> dict[str, Rope]:
    """Rope bases and scalings, from the fields of either version of config.json."""
    parameters = raw.get("rope_parameters") or {}
    nested = {"full_attention", "sliding_attention"} & set(parameters)
    whole = parameters.get("full_attention", {}) if nested else parameters
    scaling = whole if whole.get("rope_type") else (raw.get("rope_scaling") or {})
    base = float(whole.get("rope_theta") or raw.get("rope_theta") or 10_000.0)
    name = scaling.get("rope_type", scaling.get("type", "default"))
    match name:
        case "default":
            rope = Rope(base)
        case "linear":
            rope = Rope(base, scale=float(scaling["factor"]))
        case "llama3":
            keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
            rope = Rope(base, llama3=tuple(scaling[key] for key in keys))
        case _:
            raise PastaError(
                f"{path}: unsupported rope scaling {name!r}; use a model with default, linear or llama3 scaling"
            )
    if kind != "gemma3_text":
        return {"rope": rope}
    local = parameters.get("sliding_attention", {}).get("rope_theta") or raw.get("rope_local_base_freq") or 10_000.0
    return {"rope": rope, "local_rope": Rope(float(local))}


def config_to_json(config: TransformerConfig, record: TagRecord | None) -> dict[str, Any]:
    """config.json of an export, with the model_type that has the features of the config."""
    if not is_gemma(config):
        kind = "llama"
    else:
        kind = "gemma3_text" if config.qk_norm else "gemma2" if config.post_norms else "gemma"
    theta = {"rope_theta": config.rope.base}
    rope = {"rope_type": "default", **theta}
    if config.rope.scale != 1.0:
        rope = {"rope_type": "linear", "factor": config.rope.scale, **theta}
    if config.rope.llama3 is not None:
        factor, low, high, context = config.rope.llama3
        rope = {"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high, **theta}
        rope["original_max_position_embeddings"] = context
    raw = {
        "architectures": [_ARCHITECTURES[kind]],
        "model_type": kind,
        "vocab_size": config.vocab,
        "num_hidden_layers": config.layers,
        "hidden_size": config.embed,
        "intermediate_size": config.ff,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_eps,
        "hidden_act": "silu" if config.activation == "silu" else "gelu_pytorch_tanh",
        "hidden_activation": "silu" if config.activation == "silu" else "gelu_pytorch_tanh",
        "tie_word_embeddings": config.tied_head,
        "rope_parameters": rope,
        "dtype": "float32",
    }
    if record is not None:
        raw[SECTION] = dataclasses.asdict(record)
    if kind in ("gemma2", "gemma3_text"):
        types = ["sliding_attention" if config.is_local(layer) else "full_attention" for layer in range(config.layers)]
        scalar = config.head_dim if config.query_scalar is None else config.query_scalar
        raw |= {"layer_types": types, "sliding_window": config.window, "query_pre_attn_scalar": scalar}
    if kind in ("gemma", "gemma2", "gemma3_text"):
        raw |= {"attn_logit_softcapping": config.attention_cap, "final_logit_softcapping": config.logit_cap}
    if kind == "gemma3_text":
        local = config.local_rope or config.rope
        raw["rope_parameters"] = {
            "full_attention": rope,
            "sliding_attention": {"rope_type": "default", "rope_theta": local.base},
        }
    return raw


class Files:
    """The tensors of a folder's *.safetensors files, read one at a time as float32."""

    def __init__(self, folder: Path):
        self.folder = folder
        paths = sorted(folder.glob("*.safetensors"))
        if not paths:
            raise PastaError(f"{folder}: no *.safetensors file; convert models of other formats first")
        self._file_of = {}
        for path in paths:
            try:
                with safe_open(path, framework="numpy") as file:
                    self._file_of |= dict.fromkeys(file.keys(), path)
            except (SafetensorError, OSError) as error:
                raise PastaError(f"{path}: not a complete safetensors file ({error}); fetch it again") from None

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def read(self, name: str) -> np.ndarray:
        """One tensor as float32."""
        if name not in self._file_of:
            raise PastaError(
                f"{self.folder}: no tensor {name!r} in its safetensors files; use the config.json that belongs to them"
            )
        with safe_open(self._file_of[name], framework="numpy") as file:
            return np.asarray(file.get_tensor(name), dtype=np.float32)


def read_params(folder: Path, config: TransformerConfig, vocab: int) -> Params:
    """Our parameters, unrolled, as float32 NumPy arrays; embedding and head are grown to `vocab` rows."""
    files = Files(folder)
    one = 1.0 if is_gemma(config) else 0.0

    def checked(name: str, shape: tuple[int, ...], offset: float = 0.0) -> np.ndarray:
        array = files.read(name)
        if array.shape != shape:
            raise PastaError(
                f"{folder}: {name} has shape {array.shape}, config.json implies {shape}; use the model's config.json"
            )
        return array + offset if offset else array

    def layer(l: int) -> Plain:
        return {
            plain: checked(layer_name(config, l, plain), shape, 0.0 if plain in MATRICES else one)
            for plain, shape in plain_shapes(config).items()
        }

    table = (config.vocab, config.embed)
    params = {
        "embed": grow_rows(checked("model.embed_tokens.weight", table), vocab),
        "final_norm": {"weight": checked("model.norm.weight", (config.embed,), one)},
        "layers": tuple(pack_layer(layer(l), config) for l in range(config.layers)),
    }
    if not config.tied_head:
        params["head"] = grow_rows(checked("lm_head.weight", table), vocab)
    return params


def plain_tensors(params: Params, config: TransformerConfig) -> Iterator[tuple[str, np.ndarray]]:
    """Each tensor of an export under its Hugging Face name."""
    one = np.float32(1.0 if is_gemma(config) else 0.0)
    yield "model.embed_tokens.weight", np.asarray(params["embed"])
    yield "model.norm.weight", np.asarray(params["final_norm"]["weight"]) - one
    if not config.tied_head:
        yield "lm_head.weight", np.asarray(params["head"])
    for l, layer in enumerate(params["layers"]):
        plain = unpack_layer(layer, config)
        for name in (*MATRICES, *norm_names(config)):
            yield layer_name(config, l, name), plain[name] if name in MATRICES else plain[name] - one


def write_model(folder: Path, params: Params, config: TransformerConfig, record: TagRecord | None = None) -> None:
    """Write config.json and model.safetensors (float32); `transformers` loads the folder with equal logits.

    The weights come last: a folder with a model.safetensors is a whole model.
    """
    write_whole(folder / "config.json", json.dumps(config_to_json(config, record), indent=2) + "\n")
    tensors = {name: np.asarray(array, np.float32) for name, array in plain_tensors(params, config)}
    tensor_file.write(folder / "model.safetensors", tensors, {"format": "pt"})
