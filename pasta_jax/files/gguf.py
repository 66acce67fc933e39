"""Read GGUF files: the metadata, the list of tensors, and any tensor as float32.

The header is parsed once, from a memory map; tensor data are not touched before they are read. Every length is checked
against the file before it is used: a damaged file raises an error that names the place, never returns a wrong array.
"""

import math
import mmap
import os
import struct
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from pasta_jax.errors import PastaError
from pasta_jax.files.validated import typed

Section = TypeVar("Section")
_CONVERT = "use a file from a current converter"


class Format(NamedTuple):
    """A number format: a tensor is a row of blocks."""

    name: str
    values: int  # in a block
    bytes: int  # of a block


# By their code in the file: all that `gguf.quants` dequantises. (Its own table takes 0.2 s to import.)
FORMATS = {
    0: Format("F32", 1, 4),
    1: Format("F16", 1, 2),
    2: Format("Q4_0", 32, 18),
    3: Format("Q4_1", 32, 20),
    6: Format("Q5_0", 32, 22),
    7: Format("Q5_1", 32, 24),
    8: Format("Q8_0", 32, 34),
    10: Format("Q2_K", 256, 84),
    11: Format("Q3_K", 256, 110),
    12: Format("Q4_K", 256, 144),
    13: Format("Q5_K", 256, 176),
    14: Format("Q6_K", 256, 210),
    16: Format("IQ2_XXS", 256, 66),
    17: Format("IQ2_XS", 256, 74),
    18: Format("IQ3_XXS", 256, 98),
    19: Format("IQ1_S", 256, 50),
    20: Format("IQ4_NL", 32, 18),
    21: Format("IQ3_S", 256, 110),
    22: Format("IQ2_S", 256, 82),
    23: Format("IQ4_XS", 256, 136),
    29: Format("IQ1_M", 256, 56),
    30: Format("BF16", 1, 2),
    34: Format("TQ1_0", 256, 54),
    35: Format("TQ2_0", 256, 66),
    39: Format("MXFP4", 32, 17),
    40: Format("NVFP4", 64, 36),
}
_LONG = 1000  # numbers: more than a value for each layer
_CHUNK = 1 << 15  # blocks dequantised at a time: the temporaries of a large embedding stay in the cache

_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_NUMBERS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
_U64 = struct.Struct("<Q")


class TensorInfo(NamedTuple):
    """A tensor's entry in the header."""

    shape: tuple[int, ...]  # slowest dimension first: a matrix is [out, in]
    format: Format
    offset: int  # in bytes, from the start of the file

    @property
    def blocks(self) -> int:
        return math.prod(self.shape) // self.format.values

    @property
    def row_bytes(self) -> int:
        return self.shape[-1] // self.format.values * self.format.bytes


