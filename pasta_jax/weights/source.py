"""The source of a model as configs name it: weights, an adapter, and the positions it was trained with."""

import dataclasses
import functools
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh
from jax.typing import DTypeLike

from pasta_jax.errors import PastaError
from pasta_jax.files import fingerprints, hub, packages
from pasta_jax.lang.structure import Positions
from pasta_jax.models.kernels.cpu.calls import is_available
from pasta_jax.models.kernels.cpu.huge_pages import on_large_pages
from pasta_jax.models.parameters import Params
from pasta_jax.models.settings import MeshSettings
from pasta_jax.models.sharding import decoding_mesh
from pasta_jax.models.transformer import uses_kernels
from pasta_jax.progress import doing
from pasta_jax.weights import card
from pasta_jax.weights.adapter import WEIGHTS, About, load_adapter, merge_on_host
from pasta_jax.weights.drafter import with_drafter
from pasta_jax.weights.for_cpu import with_bits, with_pairs
from pasta_jax.weights.generation_config import read_defaults
from pasta_jax.weights.load import fingerprint_of, in_run, read_model, weights_at
from pasta_jax.weights.model import BLOCKS, Model
from pasta_jax.weights.prepare import decodes_codes, narrow, on_device
from pasta_jax.weights.rules import Defaults
from pasta_jax.weights.settings import ModelSource


def load(
    source: ModelSource,
    dtype: DTypeLike | None = None,
    stacked: bool | None = None,
    only_decoding: bool = False,
    mesh: Mesh | None = None,
) -> Model:
    """The model with its adapter merged; see prepare.on_device for the other arguments.

    With `only_decoding` and no dtype, the source's dtype is used. The blocks of a quantised file are kept where the
    dtype is q4, or where it is auto and our own kernels can be used; an adapter then stays beside them.
    """
    if dtype is None:
        dtype = source.dtype if only_decoding else "platform"
    if dtype == "auto":
        in_blocks = only_decoding and mesh is None and not stacked and source.kernel and is_available()
    else:
        in_blocks = dtype == BLOCKS and decodes_codes(BLOCKS, only_decoding, source.kernel, mesh)
    with doing(f"loading {source.path or source.preset}"):
        model = read_model(source.preset, source.path, deferred=mesh is not None, blocks=in_blocks)
        if in_blocks and dtype == BLOCKS and model.precision != BLOCKS:
            raise PastaError(f"{source.path}: dtype {BLOCKS}: not a quantised GGUF file; set it to q8, or to auto")
        if source.adapter:
            model = _with_adapter(model, folder_of(source.adapter))
        model, dtype = _with_positions(model, source), None if dtype in ("auto", "platform", BLOCKS) else dtype
        params = on_device(model.params, dtype, stacked, only_decoding, source.kernel, mesh)
        model = dataclasses.replace(model, params=with_bits(params, source.bits))
        return with_drafter(model, folder_of(source.drafter)) if source.drafter and only_decoding else model


@functools.lru_cache(maxsize=1)
def of_worker(source: ModelSource, mesh: MeshSettings) -> Model:
    """The model that a worker of Ray decodes with, kept for its next task."""
    return load(source, only_decoding=True, mesh=decoding_mesh(mesh))


def folder_of(adapter: str) -> Path:
    """The folder of an adapter that a config names. The project's names come first: ./pasta is a folder here."""
    if adapter in packages.CHECKPOINTS:
        return packages.checkpoint(adapter)
    return in_run(hub.local(adapter), "adapter", WEIGHTS)


def trained_on(source: ModelSource) -> tuple[str, ...]:
    """The data, with its terms, of the weights that a run starts from, as far as their cards state it."""
    folders = [find(name) for name, find in ((source.path, weights_at), (source.adapter, folder_of)) if name]
    cards = [card.read(folder) for folder in folders if (folder / card.FIELDS).is_file()]
    lines = dict.fromkeys(line for one in cards if one.training for line in one.training.data)
    return tuple(f"in the weights that it starts from: {line}" for line in lines)


def _with_adapter(model: Model, path: Path) -> Model:
    """A host model with an adapter: merged, or beside blocks."""
    adapter, about = load_adapter(path, model)
    if uses_kernels(model.params):
        params = with_pairs(model.params, adapter)
        leaves = (np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(adapter))
        fingerprint = fingerprints.of_texts([model.fingerprint, fingerprints.of_bytes(leaves)])
    else:
        params = merge_on_host(model.params, adapter, model.tokenizer.tags)
        fingerprint = fingerprint_of(model.config, params, model.tokenizer)
    return dataclasses.replace(_described(model, path, about), params=params, fingerprint=fingerprint)


def load_base(source: ModelSource, stacked: bool | None = None, mesh: Mesh | None = None) -> Model:
    """The model without its adapter, to train one beside it; on one CPU narrow where the source's dtype is bfloat16."""
    is_narrow = source.dtype == "bfloat16" and mesh is None and not stacked and jax.default_backend() == "cpu"
    with doing(f"loading {source.path or source.preset}"):
        model = read_model(source.preset, source.path, deferred=mesh is not None or is_narrow)
        if not source.adapter:
            model = _with_positions(model, source)
        if is_narrow:
            params = on_large_pages(narrow(model.params))
        else:
            params = on_device(model.params, None, stacked, mesh=mesh)
        return dataclasses.replace(model, params=params)


def load_with_adapter(
    source: ModelSource, stacked: bool | None = None, mesh: Mesh | None = None
) -> tuple[Model, Params, About]:
    """The base model with the adapter's positions, and the adapter by itself: to train the adapter further."""
    if not source.adapter:
        raise PastaError("no adapter named: set --config.model.adapter=<adapter/ of a training run>")
    model = load_base(source, stacked, mesh)
    path = folder_of(source.adapter)
    adapter, about = load_adapter(path, model)
    return _with_positions(_described(model, path, about), source), adapter, about


def _described(model: Model, path: Path, about: About) -> Model:
    """The base model with the positions and the defaults of its adapter."""
    return dataclasses.replace(model, positions=about.positions, defaults=defaults_beside(path, model))


def defaults_beside(adapter: Path, model: Model) -> Defaults:
    """How a model is meant to be sampled with an adapter."""
    return read_defaults(adapter if adapter.is_dir() else adapter.parent) or model.defaults


def _with_positions(model: Model, source: ModelSource) -> Model:
    """The model; without recorded positions it accepts the source's, otherwise different ones are refused."""
    if not source.policy:
        return model
    positions = Positions(source.policy, source.constant)
    if model.positions is None:
        return dataclasses.replace(model, positions=positions)
    if not positions.matches(model.positions):
        raise PastaError(
            f"{source.adapter or source.path or model.name}: trained with positions {model.positions}, "
            f"not {positions}; leave `policy` empty to use its own"
        )
    return model
