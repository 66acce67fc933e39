"""The block formats of quantized GGUF tensors, and how each becomes float32.

A tensor is a row of equal blocks; a block holds small integers q and the numbers that scale them. Written here are
the bytes of a block, as a structured dtype, and one equation for each format. All arithmetic is float32, in the order
written, so that the result is bit for bit that of the reference implementation.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

_CHUNK = 1 << 15  # blocks at a time: keeps the temporaries of a large embedding in the cache


class Format(NamedTuple):
    values: int  # numbers in a block
    block: np.dtype
    unpack: Callable[[np.ndarray], np.ndarray]  # blocks [n] -> float32 [n, values]


def dequantize(blocks: np.ndarray, format: Format) -> np.ndarray:
    """Blocks of one format to a flat float32 array."""
    out = np.empty((len(blocks), format.values), np.float32)
    # A damaged file may hold infinite scales; what they give is the reader's to judge, not a warning's.
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(blocks), _CHUNK):
            out[start : start + _CHUNK] = format.unpack(blocks[start : start + _CHUNK])
    return out.reshape(-1)


def _f32(column: np.ndarray) -> np.ndarray:
    """One number a block, [n] -> float32 [n, 1]."""
    return column.astype(np.float32)[:, None]


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """Low halves of all bytes, then their high halves: [..., m] -> [..., 2 m]."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _q4_0(b: np.ndarray) -> np.ndarray:
    return _f32(b["d"]) * (_nibbles(b["q"]).astype(np.float32) - 8)


def _q4_1(b: np.ndarray) -> np.ndarray:
    return _f32(b["d"]) * _nibbles(b["q"]).astype(np.float32) + _f32(b["m"])


def _q5_0(b: np.ndarray) -> np.ndarray:
    high = np.unpackbits(b["high"], axis=-1, bitorder="little")
    return _f32(b["d"]) * ((_nibbles(b["q"]) | high << 4).astype(np.float32) - 16)


def _q8_0(b: np.ndarray) -> np.ndarray:
    return _f32(b["d"]) * b["q"].astype(np.float32)


def _q4_k(b: np.ndarray) -> np.ndarray:
    """Eight runs of 32: d·scale·q − m·least, with 6-bit scales and leasts.

    Runs 0 to 3 have theirs in the low six bits of bytes 0 to 3 and 4 to 7; of runs 4 to 7 the low four bits are in the
    nibbles of bytes 8 to 11, the top two above the others' six.
    """
    packed = b["scales"]
    scale_head, least_head, tail = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scale = np.concatenate([scale_head & 63, (tail & 15) | (scale_head >> 6) << 4], axis=-1)
    least = np.concatenate([least_head & 63, (tail >> 4) | (least_head >> 6) << 4], axis=-1)
    q = _nibbles(b["q"].reshape(-1, 4, 32)).reshape(-1, 8, 32).astype(np.float32)
    scale, least = _f32(b["d"]) * scale.astype(np.float32), _f32(b["m"]) * least.astype(np.float32)
    return (scale[:, :, None] * q - least[:, :, None]).reshape(-1, 256)


def _q6_k(b: np.ndarray) -> np.ndarray:
    """Sixteen runs of 16: d·scale·(q − 32); four low bits of q in `low`, two high ones in `high`."""
    low = _nibbles(b["low"].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    high = b["high"].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    q = (low | high << 4).reshape(-1, 16, 16).astype(np.float32) - 32
    scale = _f32(b["d"]) * b["scales"].astype(np.float32)
    return (scale[:, :, None] * q).reshape(-1, 256)


def _bf16(b: np.ndarray) -> np.ndarray:
    return (b.astype(np.uint32) << 16).view(np.float32)[:, None]


FORMATS = {
    "F32": Format(1, np.dtype("<f4"), _f32),
    "F16": Format(1, np.dtype("<f2"), _f32),
    "BF16": Format(1, np.dtype("<u2"), _bf16),
    "Q4_0": Format(32, np.dtype([("d", "<f2"), ("q", "u1", 16)]), _q4_0),
    "Q4_1": Format(32, np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)]), _q4_1),
    "Q5_0": Format(32, np.dtype([("d", "<f2"), ("high", "u1", 4), ("q", "u1", 16)]), _q5_0),
    "Q8_0": Format(32, np.dtype([("d", "<f2"), ("q", "i1", 32)]), _q8_0),
    "Q4_K": Format(256, np.dtype([("d", "<f2"), ("m", "<f2"), ("scales", "u1", 12), ("q", "u1", 128)]), _q4_k),
    "Q6_K": Format(256, np.dtype([("low", "u1", 128), ("high", "u1", 64), ("scales", "i1", 16), ("d", "<f2")]), _q6_k),
}