@dataclass(frozen=True, eq=False)
class GGUF:
    """An open file."""

    path: Path
    metadata: dict[str, Any]  # numbers, strings, lists of strings, arrays of numbers
    tensors: dict[str, TensorInfo]
    _map: mmap.mmap

    @classmethod
    def open(cls, path: str | os.PathLike) -> "GGUF":
        """Map the file and parse its header."""
        path = Path(path)
        try:
            with path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # an empty file can't be mapped
            raise PastaError(f"{path}: the file is empty; fetch it again") from None
        except OSError as error:
            raise PastaError(f"{path}: {error.strerror}; use a readable GGUF file") from error
        metadata, tensors = _Header(path, mapped).parse()
        count, number = (metadata.get(f"split.{name}") for name in ("count", "no"))
        if isinstance(count, int) and count > 1:
            part = f"part {number + 1} of {count}" if isinstance(number, int) else f"one of {count} parts"
            raise PastaError(f"{path}: {part}; join them with llama.cpp's llama-gguf-split --merge")
        return cls(path, metadata, tensors, mapped)

    def section(self, prefix: str, cls: type[Section], absent: Collection[str] = ()) -> Section:
        """The metadata whose keys begin with `prefix` as a type: the fields that it names, with their ranges.

        `absent`: keys that are left out where they state 0.
        """
        values = {key.removeprefix(prefix): value for key, value in self.metadata.items() if key.startswith(prefix)}
        values = {key: value for key, value in values.items() if key not in absent or np.any(value)}
        arrays = {key: value for key, value in values.items() if isinstance(value, np.ndarray)}
        plain = values | {key: "an array" if len(one) > _LONG else one.tolist() for key, one in arrays.items()}
        return typed(plain, cls, f"{self.path}: metadata {prefix[:-1]}", "convert the model again")

    def texts(self, key: str, most: int) -> list[str]:
        """A list of texts that must be present."""
        return self._require(key, list, most)

    def integers(self, key: str, most: int) -> np.ndarray:
        """An array of integers that must be present."""
        numbers = self._require(key, np.ndarray, most)
        if numbers.dtype.kind not in "iu" or (numbers.size and not -(2**31) <= numbers.min() <= numbers.max() < 2**31):
            raise PastaError(f"{self.path}: metadata {key!r} aren't integers of 32 bits; {_CONVERT}")
        return numbers

    def floats(self, key: str, most: int) -> np.ndarray:
        """An array of finite numbers that must be present."""
        numbers = self._require(key, np.ndarray, most)
        if numbers.dtype.kind != "f" or not (abs(numbers) <= np.finfo(np.float32).max).all():
            raise PastaError(f"{self.path}: metadata {key!r} aren't finite numbers; {_CONVERT}")
        return numbers

    def _require(self, key: str, kind: type[Section], most: int) -> Section:
        value = self.metadata.get(key)
        if not isinstance(value, kind):
            problem = f"no metadata {key!r}"
            if value is not None:
                problem = f"metadata {key!r} has type {type(value).__name__}, not {kind.__name__}"
            raise PastaError(f"{self.path}: {problem}; {_CONVERT}")
        if len(value) > most:
            raise PastaError(f"{self.path}: metadata {key!r} has {len(value):,} values, at most {most:,}; {_CONVERT}")
        return value

    def info(self, name: str) -> TensorInfo:
        """The entry of a tensor that must be there."""
        if name not in self.tensors:
            raise PastaError(f"{self.path}: no tensor {name!r}; use a complete file of this architecture")
        return self.tensors[name]

    def read(self, name: str) -> np.ndarray:
        """One tensor as float32, in its shape."""
        stored, info = self.stored(name), self.tensors[name]
        numbers = dequantize(stored, info.format).reshape(info.shape)
        self.forget()
        return numbers

    def rows(self, name: str, index: np.ndarray) -> np.ndarray:
        """Rows of one matrix, or of several under one another, as float32: no others are dequantised."""
        info = self.tensors[name]
        stored = self.stored(name).reshape(-1, info.row_bytes)[index]
        self.forget()
        return dequantize(stored.reshape(-1), info.format).reshape(len(index), info.shape[-1])

    def stored(self, name: str) -> np.ndarray:
        """One tensor's bytes as the file has them."""
        info = self.info(name)
        return np.frombuffer(self._map, np.uint8, info.blocks * info.format.bytes, info.offset)

    def forget(self) -> None:
        """Don't count pages of the file that were read as this process's memory, until they are read again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


def dequantize(stored: np.ndarray, format: Format) -> np.ndarray:
    """Blocks of one format, as bytes, to a flat float32 array."""
    import gguf.quants as reference  # takes 0.2 s, and a start with converted weights doesn't need it

    code = reference.GGMLQuantizationType[format.name]
    blocks = stored.reshape(-1, format.bytes)
    out = np.empty((len(blocks), format.values), np.float32)
    # A damaged file may hold infinite scales; no warnings for them.
    with np.errstate(all="ignore"):
        for start in range(0, len(blocks), _CHUNK):
            chunk = blocks[start : start + _CHUNK].reshape(1, -1)
            out[start : start + _CHUNK] = reference.dequantize(chunk, code).reshape(-1, format.values)
    return out.reshape(-1)


class _Header:
    """A cursor over the header that never reads past the end of the file."""

    def __init__(self, path: Path, data: mmap.mmap):
        self.path, self.data, self.at = path, data, 0

    def parse(self) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
        if self.take(4, "the magic number") != b"GGUF":
            raise self.error("not a GGUF file (it doesn't begin with GGUF)", "use a GGUF file, or a folder", at=0)
        version = self.number(4, "the version")
        if version not in _VERSIONS:
            raise self.error(f"GGUF version {version}, not 2 or 3", "convert it again, little-endian", at=4)
        tensors, pairs = self.number(8, "the number of tensors"), self.number(8, "the number of metadata")
        metadata: dict[str, Any] = {}
        for index in range(pairs):
            key = self.text(f"the key of metadata {index}")
            if key in metadata:
                raise self.error(f"duplicate metadata {key!r}", "fetch the file again")
            metadata[key] = self.value(self.number(4, f"metadata {key!r}"), f"metadata {key!r}")
        alignment = metadata.get("general.alignment", 32)  # the format's default
        if type(alignment) is not int or not 1 <= alignment <= 2**20:
            raise self.error(f"general.alignment is {alignment!r}, not a positive number", "fetch the file again")
        entries = {}
        for index in range(tensors):
            name = self.text(f"the name of tensor {index}")
            if name in entries:
                raise self.error(f"duplicate tensor {name!r}", "fetch the file again")
            entries[name] = self.tensor(name)
        start = -(-self.at // alignment) * alignment  # of the tensor data
        return metadata, {name: self.placed(name, info, start, alignment) for name, info in entries.items()}

    def tensor(self, name: str) -> TensorInfo:
        what = f"tensor {name!r}"
        rank = self.number(4, what)
        if not 1 <= rank <= 4:
            raise self.error(f"{what} has {rank} dimensions, not 1 to 4", "fetch the file again")
        shape = tuple(self.number(8, what) for _ in range(rank))[::-1]
        code = self.number(4, what)
        if code not in FORMATS:
            known = ", ".join(format.name for format in FORMATS.values())
            raise self.error(f"{what} has the unknown number format {code}", f"quantize it to one of {known}")
        return TensorInfo(shape, FORMATS[code], self.number(8, what))

    def placed(self, name: str, info: TensorInfo, start: int, alignment: int) -> TensorInfo:
        """The tensor with its offset in the file, checked to lie within it."""
        format, at = info.format, start + info.offset
        if 0 in info.shape or info.shape[-1] % format.values or info.offset % alignment:
            raise self.error(
                f"tensor {name!r} of shape {info.shape} in {format.name} isn't made of whole, aligned blocks",
                "fetch the file again",
                at=at,
            )
        end = at + info.blocks * format.bytes
        if end > len(self.data):
            raise self.error(
                f"tensor {name!r} needs bytes {at} to {end}, the file has {len(self.data)}",
                "it is cut off: fetch it again",
                at=at,
            )
        return info._replace(offset=at)

    def value(self, code: int, what: str) -> Any:
        if code == _STRING:
            return self.text(what)
        if code == _ARRAY:
            kind, count = self.number(4, what), self.number(8, what)
            if kind == _STRING:
                return self.texts(count, what)
            return self.numbers(kind, count, what)
        return self.numbers(code, 1, what)[0].item()

    def numbers(self, code: int, count: int, what: str) -> np.ndarray:
        if code not in _NUMBERS:
            raise self.error(f"{what} has the unknown value type {code}", "fetch the file again")
        form = np.dtype(_NUMBERS[code])
        return np.frombuffer(self.take(count * form.itemsize, what), form)

    def number(self, size: int, what: str) -> int:
        return int.from_bytes(self.take(size, what), "little")

    def text(self, what: str) -> str:
        return self.texts(1, what)[0]

    def texts(self, count: int, what: str) -> list[str]:
        # The one long loop (262,144 pieces in a Gemma file), hence local names and no calls.
        data, at, size, length_at = self.data, self.at, len(self.data), _U64.unpack_from
        texts = []
        try:
            for _ in range(count):
                begin = at + 8
                end = begin + length_at(data, at)[0]
                if end > size:
                    raise self.ends(what, at)
                texts.append(data[begin:end].decode())
                at = end
        except struct.error:
            raise self.ends(what, at) from None
        except UnicodeDecodeError:
            raise self.error(f"{what} is not UTF-8", "fetch the file again", at=at) from None
        self.at = at
        return texts

    def take(self, count: int, what: str) -> bytes:
        begin = self.at
        if count > len(self.data) - begin:
            raise self.ends(what, begin)
        self.at += count
        return self.data[begin : self.at]

    def ends(self, what: str, at: int) -> PastaError:
        return self.error(f"the file ends inside {what}", "it is cut off or damaged: fetch it again", at=at)

    def error(self, what: str, fix: str, at: int | None = None) -> PastaError:
        return PastaError(f"{self.path}: byte {self.at if at is None else at}: {what}; {fix}")
