"""Tensors of Hugging Face's folders without torch: safetensors files, read one tensor at a time, and written."""

import json
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (gives NumPy bfloat16, which safetensors needs)
import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open

from pasta_jax.errors import PastaError
from pasta_jax.files import safetensors
from pasta_jax.files.atomic import write_whole
from pasta_jax.files.validated import MIB, read_json
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.parameters import Params, unpack_layer
from pasta_jax.weights import families
from pasta_jax.weights.config_file import TagRecord, config_to_json
from pasta_jax.weights.family import TRANSFORMERS


def _plain(name: str) -> str:
    """A tensor's name without the part that says which half of a model for images and text it is of."""
    for of_text in ("model.language_model.", "model.text_model."):
        name = name.replace(of_text, "model.")
    return name.removeprefix("language_model.")


_NUMBERS = "F64", "F32", "F16", "BF16"
_ROWS = 8192  # compared at a time


def _weights(folder: Path) -> list[Path]:
    """The files of a folder's tensors: those that its index names, so none that an older version has left there."""
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file():
        return [whole]
    if index.is_file():
        fix = "fetch it again"
        names = sorted({*read_json(index, _Index, most=64 * MIB, fix=fix).weight_map.values()})
        if all(name == Path(name).name for name in names):
            return [folder / name for name in names]
        raise PastaError(f"{index}: names files of other folders; {fix}")
    return sorted(folder.glob("*.safetensors"))


class _Index(msgspec.Struct):
    weight_map: dict[str, str]  # a tensor's file


class Files:
    """The tensors of a folder's safetensors files, read one at a time as float32."""

    def __init__(self, folder: Path):
        self.path = folder
        paths = _weights(folder)
        if not paths:
            raise PastaError(f"{folder}: no *.safetensors file; convert models of other formats first")
        self._place_of: dict[str, tuple[Path, str]] = {}
        for path in paths:
            try:
                with safe_open(path, framework="numpy") as file:
                    self._place_of |= {_plain(name): (path, name) for name in file.keys()}  # noqa: SIM118
            except (SafetensorError, OSError) as error:
                raise PastaError(f"{path}: not a complete safetensors file ({error}); fetch it again") from None

    def read(self, name: str) -> np.ndarray:
        """One tensor as float32."""
        if f"{name}_blocks" in self._place_of and f"{name}_scales" in self._place_of:
            return from_mxfp4(*(self._stored(f"{name}_{part}", ("U8",)) for part in ("blocks", "scales")))
        if name not in self._place_of:
            raise PastaError(
                f"{self.path}: no tensor {name!r} in its safetensors files; "
                "fetch all of them, and use the config.json that belongs to them"
            )
        return np.asarray(self._stored(name, _NUMBERS), dtype=np.float32)

    def _stored(self, name: str, kinds: tuple[str, ...], index: np.ndarray | None = None) -> np.ndarray:
        """A tensor as its file has it, or those places of its first axis."""
        path, stored = self._place_of[name]
        with safe_open(path, framework="numpy") as file:
            if (kind := file.get_slice(stored).get_dtype()) not in kinds:
                raise PastaError(f"{path}: {name} is of {kind}, not {kinds[-1]}; use the model in float32 or bfloat16")
            if index is None:
                return file.get_tensor(stored)
            return np.concatenate([file.get_slice(stored)[place : place + 1] for place in index.tolist()])

    def differ(self, *names: str) -> bool:
        """Whether two matrices of one size are there and not equal; a few rows of each are in memory at a time."""
        if not {*names} <= self._place_of.keys():
            return False
        places = [self._place_of[name] for name in names]
        with safe_open(places[0][0], framework="numpy") as first, safe_open(places[1][0], framework="numpy") as second:
            one, other = first.get_slice(places[0][1]), second.get_slice(places[1][1])
            if not {one.get_dtype(), other.get_dtype()} <= {*_NUMBERS} or one.get_shape() != other.get_shape():
                return False  # then it isn't the head's
            size = next(iter(one.get_shape()), 0)
            spans = [slice(at, min(at + _ROWS, size)) for at in range(0, size, _ROWS)]
            return any((one[span] != other[span]).any() for span in spans)

    def rows(self, name: str, index: np.ndarray) -> np.ndarray:
        """Rows of one matrix as float32: no others are read."""
        if name not in self._place_of or not len(index):
            return self.read(name)[index]
        return np.asarray(self._stored(name, _NUMBERS, index), dtype=np.float32)


_FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def from_mxfp4(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Matrices [X, in, out] from what gpt-oss's files hold: codes of 4 bits [X, out, in / 32, 16], the lower half of a
    byte first, and an exponent for each 32 of them."""
    if blocks.dtype != np.uint8 or scales.dtype != np.uint8 or blocks.shape != (*scales.shape, 16):
        raise PastaError(
            f"blocks of {blocks.dtype} {blocks.shape} with scales of {scales.dtype} {scales.shape} are no MXFP4; "
            "fetch the model again"
        )
    values = np.concatenate([_FP4, -_FP4])
    numbers = values[np.stack([blocks & 15, blocks >> 4], axis=-1)].reshape(*scales.shape, 32)
    with np.errstate(over="ignore"):
        numbers = np.ldexp(numbers, scales[..., None].astype(np.int32) - 127)
    return numbers.reshape(*scales.shape[:-2], scales.shape[-2], -1).swapaxes(-1, -2)


def write_model(
    folder: Path,
    params: Params,
    config: TransformerConfig,
    record: TagRecord | None = None,
    fields: Mapping[str, Any] = types.MappingProxyType({}),
    others: Mapping[str, np.ndarray] = types.MappingProxyType({}),
) -> None:
    """Write config.json and model.safetensors (float32); `transformers` loads the folder with equal logits.

    `fields` are added to config.json, `others` to the tensors. The weights come last: a folder with a model.safetensors
    is a whole model.
    """
    write_whole(folder / "config.json", json.dumps(config_to_json(config, record) | dict(fields), indent=2) + "\n")
    family = families.of_config(config)
    whole = {name: leaf for name, leaf in params.items() if name != "layers"}
    whole |= {name: next(iter(leaf.values())) for name, leaf in whole.items() if isinstance(leaf, dict)}
    groups = {None: whole}
    groups |= {
        l: family.stored(TRANSFORMERS, unpack_layer(layer, config.of_layer(l)))
        for l, layer in enumerate(params["layers"])
    }
    tensors = dict(others)
    for l, arrays in groups.items():
        for name, array in arrays.items():
            place = family.tensor(TRANSFORMERS, name, l)
            array = np.asarray(family.theirs(name, np.asarray(array)), np.float32)
            several = {place.replace("*", str(expert)): one for expert, one in enumerate(array)}
            tensors |= several if "*" in place else {place: array}
    safetensors.write(folder / "model.safetensors", tensors, {"format": "pt"})
