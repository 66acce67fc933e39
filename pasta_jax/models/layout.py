"""Conversion between the plain matrices of model files and one layer of our parameters, in both directions.

Files hold one [out, in] matrix per projection. We hold query, key and value of each key/value head side by side, and
gate and up rows interleaved. Every reader and writer goes through a `Plain` layer: NumPy arrays under the names below.
"""

import numpy as np

from pasta_jax.models.config import TransformerConfig

Plain = dict[str, np.ndarray]

MATRICES = ("q", "k", "v", "out", "gate", "up", "down")


def norm_names(config: TransformerConfig) -> tuple[str, ...]:
    """The norms in a layer of this model."""
    names = ("attn_norm", "mlp_norm")
    if config.post_norms:
        names += ("post_attn_norm", "post_mlp_norm")
    if config.qk_norm:
        names += ("q_norm", "k_norm")
    return names


def plain_shapes(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every array of a plain layer."""
    c = config
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    shapes = {
        "q": (q, c.embed),
        "k": (kv, c.embed),
        "v": (kv, c.embed),
        "out": (c.embed, q),
        "gate": (c.ff, c.embed),
        "up": (c.ff, c.embed),
        "down": (c.embed, c.ff),
    }
    return shapes | {name: (c.head_dim if name in ("q_norm", "k_norm") else c.embed,) for name in norm_names(c)}


def pack_layer(plain: Plain, config: TransformerConfig) -> dict:
    """One layer of our tree from plain matrices."""
    k_g_d_e = (config.kv_heads, config.groups, config.head_dim, config.embed)
    k_1_d_e = (config.kv_heads, 1, config.head_dim, config.embed)
    qkv = np.concatenate(
        [plain["q"].reshape(k_g_d_e), plain["k"].reshape(k_1_d_e), plain["v"].reshape(k_1_d_e)], axis=1
    )
    return {
        "qkv": {"kernel": qkv},
        "out": {"kernel": plain["out"]},
        "gate_up": {"kernel": np.stack([plain["gate"], plain["up"]], axis=1).reshape(-1, config.embed)},
        "down": {"kernel": plain["down"]},
    } | {name: {"weight": plain[name]} for name in norm_names(config)}


def unpack_layer(layer: dict, config: TransformerConfig) -> Plain:
    """Plain matrices from one layer of our tree."""
    c = config
    q, k, v = np.split(np.asarray(layer["qkv"]["kernel"]), (c.groups, c.groups + 1), axis=1)
    gate_up = np.asarray(layer["gate_up"]["kernel"])
    return {
        "q": q.reshape(-1, c.embed),
        "k": k.reshape(-1, c.embed),
        "v": v.reshape(-1, c.embed),
        "out": np.asarray(layer["out"]["kernel"]),
        "gate": gate_up[0::2],
        "up": gate_up[1::2],
        "down": np.asarray(layer["down"]["kernel"]),
    } | {name: np.asarray(layer[name]["weight"]) for name in norm_names(c)}


def grow_rows(table_VxE: np.ndarray, vocab: int) -> np.ndarray:
    """The embedding with zero rows appended up to `vocab`; tag_rows.py initialises those of the tags."""
    missing = vocab - table_VxE.shape[0]
    return np.pad(table_VxE, ((0, missing), (0, 0))) if missing > 0 else table_VxE
