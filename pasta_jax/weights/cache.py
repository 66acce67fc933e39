"""Cache of converted weights: dequantising a GGUF file takes seconds, reading its float32 parameters a fraction.

A conversion is kept until 30 days after its last use: a file that has moved or changed is converted anew.
"""

import contextlib
import dataclasses
import functools
import json
import math
import os
import time
from pathlib import Path

import jax
import ml_dtypes  # noqa: F401  (gives NumPy bfloat16)
import numpy as np
from absl import logging
from flax import traverse_util
from safetensors import SafetensorError, safe_open

from pasta_jax.errors import PastaError, one_line
from pasta_jax.files import fingerprints, packages, safetensors
from pasta_jax.files.validated import parse_json, typed
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.parameters import Params
from pasta_jax.weights.lazy import Deferred, read_now

_FIX = "convert it again"
_DTYPES = ("float32", "uint32", "int32", "int8", "uint8", "float16", "bfloat16")
_DTYPE_OF = {safetensors.name_of(np.dtype(dtype)): dtype for dtype in _DTYPES}
KEPT_S = 30 * 24 * 3600
CONVERTER = 6  # raise it when the same file would yield other parameters


def path_of(source: Path, form: str = "") -> Path:
    """Where the cache keeps the parameters of this version of a file, in float32 or in another form."""
    stat = source.stat()
    identity = f"{CONVERTER} {source.resolve()} {stat.st_size} {stat.st_mtime_ns}"
    key = fingerprints.of_bytes([identity.encode()])
    return packages.cache_dir() / "converted" / f"{source.stem}-{key}{form and '-'}{form}.safetensors"


def save(path: Path, config: TransformerConfig, params: Params, fingerprint: str = "") -> None:
    """Write unrolled host parameters and their configuration, whole or not at all; remove what nobody uses any more."""
    for other in path.parent.glob("*.safetensors"):
        with contextlib.suppress(OSError):
            if time.time() - other.stat().st_mtime > KEPT_S:
                other.unlink()
    leaves = jax.tree_util.tree_leaves_with_path(params)
    tensors = {jax.tree_util.keystr(names, simple=True, separator="/"): leaf for names, leaf in leaves}
    about = {"config": json.dumps(dataclasses.asdict(config)), "fingerprint": fingerprint}
    sums = json.dumps({name: bit_sum(tensor) for name, tensor in tensors.items()})
    kinds = {name: [leaf.dtype.name, leaf.shape] for name, leaf in tensors.items()}
    described = fingerprints.of_data([about["config"], kinds])  # names, types and sizes, and the configuration
    safetensors.write(path, tensors, about | {"arrays": described, "sums": sums})


def load(path: Path, deferred: bool = False) -> tuple[TransformerConfig, Params, str] | None:
    """What `save` wrote, perhaps to be read later; None where there is no such file or it is damaged."""
    if not path.is_file():
        return None
    try:
        config, params, fingerprint = _opened(path)
        with contextlib.suppress(OSError):  # a cache that can only be read
            os.utime(path)
        return config, params if deferred else read_now(params), fingerprint
    except (SafetensorError, OSError, PastaError, KeyError, ValueError, IndexError) as error:
        logging.warning("%s", one_line(f"{path}: not readable ({error}); converting again"))
        return None


def _opened(path: Path) -> tuple[TransformerConfig, Params, str]:
    """The configuration, the unrolled parameters, each checked when it is read, and the fingerprint."""
    with safe_open(path, framework="numpy") as file:
        about, names = file.metadata() or {}, file.offset_keys()
        slices = {name: file.get_slice(name) for name in names}
        kinds = {name: [_DTYPE_OF[one.get_dtype()], one.get_shape()] for name, one in slices.items()}
    config = typed(parse_json(about.get("config", ""), str(path), _FIX), TransformerConfig, str(path), _FIX)
    sums = json.loads(about["sums"])
    if about["arrays"] != fingerprints.of_data([about["config"], kinds]):
        raise PastaError(f"{path}: holds other arrays than were written; {_FIX}")

    def read(name: str, at: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        # Not from a map of the file, whose pages would count as this process's memory.
        array = np.fromfile(path, np.uint8, math.prod(shape) * dtype.itemsize, offset=at).view(dtype).reshape(shape)
        if bit_sum(array) != sums.get(name):
            raise PastaError(f"{path}: {name} differs from what was written; delete the file to convert it again")
        return array

    with path.open("rb") as file:
        at = 8 + int.from_bytes(file.read(8), "little")
    leaves = {}
    for name, (kind, shape) in kinds.items():
        dtype = np.dtype(kind)
        leaf = Deferred(tuple(shape), functools.partial(read, name, at, dtype, tuple(shape)), dtype=dtype)
        leaves[name], at = leaf, at + leaf.nbytes
    params = traverse_util.unflatten_dict(leaves, sep="/")
    layers = tuple(params["layers"][str(l)] for l in range(config.layers))
    return config, params | {"layers": layers}, about["fingerprint"]


def bit_sum(array: np.ndarray) -> int:
    """The sum of an array's bytes as 64-bit words, at the speed of memory: a flipped bit changes it."""
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    words = content[: content.size // 8 * 8].view(np.uint64)
    return int(np.sum(words, dtype=np.uint64)) + int(np.sum(content[words.nbytes :], dtype=np.uint64))
