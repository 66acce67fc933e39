"""LoRA adapters: a small tree of low-rank pairs, and of the tags' rows, alongside frozen parameters; as PEFT folders.

    kernel' = kernel + b · a        a [rank, inputs], b [*outputs, rank]

The usual factor alpha / rank is part of a's initial values. An adapter has the layer layout of its parameters. `attach`
and `merge` are pure and differentiable.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401  (gives NumPy bfloat16, which safetensors needs)
import msgspec
import numpy as np
from jax.typing import DTypeLike
from safetensors import SafetensorError, safe_open

from pasta_jax.errors import PastaError
from pasta_jax.files import packages, safetensors
from pasta_jax.files.atomic import write_json
from pasta_jax.files.validated import AtLeastZero
from pasta_jax.lang.structure import Positions
from pasta_jax.lang.tags import NUM_TAGS, TagIds
from pasta_jax.models.parameters import (
    OF_EXPERTS,
    Params,
    gate_and_up,
    is_stacked,
    map_layers,
    stack,
    unstack,
)
from pasta_jax.tokenizers.tokenizer import tokenizer_fingerprint
from pasta_jax.weights import card as cards
from pasta_jax.weights import peft
from pasta_jax.weights.card import Card
from pasta_jax.weights.generation_config import FILE, as_json
from pasta_jax.weights.lazy import Deferred
from pasta_jax.weights.model import Model
from pasta_jax.weights.settings import AdapterSettings, Targets

FORMAT = "adapter 3"
SECTION = "pasta_jax"  # our key in the file's metadata
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
Rank = Annotated[int, msgspec.Meta(ge=1, le=4096)]
TABLES = ("embed", "head")


def new_adapter(params: Params, adapter: AdapterSettings, tags: TagIds, seed: int) -> Params:
    """An adapter that changes nothing yet: b is zero, the tags' rows are those of the parameters."""
    refuse_idle("adapter", adapter)
    rng = np.random.default_rng(seed)

    def pair(kernel, lead: int):
        layers, outputs, inputs = kernel.shape[:lead], kernel.shape[lead:-1], kernel.shape[-1]
        if adapter.rank > inputs:
            raise PastaError(f"adapter rank {adapter.rank}: larger than a kernel's {inputs} inputs; lower it")
        scale = adapter.alpha / adapter.rank / np.sqrt(inputs)
        a = rng.standard_normal((*layers, adapter.rank, inputs)) * scale
        return {
            "lora_a": jnp.asarray(a, jnp.float32),
            "lora_b": jnp.zeros((*layers, *outputs, adapter.rank), jnp.float32),
        }

    def one(layer, lead: int):
        if "router" in layer:
            refuse_experts("adapter", adapter.targets)
        return {name: pair(kernel_of(layer, name), lead) for name in adapter.targets}

    def kernel_of(layer, name: str):
        if name in layer:
            return layer[name]["kernel"]
        *several, outputs, inputs = layer["gate"]["kernel"].shape  # gate and up apart
        return jax.ShapeDtypeStruct((*several, 2 * outputs, inputs), jnp.bfloat16)

    layers = params["layers"]
    rows = {
        name: params[name][tags.base : tags.base + NUM_TAGS].astype(jnp.float32) for name in TABLES if name in params
    }
    return {
        "layers": one(layers, 1) if is_stacked(params) else tuple(one(layer, 0) for layer in layers),
        "tag_rows": rows,
    }


def refuse_idle(place: str, adapter: AdapterSettings) -> None:
    """Raise an error for an adapter whose pairs training can't change, as what they add is multiplied by 0."""
    if not adapter.alpha:
        raise PastaError(
            f"{place} alpha 0: its pairs would learn nothing; set alpha above 0, usually to twice the rank"
        )


def refuse_experts(place: str, targets: Targets) -> None:
    """Raise an error if an adapter of a mixture is for its experts."""
    if of_experts := [name for name in targets if name in OF_EXPERTS]:
        raise PastaError(
            f"{place} targets {', '.join(of_experts)}: matrices of experts, whose pairs peft lays out otherwise; "
            "set them to qkv, out"
        )


def attach(params: Params, adapter: Params, tags: TagIds) -> Params:
    """Parameters with the adapter attached to the frozen kernels, and its rows beside the tables: for training.

    A table with the rows written into it would be a copy of the table, and so would its gradient. Pairs have the dtype
    that the model computes in: kernels may be narrower.
    """
    dtype = params["final_norm"]["weight"].dtype

    def join(layer, pairs):
        if "gate" in layer and "gate_up" in pairs:
            pairs = {name: pair for name, pair in pairs.items() if name != "gate_up"} | gate_and_up(pairs["gate_up"])
        return layer | {
            name: layer[name] | {k: v.astype(dtype) for k, v in pair.items()} for name, pair in pairs.items()
        }

    rows = {"tag_rows": adapter["tag_rows"], "tags_at": jnp.int32(tags.base)}
    return params | {"layers": map_layers(join, params, adapter)} | rows


def merge(params: Params, adapter: Params, tags: TagIds) -> Params:
    """Parameters with the adapter added to the kernels: for decoding and export."""
    if is_stacked(params):
        layers = _merge_layer(params["layers"], adapter["layers"], merged=_merge_kernels)
    else:
        layers = map_layers(_merge_layer, params, adapter)
    at = slice(tags.base, tags.base + NUM_TAGS)
    new_rows = adapter["tag_rows"].items()
    tables = {name: params[name].at[at].set(rows.astype(params[name].dtype)) for name, rows in new_rows}
    return params | {"layers": layers} | tables


