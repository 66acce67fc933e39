"""A drafter's file, and a model with it (models/drafter.py): its two matrices and ids; the table is the model's own."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from pasta_jax.errors import PastaError
from pasta_jax.files import safetensors
from pasta_jax.models.kernels.cpu.huge_pages import on_large_pages
from pasta_jax.models.parameters import Params
from pasta_jax.models.parts import picked
from pasta_jax.models.sharding import gathered, mesh_of, shard
from pasta_jax.models.transformer import uses_kernels
from pasta_jax.tokenizers.tokenizer import tokenizer_fingerprint
from pasta_jax.weights.for_cpu import CODED, panels_of
from pasta_jax.weights.model import Model

FILE = "drafter.safetensors"
FORMAT = "drafter 1"
MATRICES = ("inward", "outward")
_FIX = "train one with launch.train_drafter"


def table_of(model: Model, ids: np.ndarray) -> np.ndarray:
    """The rows of a model's head for these ids, float32 [len(ids), E]."""
    table = model.params["embed" if model.config.tied_head else "head"]
    return np.asarray(gathered(jax.jit(picked)(table, jnp.asarray(ids))), np.float32)


def save(folder: Path, model: Model, matrices: dict[str, np.ndarray], ids: np.ndarray) -> Path:
    """Write a drafter of a model."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: np.asarray(matrices[name], ml_dtypes.bfloat16) for name in MATRICES}
    about = {"format": FORMAT, "model": model.name, "tokenizer": tokenizer_fingerprint(model.tokenizer)}
    safetensors.write(folder / FILE, tensors | {"ids": np.asarray(ids, np.int32)}, about)
    return folder / FILE


def with_drafter(model: Model, folder: Path) -> Model:
    """A model to decode with, with a drafter. Other weights than those it learnt from only make it guess worse."""
    path = folder / FILE if folder.is_dir() else folder
    about, inward, outward, ids = _read(path)
    width, embed = inward.shape[0], model.config.embed
    if about.get("tokenizer") != tokenizer_fingerprint(model.tokenizer):
        raise PastaError(f"{path}: learnt from {about.get('model')}, which has another tokenizer; {_FIX}")
    if inward.shape != (width, 2 * embed) or outward.shape != (embed, width) or ids.ndim != 1:
        raise PastaError(f"{path}: shapes {inward.shape} and {outward.shape} don't fit {embed} numbers; {_FIX}")
    if not len(ids) or ids.min() < 0 or ids.max() >= model.config.vocab:
        raise PastaError(f"{path}: its ids must be from 0 to {model.config.vocab - 1}; {_FIX}")

    def formed(matrix: np.ndarray) -> dict[str, Any]:
        if uses_kernels(model.params):
            return panels_of(np.asarray(matrix, np.float32), CODED)
        return {"kernel": np.asarray(matrix, model.dtype)}

    drafter: Params = {"inward": formed(inward), "outward": formed(outward), "table": formed(table_of(model, ids))}
    parts, mesh = {"drafter": drafter | {"ids": ids}}, mesh_of(model.params)
    if mesh is not None:
        parts = shard(parts, mesh)
    elif uses_kernels(model.params):
        parts = on_large_pages(parts)
    else:
        parts = jax.tree.map(jnp.asarray, parts)
    return dataclasses.replace(model, params=model.params | parts)


def _read(path: Path) -> tuple[dict[str, str], np.ndarray, np.ndarray, np.ndarray]:
    try:
        with safe_open(path, framework="numpy") as file:
            about = file.metadata() or {}
            if about.get("format") != FORMAT:
                raise PastaError(f"{path}: format {about.get('format')!r}, expected {FORMAT!r}; {_FIX}")
            return about, *(file.get_tensor(name) for name in (*MATRICES, "ids"))
    except FileNotFoundError:
        raise PastaError(f"{path}: not found; {_FIX}") from None
    except (SafetensorError, OSError) as error:
        raise PastaError(f"{path}: not a whole drafter ({error}); {_FIX}") from None
