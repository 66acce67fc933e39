"""Cache of converted weights: dequantising a GGUF file takes seconds, reading its float32 parameters a fraction."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import logging
from safetensors import SafetensorError, safe_open

from pasta_jax.errors import PastaError
from pasta_jax.files import fingerprints, packages, safetensors
from pasta_jax.files.validated import parse_json
from pasta_jax.models.config import TransformerConfig, config_of
from pasta_jax.models.parameters import Params, packed_shapes
from pasta_jax.weights.lazy import Deferred

_FIX = "convert it again"
CONVERTER = 4  # raise it when the same file would yield other parameters


def path_of(source: Path, form: str = "") -> Path:
    """Where the cache keeps the parameters of this version of a file, in float32 or in another form."""
    stat = source.stat()
    identity = f"{CONVERTER} {source.resolve()} {stat.st_size} {stat.st_mtime_ns}"
    key = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return packages.cache_dir() / "converted" / f"{source.stem}-{key}{form and '-'}{form}.safetensors"


def save(path: Path, config: TransformerConfig, params: Params, fingerprint: str = "") -> None:
    """Write unrolled host parameters and their configuration, whole or not at all."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    tensors = {jax.tree_util.keystr(names, simple=True, separator="/"): leaf for names, leaf in leaves}
    about = {"config": json.dumps(dataclasses.asdict(config)), "fingerprint": fingerprint}
    sums = json.dumps({name: bit_sum(tensor) for name, tensor in tensors.items()})
    safetensors.write(path, tensors, about | {"arrays": _described(tensors, about["config"]), "sums": sums})


def load(path: Path, deferred: bool = False) -> tuple[TransformerConfig, Params] | None:
    """What `save` wrote, perhaps without reading it yet; None where there is no such file or it is damaged."""
    if not path.is_file():
        return None
    try:
        return _read(path, deferred)
    except (SafetensorError, OSError, PastaError, KeyError, ValueError) as error:
        logging.warning("%s: not readable (%s); converting again", path, error)
        return None


def load_blocks(path: Path) -> tuple[TransformerConfig, Params, str] | None:
    """What `save` wrote of parameters in blocks, with their fingerprint; None as `load`."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            config = _config(path, file)
            names, about = file.keys(), file.metadata()
            sums = json.loads(about["sums"])
            tensors = {name: _checked(path, name, file.get_tensor(name), sums) for name in names}
            if about["arrays"] != _described(tensors, about["config"]):
                raise PastaError(f"{path}: holds other arrays than were written; {_FIX}")
            return config, _nested(tensors, config), about["fingerprint"]
    except (SafetensorError, OSError, PastaError, KeyError, ValueError, IndexError) as error:
        logging.warning("%s: not readable (%s); converting again", path, error)
        return None


def _described(tensors: Mapping[str, np.ndarray], config: str) -> str:
    """A hash of the arrays' names, types and sizes, and of the configuration."""
    return fingerprints.of_data([config, {name: [leaf.dtype.name, leaf.shape] for name, leaf in tensors.items()}])


def bit_sum(array: np.ndarray) -> int:
    """The sum of an array's bytes as 64-bit words, at the speed of memory: a flipped bit changes it."""
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    words = content[: content.size // 8 * 8].view(np.uint64)
    return int(np.sum(words, dtype=np.uint64)) + int(np.sum(content[words.nbytes :], dtype=np.uint64))


def _checked(path: Path, name: str, array: np.ndarray, sums: Mapping[str, int]) -> np.ndarray:
    """The array, if it has the bits that were written."""
    if bit_sum(array) != sums.get(name):
        raise PastaError(f"{path}: {name} differs from what was written; delete the file to convert it again")
    return array


def _read(path: Path, deferred: bool) -> tuple[TransformerConfig, Params]:
    with safe_open(path, framework="numpy") as file:
        config, sums = _config(path, file), json.loads(file.metadata()["sums"])
        shapes = shapes_of(config)
        if shapes.keys() != set(file.keys()):
            raise PastaError(f"{path}: holds other tensors than its config describes; {_FIX}")
        leaves = {}
        for name, shape in shapes.items():
            if tuple(file.get_slice(name).get_shape()) != shape:
                raise PastaError(f"{path}: {name} has another shape than {shape}; {_FIX}")
            if deferred:
                leaves[name] = Deferred(shape, functools.partial(_tensor, path, name, sums))
            else:
                leaves[name] = _checked(path, name, file.get_tensor(name), sums)
    return config, _nested(leaves, config)


def _config(path: Path, file: safe_open) -> TransformerConfig:
    stored = (file.metadata() or {}).get("config", "")
    return config_of(parse_json(stored, str(path), _FIX), str(path), _FIX)


def _nested(leaves: Mapping[str, Any], config: TransformerConfig) -> Params:
    """Unrolled parameters from their paths, as `layers/3/qkv/kernel`."""
    layers: list[Params] = [{} for _ in range(config.layers)]
    params: Params = {"layers": layers}
    for name, leaf in leaves.items():
        *parents, last = name.split("/")
        node = params
        for parent in parents:
            node = node[int(parent)] if node is layers else node.setdefault(parent, {})
        node[last] = leaf
    return params | {"layers": tuple(layers)}


def _tensor(path: Path, name: str, sums: Mapping[str, int]) -> np.ndarray:
    with safe_open(path, framework="numpy") as file:
        return _checked(path, name, file.get_tensor(name), sums)


def shapes_of(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every array of unrolled parameters, by its path."""
    table = (config.vocab, config.embed)
    shapes = {"embed": table, "final_norm/weight": (config.embed,)} | ({} if config.tied_head else {"head": table})
    layer = packed_shapes(config)
    return shapes | {f"layers/{l}/{name}": shape for l in range(config.layers) for name, shape in layer.items()}
