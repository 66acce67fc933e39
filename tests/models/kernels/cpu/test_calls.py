"""Products are compared with NumPy in float64, on every instruction set that this machine has."""

import ctypes
import dataclasses
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pasta_jax.models.kernels.cpu import library as kernels
from pasta_jax.models.kernels.cpu.calls import by_codes, by_panels, gated, of_blocks, product, rows_of, waves
from pasta_jax.models.kernels.cpu.quantized import Blocks
from tests.helpers.coded import in_halves, numbers, random_blocks, with_factors

LEVELS = "portable", "avx2", "avxvnni", "avx512", "vnni"
every_level = pytest.mark.parametrize("library", LEVELS, indirect=True)


def at_any_address(array: np.ndarray, elements: int) -> np.ndarray:
    """A copy that begins a number of elements after an address which a cache line divides."""
    room = np.empty(array.size + 32, array.dtype)
    start = -(room.ctypes.data // room.itemsize) % 16 + elements
    copy = room[start : start + array.size].reshape(array.shape)
    copy[...] = array
    return copy


def multiplied(
    library, x_NxI: np.ndarray, matrix: dict[str, np.ndarray], outputs: int, shift: int = 0, bits: int = 32
) -> np.ndarray:
    """The product by the library, which must write nothing else than the result."""
    rows, inputs = x_NxI.shape
    parts = {name: at_any_address(part, shift) for name, part in matrix.items()}
    weights = parts.get("panels", parts.get("codes"))
    kind = {"float32": 0, "bfloat16": 1, "uint32": weights.shape[2]}[weights.dtype.name]  # see operands.h
    group = inputs // parts["scales"].shape[1] if "scales" in parts else inputs
    block = inputs // parts["factors"].shape[1] if "factors" in parts else inputs
    width = parts["scales"].itemsize * 8 if "scales" in parts else 32
    sizes = np.array([rows, inputs, outputs, kind, group, block, len(parts.get("a", ())), width, bits], np.int64)
    y = at_any_address(np.full(rows * outputs + 64, -7, np.float32), shift)
    others = [parts.get(name) for name in ("scales", "minimums", "factors", "floors", "a", "b")]
    x = at_any_address(x_NxI, shift)
    library.pasta_multiply(pointer(x), *map(pointer, (weights, *others, y[32:], sizes)))
    assert (y[:32] == -7).all()
    assert (y[32 + rows * outputs :] == -7).all()
    return y[32 : 32 + rows * outputs].reshape(rows, outputs).copy()


def pointer(array: np.ndarray | None) -> ctypes.c_void_p | None:
    return None if array is None else array.ctypes.data_as(ctypes.c_void_p)


def plain(matrix_OxI: np.ndarray) -> dict[str, np.ndarray]:
    return {"panels": by_panels(matrix_OxI)}


@every_level
def test_products_equal_numpys(library):
    rng = np.random.default_rng(0)
    for case in range(48):
        library.pasta_threads(case % 8 + 1)
        rows, inputs, outputs = (int(n) for n in rng.integers(1, (20, 200, 300)))
        x = rng.standard_normal((rows, inputs), np.float32)
        matrix = rng.standard_normal((outputs, inputs), np.float32)
        expected = x.astype(np.float64) @ matrix.T.astype(np.float64)
        actual = multiplied(library, x, plain(matrix), outputs, case % 16)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-4, err_msg=f"{rows} x {inputs} x {outputs}")
        halves = matrix.astype(ml_dtypes.bfloat16)
        exact = multiplied(library, x, plain(halves.astype(np.float32)), outputs, case % 16)
        np.testing.assert_array_equal(multiplied(library, x, plain(halves), outputs, case % 16), exact)


