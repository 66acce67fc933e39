"""Write small GGUF files, byte by byte, for tests of the reader."""

import struct
from typing import Any

import numpy as np

from pasta_jax.files.gguf import FORMATS

_TYPE = {"u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "b1": 7, "u8": 10, "i8": 11, "f8": 12}
_CODES = {format.name: code for code, format in FORMATS.items()}


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, list):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
    if isinstance(value, np.ndarray):
        return struct.pack("<IIQ", 9, _TYPE[value.dtype.str[1:]], value.size) + value.tobytes()
    value = np.bool_(value) if isinstance(value, bool) else np.uint32(value) if isinstance(value, int) else value
    return struct.pack("<I", _TYPE[np.dtype(value.dtype).str[1:]]) + value.tobytes()


def write_gguf(
    metadata: dict[str, Any],
    tensors: dict[str, tuple[tuple[int, ...], str, bytes]],
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """`tensors` maps names to (NumPy shape, format, data). NumPy scalars keep their type, ints become uint32."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(_text(key) + _value(value) for key, value in metadata.items())
    body = b""
    for name, (shape, type, data) in tensors.items():
        head += _text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", size) for size in shape[::-1])
        head += struct.pack("<IQ", _CODES[type], len(body))
        body += data + bytes(-len(data) % alignment)
    return head + bytes(-len(head) % alignment) + body
