"""The kernels' library: which compiler it is compiled by, how it is kept, and how many threads it has."""

import functools
import os
import stat
import subprocess
import sys

import pytest

from pasta_jax.errors import PastaError
from pasta_jax.models.kernels.cpu import library as kernels
from tests import ROOT

WRITES = [sys.executable, "-c", "import sys; open(sys.argv[-1], 'w').write('compiled')"]


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """No library yet, here or in the cache."""
    monkeypatch.setenv("PASTA_JAX_CACHE", str(tmp_path))
    # The session's library stays loaded for the tests after this one: compiling it takes half a minute.
    monkeypatch.setattr(kernels, "library", functools.cache(kernels.library.__wrapped__))
    return tmp_path


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
    monkeypatch.setattr(kernels, "compilers", lambda: [["no-such-compiler"], WRITES])
    path = kernels.compiled()
    assert path.read_text() == "compiled"
    monkeypatch.setattr(kernels, "compilers", list)
    assert kernels.compiled() == path
    monkeypatch.setattr(kernels, "FLAGS", (*kernels.FLAGS, "-O1"))
    kernels.version.cache_clear()
    with pytest.raises(PastaError, match=r"no C\+\+ compiler"):
        kernels.compiled()
    kernels.version.cache_clear()


def test_the_library_is_this_users_alone_whatever_the_umask(fresh, monkeypatch):
    monkeypatch.setattr(kernels, "compilers", lambda: [WRITES])
    monkeypatch.setenv("PASTA_JAX_CACHE", str(fresh / "new"))
    before = os.umask(0o002)
    try:
        path = kernels.compiled()
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(one.stat().st_mode) for one in (fresh / "new", path, path.with_suffix(".sha256"))]
    assert modes == [0o700, 0o700, 0o600]


def test_an_old_assembler_needs_no_new_instructions(fresh, monkeypatch):
    check = "import sys; '-DWITHOUT_AVXVNNI' in sys.argv or sys.exit('Error: no such instruction'); "
    monkeypatch.setattr(kernels, "compilers", lambda: [[*WRITES[:-1], check + WRITES[-1]]])
    assert kernels.compiled().read_text() == "compiled"


@pytest.mark.parametrize("damage", ["", "compi", "planted!"])
def test_a_damaged_library_is_compiled_again(damage, fresh, monkeypatch):
    monkeypatch.setattr(kernels, "compilers", lambda: [WRITES])
    path = kernels.compiled()
    path.write_text(damage)
    assert kernels.compiled() == path
    assert path.read_text() == "compiled"
    path.with_suffix(".sha256").unlink()
    monkeypatch.setattr(kernels, "compilers", list)
    with pytest.raises(PastaError, match=r"no C\+\+ compiler"):
        kernels.compiled()


@pytest.mark.parametrize("place", ["kernels", "kernels/rows.so", "."])
@pytest.mark.parametrize("whose", ["another user's", "writable by others"])
def test_a_library_that_others_could_write_is_never_loaded(place, whose, fresh, monkeypatch):
    monkeypatch.setattr(kernels, "compilers", lambda: [WRITES])
    path = kernels.compiled()
    target = path if place.endswith(".so") else fresh / place
    if whose == "writable by others":
        target.chmod(0o777)
    elif os.geteuid():
        pytest.skip("only root can give a file away")
    else:
        os.chown(target, 54321, -1)
    with pytest.raises(PastaError, match="other users can write there; set PASTA_JAX_CACHE"):
        kernels.compiled()


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


@pytest.mark.extended
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(sanitizer, tmp_path):
    compiler = next((command for command in kernels.compilers() if "ziglang" not in command), None)
    if compiler is None:
        pytest.skip("needs a C++ compiler with sanitizers")
    empty, sanitize = tmp_path / "empty.cc", f"-fsanitize={sanitizer}"
    empty.write_text("int main() {}\n")
    if subprocess.run([*compiler, sanitize, str(empty), "-o", str(tmp_path / "empty")], capture_output=True).returncode:
        pytest.skip("needs the compiler's sanitizer libraries")
    # Without optimisations they see as much, and compile in a third of the time.
    program, flags = str(tmp_path / "products"), [flag for flag in kernels.FLAGS if flag != "-shared"]
    flags += ["-O0", "-g1", sanitize, "-fno-sanitize-recover=all"]
    flags += [f"-I{kernels.SOURCE.parent}", f"-I{kernels.headers()}"]
    source = str(ROOT / "tests/models/kernels/cpu/kernels_main.cc")
    built = subprocess.run([*compiler, *flags, source, "-o", program], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    # The thread sanitizer can't follow a fork's own threads, and would end the process.
    env = os.environ | {"TSAN_OPTIONS": "die_after_fork=0"}
    done = subprocess.run([program], capture_output=True, text=True, timeout=300, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 0 0\n", "")