@every_level
def test_products_of_codes_are_those_of_their_numbers(library):
    """Inputs rounded to 16 or 8 bits err as much as their group's largest allows, times the weight."""
    rng = np.random.default_rng(6)
    for case in range(96):
        library.pasta_threads(case % 8 + 1)
        rows, groups, outputs, rank = (int(n) for n in rng.integers(1, (20, 8, 300, 9)))
        group, bits, has_minimums = (16, 32, 64, 272)[case % 4], (4, 6, 8)[case % 3], case % 5 < 3
        matrix = random_blocks(rng, outputs, groups, group, bits, has_minimums)
        if case % 7 < 4:
            matrix = with_factors(rng, matrix, next(blocks for blocks in (3, 2, 1) if groups % blocks == 0))
        elif case % 7 < 6:
            matrix = in_halves(matrix)
        pair = rng.standard_normal((rank, matrix.codes.shape[1]), np.float32), rng.standard_normal((outputs, rank))
        stored, meant = of_blocks(matrix), numbers(matrix).astype(np.float64)
        x = rng.standard_normal((rows, matrix.codes.shape[1]), np.float32)
        x[0, :group] = 0
        expected, error = x @ meant.T, np.abs(x).sum(1).max() * np.abs(meant).max()
        if case % 5:
            stored |= {"a": pair[0], "b": by_panels(pair[1].astype(np.float32))}
            expected += x @ (pair[1] @ pair[0]).T
            error = np.maximum(error, np.abs(x).sum(1).max() * np.abs(pair[1] @ pair[0]).max())
        for inputs, rounding in ((32, 0), (16, 1 / 65024), (8, 1 / 254)):
            actual = multiplied(library, x, stored, outputs, case % 16, inputs)
            steps = np.abs(x).reshape(rows, groups, group).max(2).repeat(group, axis=1) * rounding
            allowed = 3e-6 * error + 1.01 * steps @ np.abs(meant).T + 1e-6
            np.testing.assert_array_less(np.abs(actual - expected), allowed)


@every_level
def test_what_rounding_changes_is_multiplied_by_the_weight(library):
    """A code and its minimum may cancel out; were only the code's input rounded, the rounding would remain."""
    x = np.random.default_rng(0).standard_normal((3, 256), np.float32)
    for factor in (1, 2):
        codes, scales = np.full((40, 256), 8, np.int8), np.full((40, 8), factor, np.float32)
        zero = of_blocks(Blocks(codes, scales, -8 * scales, 4))
        for inputs in (8, 16, 32):
            np.testing.assert_allclose(multiplied(library, x, zero, 40, bits=inputs), 0, atol=2e-4)


def test_a_matrix_of_numbers_as_codes_of_8_bits():
    rng = np.random.default_rng(6)
    matrix = rng.standard_normal((70, 96), np.float32)
    matrix[3, :32] = 0
    blocks = matrix.reshape(-1, 32)
    error = np.abs(rows_of(by_codes(matrix), np.arange(70)).reshape(-1, 32) - blocks).max(axis=1)
    assert (error <= np.abs(blocks).max(axis=1) / 127 * 0.501).all()


