"""What a family of models is: its features, and how files name its fields and tensors; families.py has the table."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec
import numpy as np
from msgspec import Meta

from pasta_jax.files.validated import AboveZero, Count, Positive, typed
from pasta_jax.models.config import Experts, Layers, Size, TransformerConfig
from pasta_jax.models.parameters import OF_EXPERTS, PARTS

TRANSFORMERS, GGUF = 0, 1  # the columns of names below: of Hugging Face's folders, and of GGUF files

# What files state of a configuration: a type, and the field's name; None: files of the kind don't state it.
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
OPTIONS: dict[str, tuple[Any, tuple[str, str | None]]] = {
    "window": (Positive | None, ("sliding_window", "attention.sliding_window")),
    "attention_cap": (AboveZero | None, ("attn_logit_softcapping", "attn_logit_softcapping")),
    "logit_cap": (AboveZero | None, ("final_logit_softcapping", "final_logit_softcapping")),
    "embed_scale": (AboveZero | None, ("embedding_multiplier", "embedding_scale")),
    "residual_scale": (AboveZero | None, ("residual_multiplier", "residual_scale")),
    "attention_scale": (AboveZero | None, ("attention_multiplier", "attention.scale")),
    "logit_divisor": (AboveZero | None, ("logits_scaling", "logit_scale")),
    "experts": (Experts | None, ("num_local_experts", "expert_count")),
    "active_experts": (Experts | None, ("num_experts_per_tok", "expert_used_count")),
    "expert_ff": (Size | None, ("moe_intermediate_size", "expert_feed_forward_length")),  # our `ff`
    "gate_limit": (AboveZero | None, ("swiglu_limit", None)),
    "gate_slope": (AboveZero | None, ("swiglu_alpha", None)),
    "shared_layers": (Count | None, ("num_kv_shared_layers", "attention.shared_kv_layers")),
    "wide_shared": (bool | None, ("use_double_wide_mlp", None)),
}
FIELD_NAMES = {name: names for name, (_, names) in (SHAPE | OPTIONS).items()}

TABLES = {
    "embed": ("model.embed_tokens", "token_embd"),
    "head": ("lm_head", "output"),
    "final_norm": ("model.norm", "output_norm"),
    "layer_embed": ("model.embed_tokens_per_layer", "per_layer_token_embd"),
    "layer_projection": ("model.per_layer_model_projection", "per_layer_model_proj"),
    "layer_norm": ("model.per_layer_projection_norm", "per_layer_proj_norm"),
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
    "sinks": ("self_attn.sinks", "attn_sinks"),
}
# With post-norms, the norm after attention has the name of the one before the MLP without them.
WITH_POST_NORMS = LAYER | {
    "mlp_norm": ("pre_feedforward_layernorm", "ffn_norm"),
    "post_attn_norm": ("post_attention_layernorm", "post_attention_norm"),
    "post_mlp_norm": ("post_feedforward_layernorm", "post_ffw_norm"),
}
WITH_OWN = WITH_POST_NORMS | {
    "own_gate": ("per_layer_input_gate", "inp_gate"),
    "own_out": ("per_layer_projection", "proj"),
    "own_norm": ("post_per_layer_input_norm", "post_norm"),
    "scale": ("layer_scalar", "layer_output_scale"),
}
_EXPERTS = {part: f"ffn_{part}_exps" for part in ("gate", "up", "down")}
# A tensor for each expert.
EXPERTS = LAYER | {"router": ("mlp.gate", "ffn_gate_inp")}
EXPERTS |= {part: (f"mlp.experts.*.{part}_proj", name) for part, name in _EXPERTS.items()}
# All experts in one tensor; gate and up are in one, in turn, but not in GGUF files.
IN_TURN = LAYER | {part: (f"mlp.experts.{part}_proj", name) for part, name in _EXPERTS.items()}
IN_TURN |= {
    "gate|up": ("mlp.experts.gate_up_proj", None),
    "router": ("mlp.router", "ffn_gate_inp"),
    "mlp_norm": ("post_attention_layernorm", "post_attention_norm"),
}
# The rows of several matrices, one under another, in one tensor.
FUSED = LAYER | {"q+k+v": ("self_attn.qkv_proj", "attn_qkv"), "gate+up": ("mlp.gate_up_proj", "ffn_up")}


ALWAYS = ("vocab", "rope", "activation", "tied_head", "family")  # which files of every family state in their own way


@dataclasses.dataclass(frozen=True)
class Family:
    """How files name a family and its tensors, and what they don't state of it."""

    kinds: tuple[str, str | None]  # model_type, and general.architecture; None: not read from GGUF files
    architecture: str  # the class of `transformers`
    features: dict[str, Any]  # fields of TransformerConfig; files may state those in `options`
    options: tuple[str, ...] = ()  # fields that files of this family state, beside those that all files do
    required: tuple[str, ...] = ()  # of the options: without them, a file would be read wrongly
    implied: dict[str, Any] = dataclasses.field(default_factory=dict)  # fields of a config.json that leaves them out
    layer: dict[str, tuple[str, str]] = dataclasses.field(default_factory=lambda: LAYER)
    norm_offset: float = 0.0  # what norms in Hugging Face's folders are lower by
    rotates_pairs: bool = False  # in GGUF files, q and k have their rows in order for a rope that rotates neighbours
    rope_fields: dict[str, Any] = dataclasses.field(default_factory=dict)  # that an export adds
    query_scalars: dict[int, int] = dataclasses.field(default_factory=dict)  # by layers; GGUF files state none
    yarn_is_whole: bool = True  # GGUF files don't state it

    def can_state(self, config: TransformerConfig) -> bool:
        """Whether a file of this family says all that a configuration is."""
        stated = {*SHAPE, *ALWAYS, "global_every", *self.options}
        is_mixed = config.window is not None and config.global_every <= config.layers
        if is_mixed and "global_every" not in self.options:
            return False
        if "global_head_dim" in self.options and config.is_local(config.layers - 1):
            return False
        if config.rope.share != 1.0 and (
            "share" not in self.options or config.rope.of_pairs != ("value_norm" in self.features)
        ):
            return False
        fields = ((field.name, field.default) for field in dataclasses.fields(config) if field.name not in stated)
        if "out_bias" in self.options and config.out_bias != config.qkv_bias:  # one field of the file says both
            return False
        return all(getattr(config, name) == self.features.get(name, default) for name, default in fields)

    def tensors(self, column: int, parts: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        """The tensors that hold a kernel of ours, and the matrices in each: `a+b` under one another, `a|b` in turn."""
        for name in ("+".join(parts), "|".join(parts)):
            if len(parts) > 1 and self.layer.get(name, (None, None))[column]:
                return {name: parts}
        return {part: (part,) for part in parts}

    def stored(self, column: int, plain: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """A layer's arrays as files hold them: some matrices and biases in one tensor."""
        found = dict(plain)
        for tensors in (self.tensors(column, parts) for parts in PARTS.values()):
            for tensor, parts in tensors.items():
                for suffix in ("", "_bias"):
                    arrays = [found.pop(part + suffix) for part in parts if part + suffix in plain]
                    if arrays:
                        found[tensor + suffix] = self.together(column, tensor, arrays, -1 if suffix else -2)
        return found

    def together(self, column: int, tensor: str, parts: list[np.ndarray], axis: int) -> np.ndarray:
        """The tensor that holds these matrices, or with axis -1 biases."""
        if "|" in tensor:
            joined = np.stack(parts, axis).reshape(*parts[0].shape[:axis], -1, *parts[0].shape[axis:][1:])
        else:
            joined = parts[0] if len(parts) == 1 else np.concatenate(parts, axis)
        return joined.swapaxes(-1, -2) if self._is_transposed(column, tensor, axis) else joined

    def shape(self, column: int, tensor: str, parts: list[tuple[int, ...]], axis: int) -> tuple[int, ...]:
        """The shape of `together`, from its parts'."""
        shape = list(parts[0])
        shape[axis] = sum(part[axis] for part in parts)
        if self._is_transposed(column, tensor, axis):
            shape[-2:] = shape[:-3:-1]
        return tuple(shape)

    def apart(self, column: int, tensor: str, stored: np.ndarray, rows: list[int], axis: int) -> list[np.ndarray]:
        """The matrices, or with axis -1 biases, of so many rows each that a tensor holds."""
        if self._is_transposed(column, tensor, axis):
            stored = stored.swapaxes(-1, -2)
        if "|" in tensor:
            return [np.moveaxis(np.moveaxis(stored, axis, 0)[at :: len(rows)], 0, axis) for at in range(len(rows))]
        return np.split(stored, np.cumsum(rows)[:-1], axis)

    def _is_transposed(self, column: int, tensor: str, axis: int) -> bool:
        """Where the folder has a tensor of all experts, their matrices are [in, out]."""
        in_turn = column == TRANSFORMERS and "gate|up" in self.layer
        return in_turn and axis == -2 and (tensor in OF_EXPERTS or tensor == "gate|up")

    def tensor(self, column: int, name: str, layer: int | None = None) -> str:
        """A tensor's name in files."""
        if layer is None:
            return f"{TABLES[name][column]}.weight"
        matrix, is_bias = name.removesuffix("_bias"), name.endswith("_bias")
        place = f"{('model.layers', 'blk')[column]}.{layer}.{self.layer[matrix][column]}"
        if column == TRANSFORMERS and ((".experts." in place and "*" not in place) or matrix in ("sinks", "scale")):
            return f"{place}{'_bias' if is_bias else ''}"  # no module of its own
        return f"{place}.{'bias' if is_bias else 'weight'}"

    def ours(self, column: int, name: str, array: np.ndarray, head_dim: int) -> np.ndarray:
        """A file's array with our values, in our order of rows."""
        if column == TRANSFORMERS and name.endswith("norm") and self.norm_offset:
            return array + self.norm_offset
        if column == GGUF and name in ("q", "k") and self.rotates_pairs:
            # Rows of each head from (pair, side) to (side, pair) order: our rope rotates halves, not neighbours.
            return array.reshape(-1, head_dim // 2, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        return array

    def theirs(self, name: str, array: np.ndarray) -> np.ndarray:
        """One of our arrays as Hugging Face's folders have it."""
        return array - np.float32(self.norm_offset) if name.endswith("norm") else array

    def config(self, stated: msgspec.Struct, place: Path, fix: str, **fields: Any) -> TransformerConfig:
        """The configuration that a file states in the fields of `stated_in`, and in others."""
        own = {name: getattr(stated, name) for name in SHAPE}
        own |= {name: getattr(stated, name) for name in self.options if getattr(stated, name, None) is not None}
        own["ff"] = own.pop("expert_ff", own["ff"])
        own["kv_heads"] = stated.kv_heads or stated.heads
        own["head_dim"] = stated.head_dim or stated.embed // stated.heads
        own["family"] = self.kinds[TRANSFORMERS]
        return typed(self.features | own | fields, TransformerConfig, str(place), fix)


def stated_in(column: int) -> type[msgspec.Struct]:
    """What files state of a configuration as a type, with the fields' names there."""
    names = {name: theirs[column] for name, theirs in FIELD_NAMES.items() if theirs[column]}
    fields = [
        (name, kind, None) if type(None) in get_args(kind) else (name, kind)
        for name, (kind, _) in (SHAPE | OPTIONS).items()
        if name in names
    ]
    return msgspec.defstruct("Stated", fields, rename=names, frozen=True, kw_only=True)
