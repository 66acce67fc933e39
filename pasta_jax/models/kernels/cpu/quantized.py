"""The blocks of quantised GGUF files as codes, scales and minimums: weight = code * scale + minimum.

Nothing is rounded: codes, scales and minimums are the file's, in its types. Formats whose names end in K state scales
and minimums in bytes, times a factor for each block of 256 inputs; so are they kept.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

GROUP = 32  # inputs with one scale, in most formats


@dataclasses.dataclass(frozen=True)
class Blocks:
    """A matrix [out, in] of codes. Each output has a scale, and a minimum if there are any, per group of inputs."""

    codes: np.ndarray  # int8 [O, I]
    scales: np.ndarray  # float32 or float16 [O, I / group]; int8 with factors
    minimums: np.ndarray | None  # as `scales`
    bits: int  # 4: codes from 0 to 15; 6: from -32 to 31; 8
    factors: np.ndarray | None = None  # float16 [O, I / 256]: of scales, if these are bytes
    floors: np.ndarray | None = None  # float16 [O, I / 256]: of minimums

    @property
    def group(self) -> int:
        """Inputs with one scale."""
        return self.codes.shape[1] // self.scales.shape[1]

    def in_float32(self) -> "Blocks":
        """The same with scales and minimums in float32."""
        minimums = None if self.minimums is None else _whole(self.minimums, self.floors)
        return Blocks(self.codes, _whole(self.scales, self.factors), minimums, self.bits)


def _whole(field: np.ndarray, factors: np.ndarray | None) -> np.ndarray:
    """Numbers, or bytes times the factors of their blocks, in float32."""
    numbers = field.astype(np.float32)
    return numbers if factors is None else numbers * np.repeat(factors, field.shape[1] // factors.shape[1], axis=1)


def read(stored: np.ndarray, format: str, shape: tuple[int, int]) -> Blocks:
    """A matrix from its bytes in a GGUF file, in one of FORMATS."""
    bits, size, parse = FORMATS[format]
    codes, *others = parse(stored.reshape(-1, size))
    fields = [None if field is None else field.reshape(shape[0], -1) for field in others]
    scales, minimums, factors, floors = fields + [None] * (4 - len(fields))
    return Blocks(codes.reshape(shape).astype(np.int8), scales, minimums, bits, factors, floors)


def joined(parts: dict[str, Blocks], join: Callable[[dict[str, np.ndarray]], np.ndarray]) -> Blocks:
    """One matrix of several: `join` joins their codes, scales and minimums, once these are alike in all parts."""
    if len({part.scales.dtype for part in parts.values()}) > 1:
        parts = {name: part.in_float32() for name, part in parts.items()}
    has_minimums = any(part.minimums is not None for part in parts.values())
    group = min(part.group for part in parts.values())

    def of_groups(part: Blocks, field: np.ndarray | None) -> np.ndarray:
        field = np.zeros_like(part.scales) if field is None else field
        return np.repeat(field, part.group // group, axis=1)

    def each(field: Callable[[Blocks], np.ndarray]) -> np.ndarray:
        return join({name: field(part) for name, part in parts.items()})

    has_factors = all(part.factors is not None for part in parts.values())
    return Blocks(
        each(lambda part: part.codes),
        each(lambda part: of_groups(part, part.scales)),
        each(lambda part: of_groups(part, part.minimums)) if has_minimums else None,
        max(part.bits for part in parts.values()),
        each(lambda part: part.factors) if has_factors else None,
        each(lambda part: np.zeros_like(part.factors) if part.floors is None else part.floors)
        if has_factors and has_minimums
        else None,
    )


# Of blocks, block by block: codes, scales, minimums, and of these two the factors, if there are any.
Parsed = tuple[np.ndarray | None, ...]


def _q4_0(blocks: np.ndarray) -> Parsed:
    scales = _numbers(blocks[:, :2])
    with np.errstate(over="ignore"):
        minimums = scales * np.float16(-8)
    if np.isfinite(minimums).all():
        return _halves(blocks[:, 2:]), scales, minimums
    scales = scales.astype(np.float32)
    return _halves(blocks[:, 2:]), scales, -8 * scales


def _q4_1(blocks: np.ndarray) -> Parsed:
    return _halves(blocks[:, 4:]), _numbers(blocks[:, :2]), _numbers(blocks[:, 2:4])


def _q5_0(blocks: np.ndarray) -> Parsed:
    return (_halves(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])).astype(np.int8) - 16, _numbers(blocks[:, :2]), None


def _q5_1(blocks: np.ndarray) -> Parsed:
    return _halves(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8]), _numbers(blocks[:, :2]), _numbers(blocks[:, 2:4])


def _q8_0(blocks: np.ndarray) -> Parsed:
    return np.ascontiguousarray(blocks[:, 2:]).view(np.int8), _numbers(blocks[:, :2]), None


def _q4_k(blocks: np.ndarray) -> Parsed:
    pairs = blocks[:, 16:].reshape(-1, 4, 1, 32)  # of groups: one in the low halves of bytes, one in the high ones
    return np.concatenate((pairs & 15, pairs >> 4), axis=2), *_scales_k(blocks)


def _q5_k(blocks: np.ndarray) -> Parsed:
    pairs = blocks[:, 48:].reshape(-1, 4, 1, 32)
    low = np.concatenate((pairs & 15, pairs >> 4), axis=2).reshape(-1, 8, 32)
    fifth = blocks[:, 16:48].reshape(-1, 1, 32) >> np.arange(8, dtype=np.uint8)[None, :, None] & 1
    return low | fifth << 4, *_scales_k(blocks)


def _q6_k(blocks: np.ndarray) -> Parsed:
    low, high = blocks[:, :128].reshape(-1, 2, 1, 64), blocks[:, 128:192].reshape(-1, 2, 1, 32)
    low = np.concatenate((low & 15, low >> 4), axis=2).reshape(-1, 2, 4, 32)
    high = high >> np.arange(0, 8, 2, dtype=np.uint8)[None, None, :, None] & 3
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    return (low | high << 4).astype(np.int8) - 32, scales, None, _numbers(blocks[:, 208:]), None


def _scales_k(blocks: np.ndarray) -> Parsed:
    """Scales and minimums of Q4_K and Q5_K: eight groups' numbers of 6 bits each, and the block's two factors."""
    low, middle, high = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate((low & 63, high & 15 | low >> 6 << 4), axis=1)
    minimums = np.concatenate((middle & 63, high >> 4 | middle >> 6 << 4), axis=1)
    small = scales.astype(np.int8), minimums.astype(np.int8)
    return *small, _numbers(blocks[:, :2]), -_numbers(blocks[:, 2:4])


def _numbers(halves: np.ndarray) -> np.ndarray:
    """Numbers of 16 bits, [N, 1]."""
    return np.ascontiguousarray(halves).view(np.float16)


def _halves(stored: np.ndarray) -> np.ndarray:
    """The codes of 4 bits of 32 values: the first sixteen in the low halves of the bytes."""
    return np.concatenate((stored & 15, stored >> 4), axis=1)


def _fifth_bits(stored: np.ndarray) -> np.ndarray:
    """A bit for each of 32 values, at its place in a code."""
    return np.unpackbits(np.ascontiguousarray(stored), axis=1, bitorder="little") << 4


# Formats with codes and scales: bits of a code, bytes of a block, and what reads it.
FORMATS: dict[str, tuple[int, int, Callable[[np.ndarray], Parsed]]] = {
    "Q4_0": (4, 18, _q4_0),
    "Q4_1": (4, 20, _q4_1),
    "Q5_0": (6, 22, _q5_0),
    "Q5_1": (6, 24, _q5_1),
    "Q8_0": (8, 34, _q8_0),
    "Q4_K": (4, 144, _q4_k),
    "Q5_K": (6, 176, _q5_k),
    "Q6_K": (6, 210, _q6_k),
}
