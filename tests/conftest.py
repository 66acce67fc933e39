"""Strict session: rank promotion raises, eight simulated devices, no network; programs compiled once and quickly."""

import gc
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# With few cores, simulated devices deadlock in the in-process all-reduce unless the thread pool is larger than
# their number.
os.environ.setdefault("NPROC", "32")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("GLIBC_TUNABLES", "")  # so that no command restarts itself (device/malloc.py)
# Most programs here run for less time than XLA's optimizations take. Its older code generator takes half the time, and
# one LLVM module per program a seventh less than several. Exceptions use `fully_compiled`; with 0 and no flags
# everything is compiled as for users.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_cpu_parallel_codegen_split_count=1"
    + " --xla_cpu_use_fusion_emitters=false" * (sys.version_info < (3, 12)),  # later versions abort at this flag
)
# Compiled programs are kept between runs and shared by the processes of one run. JAX keys them by program, flags,
# versions and machine. JAX_COMPILATION_CACHE_DIR="" compiles everything again.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    cache = os.environ.get("PASTA_JAX_CACHE") or os.path.expanduser("~/.cache/pasta_jax")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = os.path.join(cache, "programs_of_tests")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import jax
import pytest

from pasta_jax.device import compilation_cache
from pasta_jax.models.kernels.cpu.library import library
from pasta_jax.weights import prepare, source
from tests.helpers.few_programs import decode_with_few_programs

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
# Tracing makes many small objects that live; a fifth of its time went into looking for garbage among them.
gc.set_threshold(100_000, 50, 100)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests whose optional package is absent (helpers/requires.py)."""
    for item in items:
        for mark in [mark for mark in item.iter_markers() if mark.name in ("real", "tpu", "needs")]:
            what, modules, option = mark.args
            if any(importlib.util.find_spec(module) is None for module in modules):
                item.add_marker(pytest.mark.skip(reason=f"needs {what}: bash launch/setup.sh {option}"))


def pytest_collection_finish() -> None:
    """What was imported stays, so no collection of garbage looks at it again."""
    gc.freeze()


@pytest.fixture
def kernels_on_simulated_devices(monkeypatch: pytest.MonkeyPatch):
    """Decoding with our own kernels as users with one device do, if there is a compiler."""
    for module in (prepare, source):
        monkeypatch.setattr(module, "is_available", lambda: library() is not None)


@pytest.fixture(scope="module", autouse=True)
def forget_programs():
    """Modules share programs, until they take too many mappings of memory: each takes some."""
    yield
    compilation_cache.make_room(40_000)


@pytest.fixture(scope="module")
def own_programs():
    """Programs that no other module uses. JAX finds a compiled program by its function and arguments alone, however
    it was compiled or traced."""
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.fixture
def fully_compiled(own_programs):
    """For tests that run long, or that inspect the program as users run it."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="module")
def few_programs() -> Iterator[None]:
    """See few_programs.py."""
    with pytest.MonkeyPatch.context() as patch:
        decode_with_few_programs(patch)
        yield


@pytest.fixture
def sigint() -> Iterator[None]:
    """SIGINT as in a foreground process, also for child processes: shells start background jobs with it ignored."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.fixture
def answer(monkeypatch, capsys, tmp_path):
    """Run the decode command on a tiny model, in an empty folder, with flags; (stdout, stderr)."""
    from absl import flags
    from absl.testing import flagsaver

    from configs.decode import local
    from launch import decode
    from pasta_jax.answer import run as pipeline
    from pasta_jax.runs.settings import changed
    from tests.helpers.traces import tiny_model

    monkeypatch.setattr(pipeline, "load", lambda source, only_decoding, mesh: tiny_model())
    monkeypatch.chdir(tmp_path)
    flags.FLAGS.mark_as_parsed()

    def run(question: str = "", overrides: dict | None = None, **values) -> tuple[str, str]:
        few = {"decoding.widths": (), "decoding.rows": 3}  # programs: those of other tests
        short = {"request.max_tokens": 24, "request.temperature": 1.0, "question": question}
        with flagsaver.flagsaver(**values):
            decode.main(changed(local(), **few | short | (overrides or {})))
        return capsys.readouterr()

    return run
