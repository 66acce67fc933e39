"""Adapters that stay beside one model, so that each request may name its own (models/adapters.py)."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from pasta_jax.errors import PastaError
from pasta_jax.files import fingerprints
from pasta_jax.lang.structure import Positions
from pasta_jax.models.kernels.cpu.calls import by_panels
from pasta_jax.models.parameters import Params, is_stacked
from pasta_jax.models.sharding import mesh_of
from pasta_jax.models.transformer import uses_kernels
from pasta_jax.progress import doing
from pasta_jax.weights.adapter import load_adapter
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
    fingerprint: str  # of its arrays


def with_adapters(model: Model, named: Sequence[str]) -> tuple[Model, tuple[Beside, ...]]:
    """A model to decode with, with adapters `name=path` beside its weights; all must share one position policy."""
    require_loadable(named, mesh_of(model.params))
    if not named:
        return model, ()
    loaded, about = zip(*(_read(text, number, model) for number, text in enumerate(named, 1)), strict=True)
    positions = model.positions
    for one in about:
        if one.positions is not None and positions is not None and not one.positions.matches(positions):
            raise PastaError(
                f"config.adapters: {one.name} was trained with positions {one.positions}, others with {positions}; "
                "one server decodes with one policy, so serve it by itself"
            )
        positions = positions or one.positions
    return dataclasses.replace(model, params=_beside(model, loaded), positions=positions), tuple(about)


def require_loadable(named: Sequence[str], mesh: Mesh | None) -> None:
    """Refuse what no model on these devices could have beside its weights; before a model is loaded, say."""
    if named and mesh is not None:
        raise PastaError("config.adapters: on one device only; leave config.mesh, or serve each adapter by itself")
    names = [_named(text)[0] for text in named]
    if twice := [name for name in names if names.count(name) > 1]:
        raise PastaError(f"config.adapters: {twice[0]!r} twice; give each its own name")


def exchanged(model: Model, text: str, old: Beside) -> tuple[Model, Beside]:
    """A model of `with_adapters` with one adapter as its folder now is; the same two if nothing has changed.

    Shapes stay as they are, so that no program is compiled; what does not fit into them is refused.
    """
    adapter, new = _read(text, old.number, model)
    if new == old:
        return model, old
    again = "start the server again to load it"
    if new.positions is not None and (model.positions is None or not new.positions.matches(model.positions)):
        raise PastaError(f"{text}: trained with positions {new.positions}, not {model.positions}; {again}")
    params, axis, place = model.params, int(is_stacked(model.params)), old.number - 1

    def put(held: jax.Array, value: np.ndarray | float, axis: int = 0) -> jax.Array:
        whole = np.array(held)
        np.moveaxis(whole, axis, 0)[place] = value
        return jnp.asarray(whole)

    def pairs(held: Params, pair: Params | None) -> Params:
        if pair is None:
            return jax.tree.map(lambda leaf: put(leaf, 0, axis), held)
        b, rank = held["b"], pair["lora_b"].shape[-1]
        room = b["panels"].shape[-2] if "panels" in b else b["kernel"].shape[-1]
        if rank > room:
            raise PastaError(f"{text}: has rank {rank}, and there is room for {room}; {again}")
        values = {side: _formed(model.params, matrix) for side, matrix in _of_rank(pair, room).items()}
        return jax.tree.map(lambda leaf, value: put(leaf, value, axis), held, values)

    def one(layer: Params, own: Params) -> Params:
        if more := [name for name in own if "pairs" not in layer[name]]:
            raise PastaError(f"{text}: has pairs of {', '.join(more)}, for which there is no room; {again}")
        held = {name: leaves["pairs"] for name, leaves in layer.items() if "pairs" in leaves}
        return layer | {name: layer[name] | {"pairs": pairs(pair, own.get(name))} for name, pair in held.items()}

    layers = params["layers"], adapter["layers"]
    rows = _tag_rows(params, adapter)
    held = {name: params["adapters"][name] for name in rows}
    params = params | {
        "layers": one(*layers) if axis else tuple(map(one, *layers)),
        "adapters": params["adapters"] | jax.tree.map(put, held, rows),
    }
    return dataclasses.replace(model, params=params), new


def _named(text: str) -> tuple[str, Path]:
    """The name and the folder of an adapter `name=path`."""
    name, _, path = text.partition("=")
    if not re.fullmatch(r"[\w.-]+", name) or not path:
        raise PastaError(f"config.adapters: {text!r} is no name=path; write one, as mine=runs/mine")
    return name, folder_of(path)


def _read(text: str, number: int, model: Model) -> tuple[Params, Beside]:
    """The arrays of an adapter `name=path`, on the host, and what there is to know of it."""
    name, folder = _named(text)
    with doing(f"loading {name}"):
        adapter, record = load_adapter(folder, model)
        adapter = jax.tree.map(np.asarray, adapter)
        fingerprint = fingerprints.of_bytes(leaf.tobytes() for leaf in jax.tree.leaves(adapter))
    return adapter, Beside(name, number, record.positions, defaults_beside(folder, model), fingerprint)


def _beside(model: Model, adapters: Sequence[Params]) -> Params:
    params, axis = model.params, int(is_stacked(model.params))  # layers come first
    dtype = jnp.float32 if uses_kernels(params) else model.dtype

    def joined(each: Sequence[Params], axis: int = 0) -> Params:
        return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves, axis), dtype), *each)

    def pairs(layers: Sequence[Params], name: str) -> Params:
        """All adapters' pairs of one kernel, in one rank: what an adapter lacks is zero."""
        has = next(layer[name] for layer in layers if name in layer)
        own = [layer.get(name) or jax.tree.map(np.zeros_like, has) for layer in layers]
        rank = max(pair["lora_b"].shape[-1] for pair in own)
        return joined([jax.tree.map(lambda side: _formed(params, side), _of_rank(pair, rank)) for pair in own], axis)

    def one(layer: Params, own: Sequence[Params]) -> Params:
        names = dict.fromkeys(name for pairs_of_one in own for name in pairs_of_one)
        return layer | {name: layer[name] | {"pairs": pairs(own, name)} for name in names}

    own_layers, layers = params["layers"], [adapter["layers"] for adapter in adapters]
    layers = one(own_layers, layers) if axis else tuple(map(one, own_layers, zip(*layers, strict=True)))
    rows = joined([_tag_rows(params, adapter) for adapter in adapters])
    return params | {"layers": layers, "adapters": rows | {"at": jnp.int32(model.tokenizer.tags.base)}}


def _formed(params: Params, matrix: np.ndarray) -> Params:
    """A matrix of an adapter in the form that these parameters are computed in."""
    if uses_kernels(params):
        return {"panels": by_panels(matrix.reshape(-1, matrix.shape[-1]))}
    return {"kernel": matrix}


def _of_rank(pair: Params, rank: int) -> Params:
    """A pair with zeros up to a rank."""
    a, b = pair["lora_a"], pair["lora_b"]
    missing = rank - b.shape[-1]
    return {
        "a": np.pad(a, [*[(0, 0)] * (a.ndim - 2), (0, missing), (0, 0)]),
        "b": np.pad(b, [*[(0, 0)] * (b.ndim - 1), (0, missing)]),
    }


def _tag_rows(params: Params, adapter: Params) -> Params:
    """The tags' rows of an adapter, as embeddings and as logits are computed from them."""
    embed = adapter["tag_rows"]["embed"]
    head = adapter["tag_rows"].get("head", embed)
    return {"embed": embed, "head": _formed(params, head) if uses_kernels(params) else head}
