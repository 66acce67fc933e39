"""From a GGUF file to our configuration and parameters: its architectures, its names, its order of rows."""

from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from pasta_jax.errors import PastaError
from pasta_jax.files.gguf import GGUF
from pasta_jax.files.validated import AboveZero, Positive
from pasta_jax.models.config import Layers, Size, TransformerConfig, config_of
from pasta_jax.models.parameters import Params, Plain, grow_rows, pack_layer, plain_shapes

NAMES = {
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "out": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "attn_norm": "attn_norm",
    "mlp_norm": "ffn_norm",
    "post_attn_norm": "post_attention_norm",
    "post_mlp_norm": "post_ffw_norm",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
}
_NAMES_THERE = {
    "layers": "block_count",
    "embed": "embedding_length",
    "ff": "feed_forward_length",
    "heads": "attention.head_count",
    "kv_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "context": "context_length",
    "norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_base": "rope.freq_base",
    "rope_factor": "rope.scaling.factor",
    "scaling": "rope.scaling.type",
    "window": "attention.sliding_window",
    "attention_cap": "attn_logit_softcapping",
    "logit_cap": "final_logit_softcapping",
}
_ARCHITECTURES = ("llama", "gemma", "gemma2", "gemma3")
_GLOBAL_EVERY = {"gemma2": 2, "gemma3": 6}  # part of the architecture, absent from files
_QUERY_SCALAR = {("gemma2", 46): 144, ("gemma3", 62): 168}  # the 27B models scale by embed / heads


class _Metadata(msgspec.Struct, frozen=True, kw_only=True, rename=_NAMES_THERE):
    """The metadata of an architecture that we read."""

    layers: Layers
    embed: Size
    ff: Size
    heads: Size
    kv_heads: Size | None = None
    head_dim: Size | None = None
    context: Positive
    norm_eps: Annotated[float, Meta(ge=0, le=1)]
    rope_base: AboveZero = 10_000.0
    rope_factor: AboveZero = 1.0
    scaling: str = "none"
    window: Positive | None = None
    attention_cap: AboveZero | None = None
    logit_cap: AboveZero | None = None


def read_config(gguf: GGUF) -> TransformerConfig:
    """Translate the metadata; architectures that our transformer lacks are refused with an error that names them."""
    path = gguf.path
    arch = gguf.metadata.get("general.architecture")
    if not isinstance(arch, str) or arch not in _ARCHITECTURES:
        raise PastaError(f"{path}: unsupported architecture {arch!r}; use a model of {', '.join(_ARCHITECTURES)}")
    if "rope_freqs.weight" in gguf.tensors:
        raise PastaError(f"{path}: unsupported tensor rope_freqs.weight; use the Hugging Face folder of this model")
    if "token_embd.weight" not in gguf.tensors:
        raise PastaError(f"{path}: no tensor token_embd.weight; convert the model again")

    file = gguf.section(f"{arch}.", _Metadata)
    gemma = arch != "llama"
    if file.scaling not in ("none", "linear"):
        raise PastaError(
            f"{path}: unsupported rope scaling {file.scaling!r}; use the Hugging Face folder of this model instead"
        )
    fields: dict[str, Any] = dict(
        vocab=gguf.tensors["token_embd.weight"].shape[0],
        layers=file.layers,
        embed=file.embed,
        ff=file.ff,
        heads=file.heads,
        kv_heads=file.kv_heads or file.heads,
        head_dim=file.head_dim or file.embed // file.heads,
        context=file.context,
        rope={"base": file.rope_base, "scale": file.rope_factor},
        norm_eps=round(file.norm_eps, 12),  # stored as float32
        activation="gelu" if gemma else "silu",
        tied_head="output.weight" not in gguf.tensors,
        scaled_embed=gemma,
        post_norms=arch in ("gemma2", "gemma3"),
        qk_norm=arch == "gemma3",
    )
    required = {"gemma2": ("window", "attention_cap", "logit_cap"), "gemma3": ("window",)}.get(arch, ())
    for name in required:
        if getattr(file, name) is None:
            raise PastaError(f"{path}: metadata {arch}: {_NAMES_THERE[name]}: missing; convert the model again")
    fields |= {name: getattr(file, name) for name in required}
    if arch in _GLOBAL_EVERY:
        fields |= dict(global_every=_GLOBAL_EVERY[arch], query_scalar=_QUERY_SCALAR.get((arch, file.layers)))
    if arch == "gemma3":
        fields["local_rope"] = {"base": 10_000.0}
    return config_of(fields, str(path), "convert the model again")


def read_params(gguf: GGUF, config: TransformerConfig, vocab: int) -> Params:
    """Our parameters, unrolled, as float32 NumPy arrays; embedding and head are grown to `vocab` rows."""

    def read(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if name not in gguf.tensors:
            raise PastaError(f"{gguf.path}: no tensor {name}; convert the model again")
        if gguf.tensors[name].shape != shape:
            raise PastaError(
                f"{gguf.path}: {name} has shape {gguf.tensors[name].shape}, the metadata imply {shape}; "
                "convert the model again"
            )
        return gguf.read(name)

    def layer(l: int) -> Plain:
        plain = {name: read(f"blk.{l}.{NAMES[name]}.weight", shape) for name, shape in plain_shapes(config).items()}
        if gguf.metadata["general.architecture"] == "llama":  # its q and k rows are interleaved for another rope
            plain["q"], plain["k"] = (by_halves(plain[name], config.head_dim) for name in "qk")
        return plain

    table = (config.vocab, config.embed)
    params = {
        "embed": grow_rows(read("token_embd.weight", table), vocab),
        "final_norm": {"weight": read("output_norm.weight", (config.embed,))},
        "layers": tuple(pack_layer(layer(l), config) for l in range(config.layers)),
    }
    if not config.tied_head:
        params["head"] = grow_rows(read("output.weight", table), vocab)
    return params


def by_halves(matrix: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows of each head from (pair, side) to (side, pair) order, for a rope that rotates halves, not neighbours."""
    return matrix.reshape(-1, head_dim // 2, 2, matrix.shape[1]).swapaxes(1, 2).reshape(matrix.shape)