def merge_on_host(params: Params, adapter: Params, tags: TagIds) -> Params:
    """`merge` of unrolled host parameters; one kernel at a time is on the device."""

    def on_host(kernel, pair):
        if isinstance(kernel, Deferred):
            return kernel.then(lambda read: on_host(read, pair))
        return np.asarray(_merge_kernel(jnp.asarray(kernel), pair))

    tables = {name: np.array(params[name]) for name in adapter["tag_rows"]}
    for name, table in tables.items():
        table[tags.base : tags.base + NUM_TAGS] = adapter["tag_rows"][name]
    return params | {"layers": map_layers(functools.partial(_merge_layer, merged=on_host), params, adapter)} | tables


def _merge_kernel(kernel: jax.Array, pair: Params) -> jax.Array:
    # Accelerators would round the factors, and equal models would have other fingerprints there.
    delta = jnp.tensordot(pair["lora_b"], pair["lora_a"], axes=1, precision=jax.lax.Precision.HIGHEST)
    return (kernel.astype(jnp.float32) + delta).astype(kernel.dtype)


@jax.jit
def _merge_kernels(kernels: jax.Array, pairs: Params) -> jax.Array:
    """Of all layers, one after another: in float32, all at once would take several times the model's memory."""
    return jax.lax.map(lambda one: _merge_kernel(*one), (kernels, pairs))


def _merge_layer(layer: Params, pairs: Params, merged: Callable = _merge_kernel) -> Params:
    return layer | {name: layer[name] | {"kernel": merged(layer[name]["kernel"], pair)} for name, pair in pairs.items()}


@dataclasses.dataclass(frozen=True)
class About:
    """What an adapter was trained for: recorded in its file, checked when it is loaded."""

    base: str  # the base model's name
    base_fingerprint: str
    tokenizer_fingerprint: str
    positions: Positions | None  # those it was trained with; None: it was not trained on the tags
    rank: Rank
    alpha: AtLeastZero
    targets: Targets


def describe(base: Model, settings: AdapterSettings, positions: Positions | None) -> About:
    """The record of an adapter trained on this base."""
    tokenizer = tokenizer_fingerprint(base.tokenizer)
    return About(base.name, base.fingerprint, tokenizer, positions, settings.rank, settings.alpha, settings.targets)


def rounded(adapter: Params, dtype: DTypeLike) -> Params:
    """The adapter as it is read back from a file of this dtype."""
    return jax.tree.map(lambda leaf: np.asarray(np.asarray(leaf, dtype), np.float32), adapter)


def save_adapter(
    folder: Path, adapter: Params, base: Model, about: About, dtype: DTypeLike = jnp.float32, card: Card | None = None
) -> None:
    """Write an adapter as a folder that `peft` reads too, with a card; `dtype` is that of the file.

    The weights come last: a folder with an adapter_model.safetensors is a whole adapter.
    """
    tags = base.tokenizer.tags
    card = card or Card("adapter", base.name, about.positions, tags.base, source=base.source)
    write_json(folder / CONFIG, peft.config_json(base.config, tags, about.rank, about.targets, card.base_for_peft))
    write_json(folder / FILE, as_json(base.defaults))  # plain ones too, or those of the base would be used
    cards.write(folder, card)
    flat = peft.tensors(unstack(jax.tree.map(np.asarray, adapter)), base.config)
    tensors = {name: np.asarray(leaf, dtype) for name, leaf in flat.items()}
    metadata = {"format": "pt", SECTION: FORMAT, "about": msgspec.json.encode(about).decode()}
    safetensors.write(folder / WEIGHTS, tensors, metadata)


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
    if base.config.experts:
        refuse_experts(f"{path}: adapter", about.targets)
    shapes = peft.shapes(base.config, about.rank, about.targets)
    for name in sorted(shapes.keys() | flat.keys()):
        expected, actual = shapes.get(name), flat[name].shape if name in flat else None
        if actual != expected:
            raise PastaError(
                f"{path}: {name} has shape {actual}, for this base and rank {about.rank} it must be {expected}; "
                "save the adapter again"
            )
    if copies := peft.unequal_copies(flat, base.config, about.targets):
        raise PastaError(f"{path}: {copies[0]} and {copies[1]} differ; use the adapter as a training run wrote it")
    adapter = peft.adapter(flat, base.config, about.targets)
    adapter = stack(adapter) if is_stacked(base.params) else adapter
    return jax.tree.map(jnp.asarray, adapter), about


def _read(path: Path) -> tuple[dict[str, np.ndarray], About]:
    """The arrays of an adapter as float32, and its record; `path` is its folder, or the file in it."""
    file_path = path / WEIGHTS if path.is_dir() else path
    try:
        with safe_open(file_path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get(SECTION) != FORMAT:
                raise PastaError(
                    f"{path}: format {metadata.get(SECTION)!r}, expected {FORMAT!r}; use an adapter of a training run"
                )
            names = file.keys()
            flat = {name: np.asarray(file.get_tensor(name), np.float32) for name in names}
    except FileNotFoundError:
        fix = f"use one of {', '.join(packages.CHECKPOINTS)}, or an adapter of a training run (docs/YOUR_MODEL.md)"
        raise PastaError(f"{path}: not found; {fix}") from None
    except (SafetensorError, OSError) as error:
        raise PastaError(f"{path}: not a complete adapter file ({error}); save or fetch it again") from None
    try:
        about = msgspec.json.decode(metadata.get("about", ""), type=About)
    except (msgspec.DecodeError, RecursionError, PastaError) as error:
        raise PastaError(f"{path}: malformed record of the adapter ({error}); save it again") from None
    return flat, about
