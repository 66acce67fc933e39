"""The kernels are compared with NumPy in float64, on every instruction set that this machine has."""

import ctypes
import os
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pasta_jax.errors import PastaError
from pasta_jax.models.kernels import library as kernels
from pasta_jax.models.kernels.calls import attend, by_codes, by_panels, product, rows_of
from tests.layout import ROOT

LEVELS = ("portable", "avx2", "avx512")


@pytest.fixture
def library():
    found = kernels.library()
    if found is None:
        pytest.skip("needs a C++ compiler")
    yield found
    found.pasta_level(b"")
    found.pasta_threads(kernels.cores())


def at_any_address(array: np.ndarray, elements: int) -> np.ndarray:
    """A copy that begins a number of elements after an address which a cache line divides."""
    room = np.empty(array.size + 32, array.dtype)
    start = -(room.ctypes.data // room.itemsize) % 16 + elements
    copy = room[start : start + array.size].reshape(array.shape)
    copy[...] = array
    return copy


def multiplied(library, x_NxI: np.ndarray, matrix_OxI: np.ndarray, shift: int = 0, coded=None) -> np.ndarray:
    """The product by the library, of codes if there are, which must write nothing else than the result."""
    (rows, inputs), outputs = x_NxI.shape, len(matrix_OxI)
    matrix = {"panels": by_panels(matrix_OxI)} if coded is None else coded
    x, parts = at_any_address(x_NxI, shift), {name: at_any_address(part, shift) for name, part in matrix.items()}
    w, codes, scales = (parts.get(name) for name in ("panels", "codes", "scales"))
    y = at_any_address(np.full(rows * outputs + 64, -7, np.float32), shift)
    arrays = (x, w, codes, scales, y[32:])
    pointers = [None if array is None else array.ctypes.data_as(ctypes.c_void_p) for array in arrays]
    library.pasta_multiply(*pointers, *map(ctypes.c_int64, (rows, inputs, outputs)))
    assert (y[:32] == -7).all()
    assert (y[32 + rows * outputs :] == -7).all()
    return y[32 : 32 + rows * outputs].reshape(rows, outputs).copy()


@pytest.mark.parametrize("level", LEVELS)
def test_products_equal_numpys(level, library):
    if not library.pasta_level(level.encode()):
        pytest.skip(f"this machine has no {level}")
    rng = np.random.default_rng(0)
    for case in range(48):
        library.pasta_threads(case % 8 + 1)
        rows, inputs, outputs = (int(n) for n in rng.integers(1, (20, 200, 300)))
        x = rng.standard_normal((rows, inputs), np.float32)
        matrix = rng.standard_normal((outputs, inputs), np.float32)
        expected = x.astype(np.float64) @ matrix.T.astype(np.float64)
        actual = multiplied(library, x, matrix, case % 16)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-4, err_msg=f"{rows} x {inputs} x {outputs}")


def numbers(coded: dict[str, np.ndarray], outputs: int) -> np.ndarray:
    """The matrix [out, in] that codes and scales stand for."""
    panels = coded["codes"] * np.repeat(coded["scales"], 32, axis=1)
    return panels.swapaxes(1, 2).reshape(-1, panels.shape[1])[:outputs]


@pytest.mark.parametrize("level", LEVELS)
def test_products_of_codes_are_those_of_their_numbers(level, library):
    if not library.pasta_level(level.encode()):
        pytest.skip(f"this machine has no {level}")
    rng = np.random.default_rng(6)
    for case in range(24):
        library.pasta_threads(case % 8 + 1)
        rows, inputs, outputs = (int(n) for n in rng.integers(1, (20, 8, 300)) * (1, 32, 1))
        x, matrix = rng.standard_normal((rows, inputs), np.float32), rng.standard_normal((outputs, inputs), np.float32)
        matrix[rng.integers(outputs), :32] = 0
        coded = by_codes(matrix)
        expected = multiplied(library, x, numbers(coded, outputs), case % 16)
        np.testing.assert_array_equal(multiplied(library, x, matrix, case % 16, coded), expected)
        blocks = matrix.reshape(-1, 32)
        error = np.abs(numbers(coded, outputs).reshape(-1, 32) - blocks).max(axis=1)
        assert (error <= np.abs(blocks).max(axis=1) / 127 * 0.501).all()


def test_codes_of_8_bits_are_kept_as_they_are():
    rng = np.random.default_rng(7)
    codes = rng.integers(-127, 128, (70, 64)).astype(np.int8)
    codes[:, ::32] = 127  # as in Q8_0: the largest of a block has this code
    scales = rng.random((70, 2)).astype(np.float16).astype(np.float32)
    coded = by_codes(codes * np.repeat(scales, 32, axis=1))
    np.testing.assert_array_equal(coded["codes"], by_panels(codes))
    np.testing.assert_array_equal(coded["scales"], by_panels(scales))


