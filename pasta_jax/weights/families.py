"""One table of the families of models that are read and written: features, and the names of fields and tensors.

A new dense family is a record in `FAMILIES`.
"""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec
import numpy as np
from msgspec import Meta

from pasta_jax.errors import PastaError
from pasta_jax.files.validated import AboveZero, Positive
from pasta_jax.models.config import Layers, Size, TransformerConfig, config_of

TRANSFORMERS, GGUF = 0, 1  # the columns of names below: of Hugging Face's folders, and of GGUF files

# What files state of a configuration: a type, and the field's name.
SHAPE: dict[str, tuple[Any, tuple[str, str]]] = {
    "layers": (Layers, ("num_hidden_layers", "block_count")),
    "embed": (Size, ("hidden_size", "embedding_length")),
    "ff": (Size, ("intermediate_size", "feed_forward_length")),
    "heads": (Size, ("num_attention_heads", "attention.head_count")),
    "kv_heads": (Size | None, ("num_key_value_heads", "attention.head_count_kv")),
    "head_dim": (Size | None, ("head_dim", "attention.key_length")),
    "context": (Positive, ("max_position_embeddings", "context_length")),
    "norm_eps": (Annotated[float, Meta(ge=0, le=1)], ("rms_norm_eps", "attention.layer_norm_rms_epsilon")),
}
OPTIONS: dict[str, tuple[Any, tuple[str, str]]] = {
    "window": (Positive | None, ("sliding_window", "attention.sliding_window")),
    "attention_cap": (AboveZero | None, ("attn_logit_softcapping", "attn_logit_softcapping")),
    "logit_cap": (AboveZero | None, ("final_logit_softcapping", "final_logit_softcapping")),
}
FIELD_NAMES = {name: names for name, (_, names) in (SHAPE | OPTIONS).items()}

TABLES = {
    "embed": ("model.embed_tokens", "token_embd"),
    "head": ("lm_head", "output"),
    "final_norm": ("model.norm", "output_norm"),
}
LAYER = {
    "q": ("self_attn.q_proj", "attn_q"),
    "k": ("self_attn.k_proj", "attn_k"),
    "v": ("self_attn.v_proj", "attn_v"),
    "out": ("self_attn.o_proj", "attn_output"),
    "gate": ("mlp.gate_proj", "ffn_gate"),
    "up": ("mlp.up_proj", "ffn_up"),
    "down": ("mlp.down_proj", "ffn_down"),
    "q_norm": ("self_attn.q_norm", "attn_q_norm"),
    "k_norm": ("self_attn.k_norm", "attn_k_norm"),
    "attn_norm": ("input_layernorm", "attn_norm"),
    "mlp_norm": ("post_attention_layernorm", "ffn_norm"),
}
# With post-norms, the norm after attention has the name of the one before the MLP without them.
WITH_POST_NORMS = LAYER | {
    "mlp_norm": ("pre_feedforward_layernorm", "ffn_norm"),
    "post_attn_norm": ("post_attention_layernorm", "post_attention_norm"),
    "post_mlp_norm": ("post_feedforward_layernorm", "post_ffw_norm"),
}


