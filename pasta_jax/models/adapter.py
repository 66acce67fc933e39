"""LoRA: a small tree of low-rank pairs, and of the tags' rows, beside frozen parameters.

    kernel' = kernel + b · a        a [rank, inputs], b [*outputs, rank]; the usual factor alpha / rank is inside a's
    first values

An adapter follows the parameters' layer layout (stacked or unrolled). `attach` and `merge` are pure and differentiable.
"""

import dataclasses
import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from pasta_jax.errors import PastaError
from pasta_jax.lang.tags import NUM_TAGS, TagIds
from pasta_jax.models.config import TransformerConfig

FORMAT = "pasta_jax adapter 1"
TARGETS = ("qkv", "out", "gate_up", "down")  # a layer's projections
TABLES = ("embed", "head")


@dataclasses.dataclass(frozen=True)
class AdapterConfig:
    """Which projections get a pair, of which rank, and how strongly the pair starts to act."""

    rank: int
    alpha: float
    targets: tuple[str, ...] = TARGETS

    def __post_init__(self):
        unknown = set(self.targets) - set(TARGETS)
        if unknown:
            raise PastaError(
                f"adapter target {sorted(unknown)[0]!r}: there is none of this name; choose from {', '.join(TARGETS)}"
            )
        if self.rank < 1:
            raise PastaError(f"adapter rank {self.rank}: it must be at least 1")


def new_adapter(params: dict, adapter: AdapterConfig, tags: TagIds, seed: int) -> dict:
    """An adapter that changes nothing yet: b is zero, the tags' rows are the parameters' own."""
    rng = np.random.default_rng(seed)

    def pair(kernel, lead: int):
        layers, outputs, inputs = kernel.shape[:lead], kernel.shape[lead:-1], kernel.shape[-1]
        scale = adapter.alpha / adapter.rank / np.sqrt(inputs)
        a = rng.standard_normal((*layers, adapter.rank, inputs)) * scale
        return {
            "lora_a": jnp.asarray(a, jnp.float32),
            "lora_b": jnp.zeros((*layers, *outputs, adapter.rank), jnp.float32),
        }

    def one(layer, lead: int):
        return {name: pair(layer[name]["kernel"], lead) for name in adapter.targets}

    layers = params["layers"]
    rows = {
        name: params[name][tags.base : tags.base + NUM_TAGS].astype(jnp.float32) for name in TABLES if name in params
    }
    return {
        "layers": tuple(one(l, 0) for l in layers) if isinstance(layers, tuple) else one(layers, 1),
        "tag_rows": rows,
    }


def attach(params: dict, adapter: dict, tags: TagIds) -> dict:
    """Parameters that compute with the adapter beside the frozen kernels: for training."""

    def join(layer, pairs):
        return layer | {
            name: layer[name] | {k: v.astype(layer[name]["kernel"].dtype) for k, v in pair.items()}
            for name, pair in pairs.items()
        }

    layers = params["layers"]
    if isinstance(layers, tuple):
        joined = tuple(join(layer, pairs) for layer, pairs in zip(layers, adapter["layers"], strict=True))
    else:
        joined = join(layers, adapter["layers"])
    return params | {"layers": joined} | _with_tag_rows(params, adapter, tags)


def merge(params: dict, adapter: dict, tags: TagIds) -> dict:
    """Parameters with the adapter inside the kernels: for decoding and export."""

    def product(a, b):
        return jnp.tensordot(b, a, axes=1)

    def join(layer, pairs, delta):
        def add(kernel, pair):
            return (kernel.astype(jnp.float32) + delta(pair["lora_a"], pair["lora_b"])).astype(kernel.dtype)

        return layer | {name: {"kernel": add(layer[name]["kernel"], pair)} for name, pair in pairs.items()}

    layers = params["layers"]
    if isinstance(layers, tuple):
        merged = tuple(join(layer, pairs, product) for layer, pairs in zip(layers, adapter["layers"], strict=True))
    else:
        merged = join(layers, adapter["layers"], jax.vmap(product))
    return params | {"layers": merged} | _with_tag_rows(params, adapter, tags)


def _with_tag_rows(params: dict, adapter: dict, tags: TagIds) -> dict:
    rows = adapter["tag_rows"]
    return {
        name: params[name].at[tags.base : tags.base + NUM_TAGS].set(rows[name].astype(params[name].dtype))
        for name in rows
    }


def save_adapter(path: Path, adapter: dict, about: dict) -> None:
    """Write an adapter as one safetensors file, layers stacked; `about` (base model, rank, …) travels with it."""
    layers = adapter["layers"]
    if isinstance(layers, tuple):
        layers = jax.tree.map(lambda *leaves: np.stack(leaves), *layers)
    flat = {f"layers.{name}.{key}": leaf for name, pair in layers.items() for key, leaf in pair.items()}
    flat |= {f"tag_rows.{name}": leaf for name, leaf in adapter["tag_rows"].items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    save_file(
        {name: np.ascontiguousarray(leaf, dtype=np.float32) for name, leaf in flat.items()},
        unfinished,
        metadata={"format": FORMAT, "about": json.dumps(about)},
    )
    os.replace(unfinished, path)


def load_adapter(path: Path, params: dict, config: TransformerConfig) -> tuple[dict, dict]:
    """An adapter for these parameters, in their layer layout, and what was said about it; a foreign one is refused."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise PastaError(
                    f"{path}: not an adapter of this program (format {metadata.get('format')!r}, expected {FORMAT!r})"
                )
            flat = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (a safetensors file is no dict)
    except (SafetensorError, OSError) as error:
        raise PastaError(f"{path}: not a whole adapter file ({error}); save or fetch it again") from None
    layers: dict = {}
    rows = {}
    for name, leaf in flat.items():
        kind, *rest = name.split(".")
        if kind == "tag_rows":
            rows[rest[0]] = jnp.asarray(leaf)
        else:
            layers.setdefault(rest[0], {})[rest[1]] = leaf
    first = params["layers"][0] if isinstance(params["layers"], tuple) else params["layers"]
    for name, pair in layers.items():
        kernel = first[name]["kernel"].shape[0 if isinstance(params["layers"], tuple) else 1 :]
        expected = (
            (config.layers, pair["lora_a"].shape[1], kernel[-1]),
            (config.layers, *kernel[:-1], pair["lora_b"].shape[-1]),
        )
        if (pair["lora_a"].shape, pair["lora_b"].shape) != expected:
            raise PastaError(
                f"{path}: {name} was trained for kernels of another shape than {kernel}; load it with its base model"
            )
    if isinstance(params["layers"], tuple):
        unrolled = tuple(jax.tree.map(lambda leaf, l=l: jnp.asarray(leaf[l]), layers) for l in range(config.layers))
        return {"layers": unrolled, "tag_rows": rows}, json.loads(metadata["about"])
    return {"layers": jax.tree.map(jnp.asarray, layers), "tag_rows": rows}, json.loads(metadata["about"])
