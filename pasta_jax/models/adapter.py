"""LoRA adapters: a small tree of low-rank pairs, and of the tags' rows, alongside frozen parameters.

    kernel' = kernel + b · a        a [rank, inputs], b [*outputs, rank]

The usual factor alpha / rank is part of a's initial values. An adapter has the layer layout of its parameters. `attach`
and `merge` are pure and differentiable.
"""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401  (gives NumPy bfloat16, which safetensors needs)
import msgspec
import numpy as np
from jax.typing import DTypeLike
from safetensors import SafetensorError, safe_open

from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import Positions
from pasta_jax.lang.tags import NUM_TAGS, TagIds
from pasta_jax.models import tensor_file
from pasta_jax.models.layers import Params, is_stacked, map_layers, stack, unstack
from pasta_jax.models.tokenizer import tokenizer_fingerprint
from pasta_jax.models.weights import Model

FORMAT = "pasta_jax adapter 2"
TARGETS = ("qkv", "out", "gate_up", "down")  # a layer's projections
TABLES = ("embed", "head")


@dataclasses.dataclass(frozen=True)
class AdapterConfig:
    """Which projections get a pair, the pairs' rank, and the scale of their initial values."""

    rank: int
    alpha: float
    targets: tuple[str, ...] = TARGETS

    def __post_init__(self):
        unknown = set(self.targets) - set(TARGETS)
        if unknown:
            raise PastaError(f"unknown adapter target {sorted(unknown)[0]!r}; choose from {', '.join(TARGETS)}")
        if self.rank < 1:
            raise PastaError(f"adapter rank {self.rank}: must be at least 1")


def new_adapter(params: Params, adapter: AdapterConfig, tags: TagIds, seed: int) -> Params:
    """An adapter that changes nothing yet: b is zero, the tags' rows are those of the parameters."""
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
        "layers": one(layers, 1) if is_stacked(params) else tuple(one(layer, 0) for layer in layers),
        "tag_rows": rows,
    }


def attach(params: Params, adapter: Params, tags: TagIds) -> Params:
    """Parameters with the adapter attached to the frozen kernels: for training."""

    def join(layer, pairs):
        return layer | {
            name: layer[name] | {k: v.astype(layer[name]["kernel"].dtype) for k, v in pair.items()}
            for name, pair in pairs.items()
        }

    return params | {"layers": map_layers(join, params, adapter)} | _with_tag_rows(params, adapter, tags)


def merge(params: Params, adapter: Params, tags: TagIds) -> Params:
    """Parameters with the adapter added to the kernels: for decoding and export."""
    return params | {"layers": map_layers(_merge_layer, params, adapter)} | _with_tag_rows(params, adapter, tags)


def merge_on_host(params: Params, adapter: Params, tags: TagIds) -> Params:
    """`merge` of unrolled host parameters; one layer at a time is on the device."""

    def to_host(layer, pairs):
        return jax.tree.map(np.asarray, _merge_layer(jax.tree.map(jnp.asarray, layer), pairs))

    tables = {name: np.array(params[name]) for name in adapter["tag_rows"]}
    for name, table in tables.items():
        table[tags.base : tags.base + NUM_TAGS] = adapter["tag_rows"][name]
    return params | {"layers": map_layers(to_host, params, adapter)} | tables


def _merge_layer(layer: Params, pairs: Params) -> Params:
    def add(kernel, pair):
        delta = jnp.tensordot(pair["lora_b"], pair["lora_a"], axes=1)
        return (kernel.astype(jnp.float32) + delta).astype(kernel.dtype)

    return layer | {name: {"kernel": add(layer[name]["kernel"], pair)} for name, pair in pairs.items()}


def _with_tag_rows(params: Params, adapter: Params, tags: TagIds) -> Params:
    rows = adapter["tag_rows"]
    return {
        name: params[name].at[tags.base : tags.base + NUM_TAGS].set(rows[name].astype(params[name].dtype))
        for name in rows
    }


@dataclasses.dataclass(frozen=True)
class About:
    """What an adapter was trained for: recorded in its file, checked when it is loaded."""

    base: str  # the base model's name
    base_fingerprint: str
    tokenizer_fingerprint: str
    positions: Positions | None  # those it was trained with; None: it was not trained on the tags
    rank: int
    alpha: float
    targets: tuple[str, ...]


