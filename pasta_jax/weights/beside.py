"""Adapters that stay beside one model, so that each request may name its own (models/adapters.py)."""

import dataclasses
import re
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import Positions
from pasta_jax.models.kernels.cpu.calls import by_panels
from pasta_jax.models.parameters import Params, is_stacked
from pasta_jax.models.sharding import mesh_of
from pasta_jax.progress import doing
from pasta_jax.weights.adapter import load_adapter
from pasta_jax.weights.for_cpu import is_for_kernels
from pasta_jax.weights.model import Model
from pasta_jax.weights.rules import Defaults
from pasta_jax.weights.source import defaults_beside, folder_of


@dataclasses.dataclass(frozen=True)
class Beside:
    """One adapter of several."""

    name: str
    number: int  # counted from 1
    positions: Positions | None  # None: not trained on the tags
    defaults: Defaults


def with_adapters(model: Model, named: Sequence[str]) -> tuple[Model, tuple[Beside, ...]]:
    """A model to decode with, with adapters `name=path` beside its weights; all must share one position policy."""
    if not named:
        return model, ()
    if mesh_of(model.params) is not None:
        raise PastaError("config.adapters: on one device only; leave config.mesh, or serve each adapter by itself")
    loaded, about = [], []
    for number, text in enumerate(named, 1):
        name, _, path = text.partition("=")
        if not re.fullmatch(r"[\w.-]+", name) or not path:
            raise PastaError(f"config.adapters: {text!r} is no name=path; write one, as mine=runs/mine")
        if name in (other.name for other in about):
            raise PastaError(f"config.adapters: {name!r} twice; give each its own name")
        with doing(f"loading {name}"):
            folder = folder_of(path)
            adapter, record = load_adapter(folder, model)
        loaded.append(jax.tree.map(np.asarray, adapter))
        about.append(Beside(name, number, record.positions, defaults_beside(folder, model)))
    positions = model.positions
    for one in about:
        if one.positions is not None and positions is not None and not one.positions.matches(positions):
            raise PastaError(
                f"config.adapters: {one.name} was trained with positions {one.positions}, others with {positions}; "
                "one server decodes with one policy, so serve it by itself"
            )
        positions = positions or one.positions
    return dataclasses.replace(model, params=_beside(model, loaded), positions=positions), tuple(about)


def _beside(model: Model, adapters: Sequence[Params]) -> Params:
    params, in_panels = model.params, is_for_kernels(model.params)
    dtype = jnp.float32 if in_panels else model.dtype
    stacked = is_stacked(params)

    def form(matrix: np.ndarray) -> np.ndarray:
        return by_panels(matrix.reshape(-1, matrix.shape[-1])) if in_panels else matrix

    def joined(matrices: Sequence[np.ndarray], axis: int = 0) -> Params:
        return {"panels" if in_panels else "kernel": jnp.asarray(np.stack(list(map(form, matrices)), axis), dtype)}

    def pairs(layers: Sequence[Params], name: str) -> Params:
        """All adapters' pairs of one kernel, in one rank: what an adapter lacks is zero."""
        has = next(layer[name] for layer in layers if name in layer)
        own = [layer.get(name) or jax.tree.map(np.zeros_like, has) for layer in layers]
        rank = max(pair["lora_b"].shape[-1] for pair in own)
        a, b = [], []
        for pair in own:
            missing = rank - pair["lora_b"].shape[-1]
            sides = [(0, 0)] * pair["lora_a"].ndim
            a.append(np.pad(pair["lora_a"], [*sides[:-2], (0, missing), (0, 0)]))
            b.append(np.pad(pair["lora_b"], [(0, 0)] * (pair["lora_b"].ndim - 1) + [(0, missing)]))
        axis = int(stacked)  # layers come first
        return {"a": joined(a, axis), "b": joined(b, axis)}

    def one(layer: Params, own: Sequence[Params]) -> Params:
        names = dict.fromkeys(name for pairs_of_one in own for name in pairs_of_one)
        return layer | {name: layer[name] | {"pairs": pairs(own, name)} for name in names}

    layers = [adapter["layers"] for adapter in adapters]
    own_layers = params["layers"]
    layers = one(own_layers, layers) if stacked else tuple(map(one, own_layers, zip(*layers, strict=True)))
    embed, head = (
        [adapter["tag_rows"].get(name, adapter["tag_rows"]["embed"]) for adapter in adapters]
        for name in ("embed", "head")
    )
    own = {
        "at": jnp.int32(model.tokenizer.tags.base),
        "embed": jnp.asarray(np.stack(embed), dtype),
        "head": joined(head) if in_panels else jnp.asarray(np.stack(head), dtype),
    }
    return params | {"layers": layers, "adapters": own}