@dataclasses.dataclass(frozen=True)
class Family:
    """How files name a family and its tensors, and what they don't state of it."""

    kinds: tuple[str, str]  # model_type, and general.architecture
    architecture: str  # the class of `transformers`
    features: dict[str, Any]  # fields of TransformerConfig; some files state others
    options: tuple[str, ...] = ()  # of `OPTIONS`: what it has
    layer: dict[str, tuple[str, str]] = dataclasses.field(default_factory=lambda: LAYER)
    norm_offset: float = 0.0  # what norms in Hugging Face's folders are lower by
    rotates_pairs: bool = False  # in GGUF files, q and k have their rows in order for a rope that rotates neighbours
    query_scalars: dict[int, int] = dataclasses.field(default_factory=dict)  # by layers; GGUF files state none

    def tensor(self, column: int, name: str, layer: int | None = None) -> str:
        """A tensor's name in files."""
        if layer is None:
            return f"{TABLES[name][column]}.weight"
        matrix, is_bias = name.removesuffix("_bias"), name.endswith("_bias")
        place = f"{('model.layers', 'blk')[column]}.{layer}.{self.layer[matrix][column]}"
        return f"{place}.{'bias' if is_bias else 'weight'}"

    def ours(self, column: int, name: str, array: np.ndarray, head_dim: int) -> np.ndarray:
        """A file's array with our values, in our order of rows."""
        if column == TRANSFORMERS and name.endswith("norm") and self.norm_offset:
            return array + self.norm_offset
        if column == GGUF and name in ("q", "k") and self.rotates_pairs:
            # Rows of each head from (pair, side) to (side, pair) order: our rope rotates halves, not neighbours.
            return array.reshape(-1, head_dim // 2, 2, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        return array

    def theirs(self, name: str, array: np.ndarray) -> np.ndarray:
        """One of our arrays as Hugging Face's folders have it."""
        return array - np.float32(self.norm_offset) if name.endswith("norm") else array

    def config(self, stated: msgspec.Struct, place: Path, fix: str, **fields: Any) -> TransformerConfig:
        """The configuration that a file states in the fields of `stated_in`, and in others."""
        own = {name: getattr(stated, name) for name in (*SHAPE, *self.options)}
        own["kv_heads"] = stated.kv_heads or stated.heads
        own["head_dim"] = stated.head_dim or stated.embed // stated.heads
        return config_of(self.features | own | fields, str(place), fix)


_LLAMA = {"activation": "silu", "tied_head": False}
_GEMMA = {"activation": "gelu", "tied_head": True, "scaled_embed": True}
_GEMMA2 = _GEMMA | {"post_norms": True, "global_every": 2}
_GEMMA3 = _GEMMA | {"post_norms": True, "qk_norm": True, "global_every": 6, "local_rope": {"base": 10_000.0}}
FAMILIES = (
    Family(("llama", "llama"), "LlamaForCausalLM", _LLAMA, rotates_pairs=True),
    Family(("mistral", "llama"), "MistralForCausalLM", _LLAMA, rotates_pairs=True),
    Family(("qwen2", "qwen2"), "Qwen2ForCausalLM", _LLAMA | {"qkv_bias": True}),
    Family(("gemma", "gemma"), "GemmaForCausalLM", _GEMMA, norm_offset=1.0),
    Family(
        ("gemma2", "gemma2"),
        "Gemma2ForCausalLM",
        _GEMMA2,
        ("window", "attention_cap", "logit_cap"),
        WITH_POST_NORMS,
        norm_offset=1.0,
        query_scalars={46: 144},  # of 27B
    ),
    Family(
        ("gemma3_text", "gemma3"),
        "Gemma3ForCausalLM",
        _GEMMA3,
        ("window",),
        WITH_POST_NORMS,
        norm_offset=1.0,
        query_scalars={62: 168},  # of 27B
    ),
)
_DISTINCT = ("scaled_embed", "post_norms", "qk_norm", "qkv_bias")


def of_config(config: TransformerConfig) -> Family:
    """The family with the features of a configuration: that of an export."""
    for family in FAMILIES:
        if all(family.features.get(name, False) == getattr(config, name) for name in _DISTINCT):
            return family
    features = {name: getattr(config, name) for name in _DISTINCT}
    raise PastaError(f"no family of models has {features}; change one of these to export the model")


def of_file(column: int, kind: Any, place: Path, what: str) -> Family:
    """The family that a file names as its `what`."""
    for family in FAMILIES:
        if family.kinds[column] == kind:
            return family
    known = ", ".join(dict.fromkeys(family.kinds[column] for family in FAMILIES))
    raise PastaError(f"{place}: unsupported {what} {kind!r}; use a model of {known}")


def stated_in(column: int) -> type[msgspec.Struct]:
    """What files state of a configuration as a type, with the fields' names there."""
    fields = [
        (name, kind, None) if type(None) in get_args(kind) else (name, kind)
        for name, (kind, _) in (SHAPE | OPTIONS).items()
    ]
    names = {name: theirs[column] for name, theirs in FIELD_NAMES.items()}
    return msgspec.defstruct("Stated", fields, rename=names, frozen=True, kw_only=True)
