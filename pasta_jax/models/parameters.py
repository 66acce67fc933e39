"""Conversion between the plain matrices of model files and one layer of our parameters, in both directions.

Files hold one [out, in] matrix per projection. We hold query, key and value of each key/value head side by side, and
gate and up rows interleaved. Every reader and writer goes through a `Plain` layer: NumPy arrays under the names below.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pasta_jax.models.config import TransformerConfig

Params = dict[str, Any]  # nested dicts of arrays, `layers` in either layout


def is_stacked(tree: Params) -> bool:
    """Whether the layers are stacked."""
    return isinstance(tree["layers"], dict)


def stack(tree: Params) -> Params:
    """The tree with its layers stacked, if they are alike; host arrays stay on the host."""
    if is_stacked(tree) or not are_alike(tree["layers"]):
        return tree
    on_host = isinstance(jax.tree.leaves(tree["layers"])[0], np.ndarray)
    join = np.stack if on_host else jnp.stack
    return tree | {"layers": jax.tree.map(lambda *leaves: join(leaves), *tree["layers"])}


def are_alike(layers: tuple[Params, ...]) -> bool:
    """Whether layers have the same arrays, of the same shapes."""
    first, *others = (
        {path: leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(layer)} for layer in layers
    )
    return all(one == first for one in others)


def unstack(tree: Params) -> Params:
    """The tree with its layers as a tuple."""
    if not is_stacked(tree):
        return tree
    count = jax.tree.leaves(tree["layers"])[0].shape[0]
    return tree | {"layers": tuple(jax.tree.map(lambda leaf, l=l: leaf[l], tree["layers"]) for l in range(count))}


def map_layers(function: Callable[..., Params], *trees: Params) -> tuple[Params, ...] | Params:
    """function(layer, ...) of each layer of trees that have the same layout, in that layout."""
    layers = [tree["layers"] for tree in trees]
    if is_stacked(trees[0]):
        return jax.vmap(function)(*layers)
    return tuple(function(*several) for several in zip(*layers, strict=True))


Plain = dict[str, np.ndarray]

PARTS = {  # of our kernels
    "qkv": ("q", "k", "v"),
    "out": ("out",),
    "gate_up": ("gate", "up"),
    "down": ("down",),
    "router": ("router",),
    "own_gate": ("own_gate",),  # to and from the width of a layer's own embedding
    "own_out": ("own_out",),
}

OF_EXPERTS = ("gate_up", "down")  # in a mixture, one kernel each: a dimension before the others


def table_names(config: TransformerConfig) -> tuple[str, ...]:
    """The arrays of a model with a row for each id."""
    has = {"embed": True, "head": not config.tied_head, "layer_embed": config.layer_embed}
    return tuple(name for name, one in has.items() if one)


def kernel_names(config: TransformerConfig) -> tuple[str, ...]:
    """The kernels in a layer of this model."""
    has = {"router": config.experts, "own_gate": config.layer_embed, "own_out": config.layer_embed}
    return tuple(name for name in PARTS if has.get(name, True))


def parts_of(name: str, config: TransformerConfig) -> tuple[str, ...]:
    """The matrices in a kernel of this layer."""
    return ("q",) if name == "qkv" and not config.own_layers else PARTS[name]


def vector_names(config: TransformerConfig) -> tuple[str, ...]:
    """The arrays in a layer of this model that are no kernels: norms, and sinks."""
    names = ("attn_norm", "mlp_norm") if config.pre_norms else ()
    if config.post_norms:
        names += ("post_attn_norm", "post_mlp_norm")
    if config.qk_norm:
        names += ("q_norm", "k_norm") if config.own_layers else ("q_norm",)
    if config.layer_embed:
        names += ("own_norm",)
    if config.layer_scales:
        names += ("scale",)
    if config.sinks:
        names += ("sinks",)
    return names


def plain_shapes(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every array of model files, by our name; most are those of a layer."""
    c = config
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    experts = (c.experts,) if c.experts else ()
    shapes = {
        "embed": (c.vocab, c.embed),
        "head": (c.vocab, c.embed),
        "final_norm": (c.embed,),
        "q": (q, c.embed),
        "k": (kv, c.embed),
        "v": (kv, c.embed),
        "out": (c.embed, q),
        "gate": (*experts, c.ff, c.embed),
        "up": (*experts, c.ff, c.embed),
        "down": (*experts, c.embed, c.ff),
    }
    if c.experts:
        shapes["router"] = (c.experts, c.embed)
    if c.layer_embed:
        shapes |= {"own_gate": (c.layer_embed, c.embed), "own_out": (c.embed, c.layer_embed)}
        shapes |= {"layer_embed": (c.vocab, c.layers * c.layer_embed), "layer_norm": (c.layer_embed,)}
        shapes["layer_projection"] = (c.layers * c.layer_embed, c.embed)
    shapes |= {f"{part}_bias": shapes[part][:-1] for name in c.biases for part in parts_of(name, c)}
    sizes = {"q_norm": q, "k_norm": kv} if c.whole_qk_norm else dict.fromkeys(("q_norm", "k_norm"), c.head_dim)
    sizes |= {"sinks": c.heads, "scale": 1}
    return shapes | {name: (sizes.get(name, c.embed),) for name in vector_names(c)}


