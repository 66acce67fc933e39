"""From a GGUF file to our configuration and parameters: its architectures, its names, its order of rows."""

import numpy as np

from pasta_jax.errors import PastaError
from pasta_jax.models.config import Rope, TransformerConfig
from pasta_jax.models.gguf import GGUF
from pasta_jax.models.layers import Params
from pasta_jax.models.layout import Plain, grow_rows, pack_layer, plain_shapes

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
_ARCHITECTURES = ("llama", "gemma", "gemma2", "gemma3")
_GLOBAL_EVERY = {"gemma2": 2, "gemma3": 6}  # part of the architecture, absent from files
_QUERY_SCALAR = {("gemma2", 46): 144, ("gemma3", 62): 168}  # the 27B models scale by embed / heads


def read_config(gguf: GGUF) -> TransformerConfig:
    """Translate the metadata; architectures that our transformer lacks are refused with an error that names them."""
    path = gguf.path
    arch = gguf.metadata.get("general.architecture")
    if arch not in _ARCHITECTURES:
        raise PastaError(f"{path}: unsupported architecture {arch!r}; use a model of {', '.join(_ARCHITECTURES)}")
    if "rope_freqs.weight" in gguf.tensors:
        raise PastaError(f"{path}: unsupported tensor rope_freqs.weight; use the Hugging Face folder of this model")
    if "token_embd.weight" not in gguf.tensors:
        raise PastaError(f"{path}: no tensor token_embd.weight; convert the model again")

    def required(key: str):
        if f"{arch}.{key}" not in gguf.metadata:
            raise PastaError(f"{path}: no metadata {arch}.{key}; convert the model again")
        return gguf.metadata[f"{arch}.{key}"]

    def optional(key: str, default):
        return gguf.metadata.get(f"{arch}.{key}", default)

    heads, embed, layers = required("attention.head_count"), required("embedding_length"), required("block_count")
    gemma = arch != "llama"
    scaling = optional("rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        raise PastaError(
            f"{path}: unsupported rope scaling {scaling!r}; use the Hugging Face folder of this model instead"
        )
    fields = dict(
        vocab=gguf.tensors["token_embd.weight"].shape[0],
        layers=layers,
        embed=embed,
        ff=required("feed_forward_length"),
        heads=heads,
        kv_heads=optional("attention.head_count_kv", heads),
        head_dim=optional("attention.key_length", embed // heads),
        context=required("context_length"),
        rope=Rope(float(optional("rope.freq_base", 10_000.0)), scale=float(optional("rope.scaling.factor", 1.0))),
        norm_eps=round(float(required("attention.layer_norm_rms_epsilon")), 12),  # stored as float32
        activation="gelu" if gemma else "silu",
        tied_head="output.weight" not in gguf.tensors,
        scaled_embed=gemma,
        post_norms=arch in ("gemma2", "gemma3"),
        qk_norm=arch == "gemma3",
    )
    if arch == "gemma2":
        fields |= dict(attention_cap=required("attn_logit_softcapping"), logit_cap=required("final_logit_softcapping"))
    if arch in _GLOBAL_EVERY:
        fields |= dict(
            window=required("attention.sliding_window"),
            global_every=_GLOBAL_EVERY[arch],
            query_scalar=_QUERY_SCALAR.get((arch, layers)),
        )
    if arch == "gemma3":
        fields["local_rope"] = Rope(10_000.0)
    return TransformerConfig(**fields)


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