def describe(base: Model, settings: AdapterConfig, positions: Positions | None) -> About:
    """The record of an adapter trained on this base."""
    tokenizer = tokenizer_fingerprint(base.tokenizer)
    return About(base.name, base.fingerprint, tokenizer, positions, **dataclasses.asdict(settings))


def rounded(adapter: Params, dtype: DTypeLike) -> Params:
    """The adapter as it is read back from a file of this dtype."""
    return jax.tree.map(lambda leaf: np.asarray(np.asarray(leaf, dtype), np.float32), adapter)


def save_adapter(path: Path, adapter: Params, about: About, dtype: DTypeLike = jnp.float32) -> None:
    """Write an adapter as one safetensors file, layers stacked, whole or not at all; `dtype` is that of the file."""
    flat = {
        f"layers.{name}.{key}": leaf for name, pair in stack(adapter)["layers"].items() for key, leaf in pair.items()
    }
    flat |= {f"tag_rows.{name}": leaf for name, leaf in adapter["tag_rows"].items()}
    tensors = {name: np.asarray(leaf, dtype) for name, leaf in flat.items()}
    tensor_file.write(path, tensors, {"format": FORMAT, "about": msgspec.json.encode(about).decode()})


def load_adapter(path: Path, base: Model) -> tuple[Params, About]:
    """An adapter in float32 and in the layer layout of its base, and its record. Any other base is refused."""
    flat, about = _read(path)
    if about.base_fingerprint != base.fingerprint:
        raise PastaError(
            f"{path}: an adapter for other weights of {about.base} than these; "
            "load it with the model that it was trained on"
            if about.base == base.name
            else f"{path}: an adapter for {about.base}, not {base.name}; load it with the model that it was trained on"
        )
    if about.tokenizer_fingerprint != tokenizer_fingerprint(base.tokenizer):
        raise PastaError(
            f"{path}: trained with another tokenizer than that of {base.name}; use the tokenizer it was trained with"
        )
    stacked = is_stacked(base.params)
    kernels = base.params["layers"] if stacked else base.params["layers"][0]
    shapes: dict[str, tuple[int, ...]] = {}
    for name in about.targets:
        *outputs, inputs = kernels[name]["kernel"].shape[stacked:]
        shapes[f"layers.{name}.lora_a"] = (base.config.layers, about.rank, inputs)
        shapes[f"layers.{name}.lora_b"] = (base.config.layers, *outputs, about.rank)
    shapes |= {f"tag_rows.{name}": (NUM_TAGS, base.config.embed) for name in TABLES if name in base.params}
    for name in sorted(shapes.keys() | flat.keys()):
        expected, actual = shapes.get(name), flat[name].shape if name in flat else None
        if actual != expected:
            raise PastaError(
                f"{path}: {name} has shape {actual}, for this base and rank {about.rank} it must be {expected}; "
                "save the adapter again"
            )
    layers = {
        name: {key: jnp.asarray(flat[f"layers.{name}.{key}"], jnp.float32) for key in ("lora_a", "lora_b")}
        for name in about.targets
    }
    rows = {name: jnp.asarray(flat[f"tag_rows.{name}"], jnp.float32) for name in TABLES if name in base.params}
    adapter = {"layers": layers, "tag_rows": rows}
    return adapter if stacked else unstack(adapter), about


def _read(path: Path) -> tuple[dict[str, np.ndarray], About]:
    """The arrays of an adapter file, and its record."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise PastaError(
                    f"{path}: format {metadata.get('format')!r}, expected {FORMAT!r}; "
                    "use an adapter file that a training run wrote"
                )
            flat = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    except FileNotFoundError:
        raise PastaError(f"{path}: not found; use an adapter file that a training run wrote") from None
    except (SafetensorError, OSError) as error:
        raise PastaError(f"{path}: not a complete adapter file ({error}); save or fetch it again") from None
    try:
        about = msgspec.json.decode(metadata.get("about", ""), type=About)
        AdapterConfig(about.rank, about.alpha, about.targets)
    except (msgspec.DecodeError, PastaError) as error:
        raise PastaError(f"{path}: malformed record of the adapter ({error}); save it again") from None
    return flat, about