def test_a_row_depends_on_no_other_and_not_on_threads(library):
    rng = np.random.default_rng(1)
    x, matrix = rng.standard_normal((17, 333), np.float32), rng.standard_normal((1000, 333), np.float32)
    alone = np.concatenate([multiplied(library, x[row : row + 1], matrix) for row in range(17)])
    for threads in range(1, 9):
        library.pasta_threads(threads)
        for rows in (2, 3, 7, 8, 9, 17):
            np.testing.assert_array_equal(multiplied(library, x[:rows], matrix), alone[:rows])


def test_nan_and_infinity_stay_in_their_row_and_column(library):
    x, matrix = np.ones((5, 40), np.float32), np.ones((70, 40), np.float32)
    x[1, 3], x[2, 4], matrix[66, 5] = np.nan, np.inf, -np.inf
    expected = np.full((5, 70), 40, np.float32)
    expected[:, 66], expected[1], expected[2] = -np.inf, np.nan, np.inf
    expected[2, 66] = np.nan
    np.testing.assert_array_equal(multiplied(library, x, matrix), expected)


def test_several_callers_at_a_time(library):
    library.pasta_threads(4)
    rng = np.random.default_rng(2)
    x, matrix = rng.standard_normal((4, 300), np.float32), rng.standard_normal((900, 300), np.float32)
    expected, wrong = multiplied(library, x, matrix), []

    def call() -> None:
        for _ in range(100):
            wrong.append((multiplied(library, x, matrix) != expected).sum())

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
    lib.pasta_multiply(x, w, None, None, y, *map(ctypes.c_int64, (1, 50, 1000)))
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


def test_the_product_in_a_program(library):
    rng = np.random.default_rng(3)
    x, matrix = rng.standard_normal((3, 64), np.float32), rng.standard_normal((50, 64), np.float32)
    some = np.array([[0, 33], [49, 7]])
    for stored in ({"panels": by_panels(matrix)}, by_codes(matrix)):
        meant = matrix if "panels" in stored else numbers(stored, 50)
        result = jax.jit(lambda x, stored: product(2 * x, stored, 50))(x, stored)
        np.testing.assert_allclose(result, 2 * x @ meant.T, atol=2e-5)
        np.testing.assert_array_equal(rows_of(stored, some), meant[some])
        with pytest.raises(jax.errors.JaxRuntimeError, match="rows, panels and result don't fit"):
            product(jnp.asarray(x), jax.tree.map(lambda part: jnp.asarray(part[:1]), stored), 50)


def attended(q, k, v, see, scale: float, cap: float | None) -> np.ndarray:
    """Attention by NumPy in float64; zero where nothing is visible."""
    scores = np.einsum("btkgd,bksd->btkgs", q, k, dtype=np.float64) * scale
    scores = scores if cap is None else cap * np.tanh(scores / cap)
    weights = np.where(see[:, :, None, None], np.exp(scores - scores.max(-1, keepdims=True)), 0)
    total = weights.sum(-1, keepdims=True)
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return np.einsum("btkgs,bksd->btkgd", weights, v)


def random_attention(lanes: int, rows: int, heads: int, groups: int, slots: int, dims: int, seed: int):
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((lanes, rows, heads, groups, dims), np.float32)
    k, v = rng.standard_normal((2, lanes, heads, slots, dims), np.float32)
    see = rng.random((lanes, rows, slots)) < rng.random((lanes, rows, 1))
    see[0, 0] = False
    return q, k, v, see


@pytest.mark.parametrize("level", LEVELS)
def test_attention_equals_numpys(level, library):
    if not library.pasta_level(level.encode()):
        pytest.skip(f"this machine has no {level}")
    rng = np.random.default_rng(4)
    for case in range(40):
        library.pasta_threads(case % 8 + 1)
        sizes = [int(n) for n in rng.integers(1, (4, 5, 4, 8, 150, 150))]  # lanes, rows, heads, groups, slots, dims
        scale = sizes[-1] ** -0.5
        q, k, v, see = random_attention(*sizes, seed=case)
        out = at_any_address(np.full_like(q, -7), case % 16)
        arrays = [at_any_address(array, case % 16) for array in (q, k, v, see)]
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (*arrays, out, np.asarray(sizes, np.int64))]
        cap = 3.0 if case % 2 else None
        library.pasta_attend(*pointers, ctypes.c_float(scale), ctypes.c_float(cap or 0))
        np.testing.assert_allclose(out, attended(q, k, v, see, scale, cap), rtol=0, atol=5e-6, err_msg=str(sizes))
        assert not out[0, 0].any()


def test_attention_in_a_program_ignores_hidden_slots_whatever_they_hold(library):
    q, k, v, see = random_attention(2, 3, 2, 3, 40, 16, seed=5)
    expected = attended(q, k, v, see, 0.25, None)
    for pool in (k, v):
        pool[~see.any(axis=1)[:, None].repeat(2, axis=1)] = np.nan
    result = jax.jit(lambda *arrays: attend(*arrays, 0.25, None))(q, k, v, see)
    np.testing.assert_allclose(result, expected, atol=5e-6)
    with pytest.raises(jax.errors.JaxRuntimeError, match="queries, keys, values and mask don't fit"):
        attend(*map(jnp.asarray, (q, k, v, see[:, :, 1:])), 0.25, None)


