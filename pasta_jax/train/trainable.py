"""The trainable part of a model: all its parameters, or an adapter alongside frozen ones; loading and writing it."""

import dataclasses
import math
from pathlib import Path
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from pasta_jax.errors import PastaError
from pasta_jax.models.kernels.bfloat16 import multiplies_bfloat16
from pasta_jax.models.parameters import unstack
from pasta_jax.models.sharding import gathered, shard, to_decode_with
from pasta_jax.models.tag_rows import rows_apart
from pasta_jax.progress import say
from pasta_jax.train.loss import Scoring
from pasta_jax.train.settings import TrainingSettings
from pasta_jax.train.state import Params
from pasta_jax.weights import source
from pasta_jax.weights.adapter import (
    About,
    describe,
    merge,
    merge_on_host,
    new_adapter,
    refuse_idle,
    rounded,
    save_adapter,
)
from pasta_jax.weights.card import Card, Training
from pasta_jax.weights.load import export_model
from pasta_jax.weights.model import Model
from pasta_jax.weights.prepare import platform_dtype
from pasta_jax.weights.settings import AdapterSettings, ModelSource

Tree = TypeVar("Tree")
MODEL, ADAPTER = "model", "adapter"  # where `write` puts them


def scoring(settings: TrainingSettings, model: Model) -> Scoring:
    """How the model's log-probabilities are computed."""
    dtype = platform_dtype()
    products = product_dtype(settings.products, dtype, "config.train.products")
    about = settings.slice, settings.block, settings.remat, products, settings.keep_products
    return Scoring(model.config, model.tokenizer.tags, dtype, *about)


def product_dtype(products: str, dtype: jnp.dtype, field: str) -> jnp.dtype:
    """The dtype of factors in products, which a config chooses where activations are float32."""
    if dtype != jnp.float32:
        return dtype
    if products != "float32" and not multiplies_bfloat16():
        say(f"this CPU has no instructions for bfloat16: set --{field}=float32, which is faster here")
    return jnp.dtype(products)


@dataclasses.dataclass(frozen=True)
class Trainable:
    """A model, and which of its parameters are trained."""

    model: Model  # as loaded; below an adapter, it is the base
    params: Params  # trained: all the model's parameters, or an adapter
    frozen: Params | None  # the base's parameters; None: there is no adapter


def load(model_source: ModelSource, adapter: AdapterSettings, seed: int, mesh: Mesh | None) -> Trainable:
    """The model that a config names, to be trained. With a rank, its adapter is trained further or a new one is added.

    Without a rank its adapter is merged and all parameters are trained.
    """
    if not adapter.rank:
        # What is trained is float32; what stays frozen has the platform's dtype.
        return divide(source.load(model_source, dtype=jnp.float32, mesh=mesh), adapter, seed)
    if not model_source.adapter:
        refuse_idle("config.adapter", adapter)
        return divide(source.load_base(model_source, mesh=mesh), adapter, seed)
    base, params, about = source.load_with_adapter(model_source, mesh=mesh)
    _require_same_adapter(model_source.adapter, about, adapter)
    return Trainable(base, params, base.params)


def divide(model: Model, adapter: AdapterSettings, seed: int) -> Trainable:
    """All parameters of a model to be trained, or with a rank a new adapter."""
    if not adapter.rank:
        return Trainable(model, model.params, None)
    return Trainable(model, new_adapter(model.params, adapter, model.tokenizer.tags, seed), model.params)


def with_rows_apart(start: Trainable, seed: int) -> Params:
    """A new adapter whose tag rows are far from those of words."""
    rows = {
        name: jnp.asarray(rows_apart(gathered(start.frozen[name]), start.model.tokenizer, seed))
        for name in start.params["tag_rows"]
    }
    return start.params | {"tag_rows": rows}


def _require_same_adapter(path: str, about: About, adapter: AdapterSettings) -> None:
    """Refuse to train an adapter with settings other than those it was created with."""
    for name in ("rank", "alpha", "targets"):
        recorded, configured = getattr(about, name), getattr(adapter, name)
        if set(recorded) != set(configured) if name == "targets" else recorded != configured:
            raise PastaError(
                f"{path}: was created with {name} {recorded}, config.adapter.{name} is {configured}; "
                "set it to the adapter's, or config.adapter.rank to 0 to merge it and train all parameters"
            )


def place(tree: Tree, mesh: Mesh | None) -> Tree:
    """The tree on the mesh of the config, if it has one."""
    return tree if mesh is None else shard(tree, mesh)


def refuse_narrow(model: Model) -> None:
    """Raise for a base that nothing can be decoded with."""
    if model.is_narrow:
        raise PastaError("config.model.dtype=bfloat16: can't be decoded with in training; set it to auto")


def merged(model: Model, params: Params, frozen: Params | None) -> Model:
    """The model ready for inference: its adapter merged into its kernels, in the platform's dtype."""
    refuse_narrow(model)
    params = params if frozen is None else merge(frozen, params, model.tokenizer.tags)
    params = jax.tree.map(lambda leaf: leaf.astype(platform_dtype()), params)
    return dataclasses.replace(model, params=to_decode_with(params))


def write(
    model: Model, params: Params, adapter: AdapterSettings, folder: Path, training: Training, figures: dict[str, float]
) -> Path:
    """Write the trained model, an adapter also by itself, and beside a narrow base alone; returns the last's folder.

    All record the model's positions, and have a card. `params` are what was trained of the model. All processes call
    it, the first one writes.
    """
    params = gathered(params)
    base = gathered(model.params) if adapter.rank and jax.process_count() > 1 else model.params
    target = folder / (ADAPTER if model.is_narrow else MODEL)
    if jax.process_index():
        return target  # the first process writes it
    figures = {name: value for name, value in figures.items() if math.isfinite(value)}
    tags_base, source = model.tokenizer.tags.base, model.source
    card = Card("model", model.name, model.positions, tags_base, training, figures, source=source)
    if adapter.rank:
        about = describe(model, adapter, model.positions)
        save_adapter(folder / ADAPTER, params, model, about, adapter.dtype, dataclasses.replace(card, kind="adapter"))
        params = rounded(params, adapter.dtype)  # so that the model is exactly base plus file
    if target.name == MODEL:
        if adapter.rank:
            if jax.process_count() > 1:  # the base is on the host, and may be larger than a device
                params = merge_on_host(unstack(base), unstack(params), model.tokenizer.tags)
            else:
                params = merge(jax.tree.map(jnp.asarray, base), params, model.tokenizer.tags)
        export_model(dataclasses.replace(model, params=params), target, card)
    say(f"wrote {target}")
    return target