def share_used(path: tuple, params: Params, config: TransformerConfig) -> float:
    """The share of an array of our tree that a token needs: of the tables that are only looked up none (one row is
    little), of experts' matrices those of the active ones."""
    names = {str(getattr(key, "key", key)) for key in path}
    if "layer_embed" in names or ("embed" in names and "head" in params):
        return 0.0
    return config.active_experts / config.experts if config.experts and names & {*OF_EXPERTS} else 1.0


def packed_shapes(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every array of one layer of our tree, by `name/leaf`."""
    c = config
    plain = plain_shapes(c)
    kernels = {name: plain[PARTS[name][0]] for name in kernel_names(c)}
    kernels["qkv"] = (c.kv_heads, c.groups + len(parts_of("qkv", c)) - 1, c.head_dim, c.embed)
    kernels["gate_up"] = (*plain["gate"][:-2], 2 * c.ff, c.embed)
    biases = {f"{name}/bias": kernels[name][:-1] for name in c.biases}
    return (
        {f"{name}/kernel": shape for name, shape in kernels.items()}
        | biases
        | {f"{name}/weight": plain[name] for name in vector_names(c)}
    )


def unpack_layer(layer: dict, config: TransformerConfig) -> Plain:
    """Plain matrices from one layer of our tree; `config` is the layer's."""
    plain = {name: np.asarray(layer[name]["weight"]) for name in vector_names(config)}
    for name in kernel_names(config):
        plain |= split_kernel(name, np.asarray(layer[name]["kernel"]), config)
    for name in config.biases:
        parts = split_kernel(name, np.asarray(layer[name]["bias"])[..., None], config)
        plain |= {f"{part}_bias": bias[..., 0] for part, bias in parts.items()}
    return plain


def join_kernel(name: str, plain: Plain, config: TransformerConfig) -> np.ndarray:
    """One of our kernels, or the outputs' half of its low-rank pair, from its parts [out, any], or [X, out, any]."""
    parts = [plain[part] for part in parts_of(name, config)]
    *experts, _, inputs = parts[0].shape
    if name == "qkv":  # [K, G + 2, D, in]
        heads = (part.reshape(config.kv_heads, -1, config.head_dim, inputs) for part in parts)
        return np.concatenate(list(heads), axis=1)
    return np.stack(parts, axis=-2).reshape(*experts, -1, inputs)


def split_kernel(name: str, kernel: np.ndarray, config: TransformerConfig) -> Plain:
    """The parts of one of our kernels; `join_kernel` undoes it."""
    if name == "qkv":
        parts = np.split(kernel, (config.groups, config.groups + 1), axis=1)
        parts = [part.reshape(-1, kernel.shape[-1]) for part in parts if part.size]
    else:
        count = len(PARTS[name])
        parts = [kernel[..., start::count, :] for start in range(count)]
    return dict(zip(parts_of(name, config), parts, strict=True))


def with_gate_and_up(layer: dict) -> dict:
    """A layer with `gate` and `up` instead of `gate_up`, to compute many rows; parameters for decoding as they are.

    Of a few rows, both are computed in one product, and every second element of a result is gate's. To pick those of
    many rows, a TPU's compiler took more than 17 GB for Gemma 7B; here every second row of the weights is picked.
    """
    if "kernel" not in layer.get("gate_up", ()):
        return layer
    others = {name: leaves for name, leaves in layer.items() if name != "gate_up"}
    return others | gate_and_up(layer["gate_up"])


def gate_and_up(gate_up: dict) -> dict:
    """The two matrices that are interleaved in one, with their biases and low-rank pairs, or these pairs alone."""
    at = gate_up["kernel"].ndim - 2 if "kernel" in gate_up else 0  # after the experts, in a mixture

    def every_second(first: int) -> dict:
        def part(leaf: jax.Array) -> jax.Array:
            pairs = leaf.reshape(*leaf.shape[:at], -1, 2, *leaf.shape[at + 1 :])
            return lax.index_in_dim(pairs, first, at + 1, keepdims=False)

        return {name: leaf if name == "lora_a" else part(leaf) for name, leaf in gate_up.items()}

    return {"gate": every_second(0), "up": every_second(1)}


def grow_rows(table_VxE: np.ndarray, vocab: int) -> np.ndarray:
    """The embedding with zero rows appended up to `vocab`; tag_rows.py initialises those of the tags."""
    missing = vocab - table_VxE.shape[0]
    return np.pad(table_VxE, ((0, missing), (0, 0))) if missing > 0 else table_VxE
