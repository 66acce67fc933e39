"""Models in Hugging Face's layout without torch: read safetensors, write config.json and safetensors."""

import dataclasses
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (gives NumPy bfloat16, which safetensors needs)
import numpy as np
from safetensors import SafetensorError, safe_open

from pasta_jax.errors import PastaError
from pasta_jax.files import safetensors
from pasta_jax.files.atomic import write_whole
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.parameters import (
    MATRICES,
    PARTS,
    Params,
    grow_rows,
    join_kernel,
    norm_names,
    packed_shapes,
    plain_shapes,
    unpack_layer,
)
from pasta_jax.weights.config_file import ARCHITECTURES, SECTION, TagRecord
from pasta_jax.weights.lazy import Deferred, read_now

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


def layer_name(config: TransformerConfig, layer: int, plain: str) -> str:
    """The file's name of a layer's array."""
    names = _MATRIX_NAMES | (_POST_NORM_NAMES if config.post_norms else _PRE_NORM_NAMES)
    return f"model.layers.{layer}.{names[plain]}.weight"


def is_gemma(config: TransformerConfig) -> bool:
    """Whether the files hold norm weights minus one."""
    return config.scaled_embed


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
        "architectures": [ARCHITECTURES[kind]],
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
        # The names that transformers before version 5 reads; it ignores the new ones without a word.
        "rope_theta": config.rope.base,
        "rope_scaling": None
        if rope["rope_type"] == "default"
        else {name: rope[name] for name in rope if name not in theta},
        "torch_dtype": "float32",
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
        raw |= {"rope_local_base_freq": local.base, "sliding_window_pattern": config.global_every}
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
    return read_now(deferred_params(folder, config, vocab))


def deferred_params(folder: Path, config: TransformerConfig, vocab: int) -> Params:
    """`read_params` without reading them yet."""
    files = Files(folder)
    one = 1.0 if is_gemma(config) else 0.0
    plain, packed = plain_shapes(config), packed_shapes(config)

    def checked(name: str, shape: tuple[int, ...], offset: float = 0.0) -> np.ndarray:
        array = files.read(name)
        if array.shape != shape:
            raise PastaError(
                f"{folder}: {name} has shape {array.shape}, config.json implies {shape}; use the model's config.json"
            )
        return array + offset if offset else array

    def kernel(l: int, name: str) -> np.ndarray:
        parts = {part: checked(layer_name(config, l, part), plain[part]) for part in PARTS[name]}
        return join_kernel(name, parts, config)

    def norm(name: str, shape: tuple[int, ...]) -> Deferred:
        return Deferred(shape, lambda: checked(name, shape, one))

    def table(name: str) -> Deferred:
        shape = (config.vocab, config.embed)
        return Deferred((vocab, config.embed), lambda: grow_rows(checked(name, shape), vocab))

    def layer(l: int) -> Params:
        kernels = {
            name: {"kernel": Deferred(packed[f"{name}/kernel"], functools.partial(kernel, l, name))} for name in PARTS
        }
        return kernels | {
            name: {"weight": norm(layer_name(config, l, name), plain[name])} for name in norm_names(config)
        }

    params = {
        "embed": table("model.embed_tokens.weight"),
        "final_norm": {"weight": norm("model.norm.weight", (config.embed,))},
        "layers": tuple(map(layer, range(config.layers))),
    }
    if not config.tied_head:
        params["head"] = table("lm_head.weight")
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
    safetensors.write(folder / "model.safetensors", tensors, {"format": "pt"})
