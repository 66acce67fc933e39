"""Matrices of random codes, as the CPU kernels multiply them."""

import dataclasses

import numpy as np

from pasta_jax.models.kernels.cpu.quantized import Blocks


def random_blocks(rng, outputs: int, groups: int, group: int, bits: int, has_minimums: bool) -> Blocks:
    """A matrix of random codes; a group of its inputs is zero."""
    low, high = {4: (0, 16), 6: (-32, 32), 8: (-128, 128)}[bits]
    codes = rng.integers(low, high, (outputs, groups * group)).astype(np.int8)
    scales, minimums = rng.standard_normal((2, outputs, groups), np.float32)
    scales[rng.integers(outputs), 0] = 0
    return Blocks(codes, scales, minimums if has_minimums else None, bits)


def numbers(matrix: Blocks) -> np.ndarray:
    """The weights in float32."""
    plain = matrix.in_float32()
    minimums = 0 if plain.minimums is None else np.repeat(plain.minimums, matrix.group, axis=1)
    return matrix.codes * np.repeat(plain.scales, matrix.group, axis=1) + minimums


def in_halves(matrix: Blocks) -> Blocks:
    """Scales and minimums in 16 bits, the smallest and the largest among them."""
    matrix.scales[0, 0], matrix.scales[-1, -1] = 6e-8, -60000
    minimums = None if matrix.minimums is None else matrix.minimums.astype(np.float16)
    return dataclasses.replace(matrix, scales=matrix.scales.astype(np.float16), minimums=minimums)


def with_factors(rng, matrix: Blocks, blocks: int) -> Blocks:
    """Other scales and minimums, in bytes with a factor for each block."""
    factors, floors = (rng.standard_normal((2, len(matrix.codes), blocks)) / 64).astype(np.float16)
    scales, minimums = rng.integers(-128, 128, (2, *matrix.scales.shape)).astype(np.int8)
    if matrix.minimums is None:
        return dataclasses.replace(matrix, scales=scales, factors=factors)
    return dataclasses.replace(matrix, scales=scales, factors=factors, minimums=minimums, floors=floors)
