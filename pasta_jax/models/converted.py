"""Cache of converted weights: dequantising a GGUF file takes seconds, reading its float32 parameters a fraction."""

import dataclasses
import hashlib
import json
from pathlib import Path

import jax
from absl import logging
from safetensors import SafetensorError, safe_open

from pasta_jax import assets
from pasta_jax.models import tensor_file
from pasta_jax.models.config import Rope, TransformerConfig
from pasta_jax.models.layers import Params

CONVERTER = 3  # raise it when the same file would yield other parameters


def path_of(source: Path) -> Path:
    """Where the cache keeps the parameters of this version of a file."""
    stat = source.stat()
    identity = f"{CONVERTER} {source.resolve()} {stat.st_size} {stat.st_mtime_ns}"
    key = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return assets.cache_dir() / "converted" / f"{source.stem}-{key}.safetensors"


def save(path: Path, config: TransformerConfig, params: Params) -> None:
    """Write unrolled host parameters and their configuration, whole or not at all."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    tensors = {jax.tree_util.keystr(names, simple=True, separator="/"): leaf for names, leaf in leaves}
    tensor_file.write(path, tensors, {"config": json.dumps(dataclasses.asdict(config))})


def load(path: Path) -> tuple[TransformerConfig, Params] | None:
    """What `save` wrote; None where there is no such file or it is damaged."""
    if not path.is_file():
        return None
    try:
        return _read(path)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        logging.warning("%s: not readable (%s); converting again", path, error)
        return None


def _read(path: Path) -> tuple[TransformerConfig, Params]:
    with safe_open(path, framework="numpy") as file:
        raw = json.loads(file.metadata()["config"])
        for name in ("rope", "local_rope"):
            raw[name] = raw[name] and Rope(**raw[name])
        config = TransformerConfig(**raw)
        layers: list[Params] = [{} for _ in range(config.layers)]
        params: Params = {"layers": layers}
        for name in file.keys():  # noqa: SIM118  (not a dict)
            *parents, leaf = name.split("/")
            node = params
            for parent in parents:
                node = node[int(parent)] if node is layers else node.setdefault(parent, {})
            node[leaf] = file.get_tensor(name)
    return config, params | {"layers": tuple(layers)}