def test_codes_of_8_bits_are_kept_as_they_are():
    rng = np.random.default_rng(7)
    codes = rng.integers(-127, 128, (70, 64)).astype(np.int8)
    codes[:, ::32] = 127  # as in Q8_0: the largest of a block has this code
    scales = rng.random((70, 2)).astype(np.float16).astype(np.float32)
    coded = by_codes(codes * np.repeat(scales, 32, axis=1))
    expected = of_blocks(Blocks(codes, scales, None, bits=8))
    jax.tree.map(np.testing.assert_array_equal, coded, expected)


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("kind", ["numbers", "halves", 4, 6, 8])
def test_a_row_depends_on_no_other_and_not_on_threads(kind, bits, library):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((17, 352), np.float32)
    if kind in ("numbers", "halves"):
        dtype = np.float32 if kind == "numbers" else ml_dtypes.bfloat16
        matrix, x = plain(rng.standard_normal((1000, 333)).astype(dtype)), x[:, :333].copy()
    else:
        matrix = of_blocks(random_blocks(rng, 1000, 11, 32, kind, has_minimums=True))
        matrix |= {"a": rng.standard_normal((5, 352), np.float32), "b": rng.standard_normal((32, 5, 32), np.float32)}
    alone = np.concatenate([multiplied(library, x[row : row + 1], matrix, 1000, bits=bits) for row in range(17)])
    for threads in range(1, 9):
        library.pasta_threads(threads)
        for rows in (2, 3, 4, 5, 6, 7, 8, 9, 17):
            np.testing.assert_array_equal(multiplied(library, x[:rows], matrix, 1000, bits=bits), alone[:rows])
    empty = np.zeros_like(x)
    for used in (0, 1, 7, 9, 16):  # rows of zeros at the end are not multiplied
        some = np.concatenate([x[:used], empty[used:]])
        some[used // 2 : used // 2 + 1] = 0
        found = multiplied(library, some, matrix, 1000, bits=bits)
        kept = np.any(some, axis=1)
        np.testing.assert_array_equal(found[kept], alone[kept])
        assert not found[~kept].any()


def test_nan_and_infinity_stay_in_their_row_and_column(library):
    x, matrix = np.ones((5, 64), np.float32), np.ones((70, 64), np.float32)
    x[1, 3], x[2, 4], matrix[66, 5] = np.nan, np.inf, -np.inf
    expected = np.full((5, 70), 64, np.float32)
    expected[:, 66], expected[1], expected[2] = -np.inf, np.nan, np.inf
    expected[2, 66] = np.nan
    np.testing.assert_array_equal(multiplied(library, x, plain(matrix), 70), expected)
    scales = np.ones((70, 2), np.float32)
    scales[66, 1] = -np.inf
    for bits in (4, 6, 8):
        coded = of_blocks(Blocks(np.ones((70, 64), np.int8), scales, None, bits))
        for inputs in (8, 16, 32):
            np.testing.assert_array_equal(multiplied(library, x, coded, 70, bits=inputs).round(4), expected)


def test_several_callers_at_a_time(library):
    library.pasta_threads(4)
    rng = np.random.default_rng(2)
    x, matrix = rng.standard_normal((4, 300), np.float32), rng.standard_normal((900, 300), np.float32)
    expected, wrong = multiplied(library, x, plain(matrix), 900), []

    def call() -> None:
        for _ in range(100):
            wrong.append((multiplied(library, x, plain(matrix), 900) != expected).sum())

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(wrong) == 400
    assert not any(wrong)


FORKS = """
import ctypes, os, sys
lib = ctypes.CDLL(sys.argv[1])
lib.pasta_threads(4)
x, w, y = ((ctypes.c_float * n)(*[1.0] * n) for n in (50, 500 * 1024, 1024))
def product():
    ctypes.memset(y, 0, 4096)
    sizes = (ctypes.c_int64 * 9)(1, 50, 1000, 0, 50, 50, 0, 32, 32)
    lib.pasta_multiply(x, w, None, None, None, None, None, None, y, sizes)
    return all(value == 50 for value in y[:1000])
assert product()
child = os.fork()
if child == 0:
    sys.exit(not all(product() for _ in range(50)))
assert os.waitpid(child, 0)[1] == 0
assert product()
"""


def test_a_fork_has_threads_of_its_own_and_all_exit(library):
    path = str(kernels.compiled())
    done = subprocess.run([sys.executable, "-Ic", FORKS, path], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@every_level
def test_scales_that_are_subnormal_in_16_bits_count_in_a_program(library):
    """Most factors of Q6_K are. XLA's threads read subnormal floats as 0, those that call a kernel directly don't."""
    rng = np.random.default_rng(4)
    x, halves = rng.standard_normal((3, 64), np.float32), np.array([6e-8, 1.2e-5, 6.1e-5, -3e-5], np.float16)
    for one in (random_blocks(rng, 50, 2, 32, 6, False), with_factors(rng, random_blocks(rng, 50, 2, 32, 8, False), 2)):
        name = "scales" if one.factors is None else "factors"
        small = rng.choice(halves, getattr(one, name).shape).astype(np.float16)
        matrix = dataclasses.replace(one, **{name: small})
        result = jax.jit(lambda x, stored: product(x, stored, 50))(x, of_blocks(matrix) | {"bits": np.int32(32)})
        np.testing.assert_allclose(result, x @ numbers(matrix).T, rtol=1e-4, atol=1e-6 * np.abs(numbers(matrix)).max())


def test_the_product_in_a_program(library):
    rng = np.random.default_rng(3)
    x, matrix = rng.standard_normal((3, 64), np.float32), rng.standard_normal((50, 64), np.float32)
    coded = [random_blocks(rng, 50, 2, 32, bits, bits < 8) for bits in (4, 6, 8)]
    coded += [with_factors(rng, coded[0], 1), with_factors(rng, coded[2], 2), in_halves(coded[1])]
    some = np.array([[0, 33], [49, 7]])
    for stored, meant in (
        (plain(matrix), matrix),
        (plain(matrix.astype(ml_dtypes.bfloat16)), matrix.astype(ml_dtypes.bfloat16).astype(np.float32)),
        *((of_blocks(one) | {"bits": np.int32(32)}, numbers(one)) for one in coded),
    ):
        result = jax.jit(lambda x, stored: product(2 * x, stored, 50))(x, stored)
        error = 1e-5 * np.abs(meant).max()
        np.testing.assert_allclose(result, 2 * x @ meant.T, rtol=0, atol=2 * error)
        np.testing.assert_array_equal(rows_of(stored, some), meant[some])
        with pytest.raises(jax.errors.JaxRuntimeError, match="rows, panels and result don't fit"):
            product(
                jnp.asarray(x),
                {name: jnp.asarray(part[:1] if part.ndim else part) for name, part in stored.items()},
                50,
            )
        rows = rng.standard_normal((3, 64), np.float32)
        exact = stored | {"exact": by_panels(rows), "exact_at": np.arange(32, 35)}
        replaced = np.concatenate((meant[:32], rows, meant[35:]))
        np.testing.assert_allclose(product(x, exact, 50), x @ replaced.T, rtol=0, atol=error)
        np.testing.assert_array_equal(rows_of(exact, some), replaced[some])


@pytest.mark.parametrize(
    ("field", "shape", "dtype"),
    [
        pytest.param("codes", (2, 4, 2, 32), np.int32, id="codes of another type"),
        pytest.param("codes", (2, 3, 2, 32), np.uint32, id="codes of fewer inputs"),
        pytest.param("codes", (2, 4, 5, 32), np.uint32, id="codes of 10 bits"),
        pytest.param("codes", (2, 8, 32), np.uint32, id="flat codes"),
        pytest.param("scales", (2, 3, 32), np.float32, id="groups that divide no inputs"),
        pytest.param("scales", (2, 8, 32), np.float32, id="groups of eight inputs"),
        pytest.param("scales", (2, 0, 32), np.float32, id="no groups"),
        pytest.param("scales", (2, 2, 32), np.int32, id="scales of another type"),
        pytest.param("minimums", (2, 1, 32), np.float32, id="fewer minimums"),
        pytest.param("scales", (2, 2, 32), np.int8, id="bytes without factors"),
        pytest.param("factors", (2, 1, 32), np.float16, id="factors of numbers"),
        pytest.param("a", (3, 32), np.float32, id="a pair of other inputs"),
        pytest.param("b", (2, 4, 32), np.float32, id="a pair of another rank"),
    ],
)
def test_fields_that_do_not_fit_are_refused(field, shape, dtype, library):
    """Beside a matrix [64, 64] of nibbles with 32 inputs in a group."""
    matrix = of_blocks(random_blocks(np.random.default_rng(0), 64, 2, 32, bits=4, has_minimums=True))
    matrix |= {"a": np.zeros((3, 64), np.float32), "b": np.zeros((2, 3, 32), np.float32)}
    x = np.zeros((1, 64), np.float32)
    product(x, matrix, 64)
    with pytest.raises(jax.errors.JaxRuntimeError, match="rows, panels and result don't fit"):
        product(x, matrix | {field: np.zeros(shape, dtype)}, 64)


def test_cosines_and_sines_are_those_of_xla(library):
    angles = np.random.default_rng(5).uniform(-1e5, 1e5, (2, 3, 1, 32)).astype(np.float32)
    mine, xlas = jax.jit(waves)(angles), jax.jit(lambda x: (jnp.cos(x), jnp.sin(x)))(angles)
    for one, other in zip(mine, xlas, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1.2e-7)


@every_level
@pytest.mark.parametrize(("slope", "cubic"), [(1.0, 0.0), (1.5957691, 0.0713548)], ids=["silu", "gelu"])
def test_gates_are_those_of_float64_and_depend_on_no_other_row(slope, cubic, library):
    rng = np.random.default_rng(6)
    pairs = rng.normal(0, 4, (1, 9, 2 * 1011)).astype(np.float32)  # no whole vectors; two threads share nine rows
    pairs[0, 0, :12] = 0, 1, 100, 1, -100, 1, 1e25, 1, np.nan, 1, 1, np.nan
    mine = np.asarray(jax.jit(lambda x: gated(x, slope, cubic))(pairs))
    gate, up = (pairs[..., at::2].astype(np.float64) for at in range(2))
    with np.errstate(over="ignore"):
        expected = gate / (1 + np.exp(-slope * gate - cubic * gate**3)) * up
    np.testing.assert_allclose(mine, expected, rtol=2e-5, atol=1e-30)
    for row in range(9):
        np.testing.assert_array_equal(gated(pairs[:, row : row + 1], slope, cubic), mine[:, row : row + 1])


def test_pairs_that_do_not_fit_are_refused(library):
    with pytest.raises(jax.errors.JaxRuntimeError, match="pairs and result don't fit"):
        gated(np.zeros((1, 1, 5), np.float32), 1.0, 0.0)
