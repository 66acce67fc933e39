"""Products of codes as integers, to the bit: a group's sum is exact, and floats add in one order on every machine."""

import numpy as np
import pytest

from pasta_jax.models.kernels.cpu import library as kernels
from pasta_jax.models.kernels.cpu.calls import by_panels, of_blocks, path
from pasta_jax.models.kernels.cpu.quantized import Blocks
from tests.helpers.coded import in_halves, random_blocks, with_factors
from tests.models.kernels.cpu.test_calls import LEVELS, multiplied

every_level = pytest.mark.parametrize("library", LEVELS[1:], indirect=True)  # with integers
MOST = {8: np.float32(127), 16: np.float32(32512)}  # of an input's code
RANGES = {4: (0, 15), 6: (-32, 31), 8: (-128, 127)}


def expected(x: np.ndarray, matrix: Blocks, bits: int) -> np.ndarray:
    """The product with inputs of 8 or 16 bits, from sums in whole numbers."""
    plain, groups = matrix.in_float32(), (-1, matrix.codes.shape[1] // matrix.group, matrix.group)
    inputs_RxGxI = x.reshape(groups)
    largest_RxG = np.abs(inputs_RxGxI).max(axis=2)
    codes_RxGxI = np.rint(inputs_RxGxI * (MOST[bits] / largest_RxG)[:, :, None])
    scales_RxG = largest_RxG / MOST[bits]
    totals_RxG = scales_RxG * codes_RxGxI.sum(axis=2)
    dots_GxRxO = codes_RxGxI.astype(np.float64).swapaxes(0, 1) @ matrix.codes.reshape(groups).transpose(1, 2, 0)
    sums_RxO = np.zeros((len(x), len(matrix.codes)), np.float32)
    for group, dots_RxO in enumerate(dots_GxRxO.astype(np.float32)):
        sums_RxO = fused(dots_RxO * scales_RxG[:, group, None], plain.scales[:, group], sums_RxO)
        if plain.minimums is not None:
            sums_RxO = fused(totals_RxG[:, group, None], plain.minimums[:, group], sums_RxO)
    return sums_RxO


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a b + c, rounded once."""
    return (a.astype(np.float64) * b + c).astype(np.float32)


@every_level
@pytest.mark.parametrize("bits", MOST)
@pytest.mark.parametrize("size", RANGES)
def test_products_are_exact_to_the_bit(size, bits, library):
    rng = np.random.default_rng(size)
    for group in (16, 32, 48, 256):
        plain = random_blocks(rng, 70, 4, group, size, has_minimums=group > 16)
        for case, matrix in enumerate((plain, with_factors(rng, plain, 2), in_halves(plain))):
            x = rng.standard_normal((9 - case, 4 * group), np.float32)
            actual = multiplied(library, x, of_blocks(matrix), 70, bits=bits)
            np.testing.assert_array_equal(actual, expected(x, matrix, bits))


@every_level
@pytest.mark.parametrize("bits", MOST)
@pytest.mark.parametrize("size", RANGES)
def test_no_sum_overflows(size, bits, library):
    """The largest codes with the largest inputs, of one sign and of both, and with the largest in each plane."""
    rng, most = np.random.default_rng(0), MOST[bits]
    inputs = (
        np.array([1, -1]),
        np.array([1, (most - 128) / most, -(most - 128) / most, -1]),
        np.array([1]),
        np.array([-1]),
    )
    for group in (16, 32, 48, 256):
        scales = np.ones((40, 2), np.float32)
        for codes in (RANGES[size], RANGES[size][:1], RANGES[size][1:]):
            matrix = Blocks(rng.choice(codes, (40, 2 * group)).astype(np.int8), scales, None, size)
            for some in inputs:
                x = rng.choice(some, (8, 2 * group)).astype(np.float32)
                x[:, ::group] = some[0]
                for rows in (4, 8):  # with AVX-512, inputs of 16 bits in planes and in pairs
                    actual = multiplied(library, x[:rows], of_blocks(matrix), 40, bits=bits)
                    np.testing.assert_array_equal(actual, expected(x[:rows], matrix, bits))


def test_levels_agree_to_the_bit(library):
    """With all that is added too: minimums, and a low-rank pair."""
    levels = [level for level in LEVELS[1:] if library.pasta_level(level.encode())]
    if len(levels) < 2:
        pytest.skip("this machine has one level with integers")
    rng = np.random.default_rng(1)
    x = rng.standard_normal((9, 352), np.float32) * np.exp(rng.standard_normal((9, 1)) * 20).astype(np.float32)
    x[3, 5], x[4, 300] = np.inf, np.nan
    pair = {"a": rng.standard_normal((5, 352), np.float32), "b": by_panels(rng.standard_normal((300, 5), np.float32))}
    for size in RANGES:
        matrix = of_blocks(random_blocks(rng, 300, 11, 32, size, has_minimums=True)) | pair
        for bits in MOST:
            products = []
            for level in levels:
                assert library.pasta_level(level.encode())
                products.append(multiplied(library, x, matrix, 300, bits=bits))
            for other in products[1:]:
                np.testing.assert_array_equal(other, products[0])


def test_the_path_states_the_bits_of_inputs(library):
    level = library.pasta_level_name().decode()
    coded = of_blocks(random_blocks(np.random.default_rng(0), 40, 1, 32, 4, has_minimums=False))
    assert path({"kernel": np.zeros((32, 32))}) == "XLA"
    assert path({"panels": np.zeros((1, 32, 32))}) == level
    assert path(coded) == (level if level == "portable" else f"{level}, inputs of 16 bits")
    assert kernels.library().pasta_level(b"portable")
    assert path(coded | {"bits": np.int32(8)}) == "portable"