def test_attention_to_extreme_scores(library):
    """Scores of 1e4 and -1e4 leave one visible slot; an undefined one leaves nothing."""
    q, k = np.ones((1, 1, 1, 2, 4), np.float32), np.zeros((1, 1, 3, 4), np.float32)
    v = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    see = np.ones((1, 1, 3), bool)
    k[0, 0, :, 0] = 1e4, -1e4, 0
    np.testing.assert_array_equal(attend(q, k, v, see, 1.0, None)[0, 0, 0, 1], v[0, 0, 0])
    k[0, 0, 1, 0] = np.nan
    assert np.isnan(attend(q, k, v, see, 1.0, None)).all()


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """No library yet, here or in the cache."""
    monkeypatch.setenv("PASTA_JAX_CACHE", str(tmp_path))
    kernels.library.cache_clear()
    yield tmp_path
    kernels.library.cache_clear()


@pytest.mark.parametrize(
    ("commands", "line"),
    [
        ([], "no C++ compiler; install g++ or clang++, or: pip install ziglang"),
        ([["no-such-compiler"]], "no-such-compiler: [Errno 2] No such file or directory: 'no-such-compiler'"),
        ([[sys.executable, "-c", "import sys; sys.exit('a\\nrows.cc:1: error: b')"]], "rows.cc:1: error: b"),
    ],
)
def test_without_a_compiler_one_line_says_so(commands, line, fresh, monkeypatch, capsys):
    monkeypatch.setattr(kernels, "compilers", lambda: commands)
    assert kernels.library() is None
    [said] = capsys.readouterr().err.splitlines()
    assert said.startswith("decoding with XLA's products, which are slower with several rows: ")
    assert said.endswith(line)
    assert not list(fresh.rglob("*.so"))


def test_a_second_compiler_is_tried_and_a_library_is_kept(fresh, monkeypatch):
    writes = [sys.executable, "-c", "import sys; open(sys.argv[-1], 'w').write('compiled')"]
    monkeypatch.setattr(kernels, "compilers", lambda: [["no-such-compiler"], writes])
    path = kernels.compiled()
    assert path.read_text() == "compiled"
    monkeypatch.setattr(kernels, "compilers", list)
    assert kernels.compiled() == path
    monkeypatch.setattr(kernels, "FLAGS", (*kernels.FLAGS, "-O1"))
    kernels.version.cache_clear()
    with pytest.raises(PastaError, match=r"no C\+\+ compiler"):
        kernels.compiled()
    kernels.version.cache_clear()


def test_ziglang_comes_after_the_systems_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "my-c++ -m64")
    monkeypatch.setattr(kernels.shutil, "which", lambda name: name if name in ("my-c++", "g++") else None)
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: name)
    zig = [sys.executable, "-m", "ziglang", "c++"]
    assert kernels.compilers() == [["my-c++", "-m64"], zig]
    monkeypatch.delenv("CXX")
    assert kernels.compilers() == [["g++"], zig]


def test_a_thread_per_physical_core_within_the_quota(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels.os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    assert kernels.cores(tmp_path) == 4
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        file = tmp_path / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        file.parent.mkdir(parents=True)
        file.write_text(siblings)
    assert kernels.cores(tmp_path) == 2
    (tmp_path / "fs/cgroup").mkdir(parents=True)
    for quota, expected in (("max 100000", 2), ("150000 100000\n", 1), ("50000 100000\n", 1), ("900000 100000\n", 2)):
        (tmp_path / "fs/cgroup/cpu.max").write_text(quota)
        assert kernels.cores(tmp_path) == expected


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(sanitizer, tmp_path):
    compiler = next((command for command in kernels.compilers() if "ziglang" not in command), None)
    if compiler is None:
        pytest.skip("needs a C++ compiler with sanitizers")
    program, flags = str(tmp_path / "products"), [flag for flag in kernels.FLAGS if flag != "-shared"]
    sources = [str(kernels.SOURCE), str(ROOT / "tests/kernels_main.cc")]
    flags += ["-g", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", f"-I{kernels.headers()}"]
    built = subprocess.run([*compiler, *flags, *sources, "-o", program], capture_output=True, text=True)
    if "sanitize" in built.stderr or "asan" in built.stderr or "tsan" in built.stderr:
        pytest.skip("needs the compiler's sanitizer libraries")
    assert built.returncode == 0, built.stderr
    # The thread sanitizer can't follow a fork's own threads, and would end the process.
    env = os.environ | {"TSAN_OPTIONS": "die_after_fork=0"}
    done = subprocess.run([program], capture_output=True, text=True, timeout=300, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 0 0\n", "")
