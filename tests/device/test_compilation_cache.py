"""Compiled programs are kept by default, where the user's environment wants them; long compilations are displayed."""

import functools
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.monitoring
import pytest

from pasta_jax import progress
from pasta_jax.device import compilation_cache
from tests import ROOT

SCRIPT = """
import sys
from launch import cli

def main(config):
    assert "jax" not in sys.modules
    import jax
    import jax.numpy as jnp
    print(jax.config.jax_compilation_cache_dir, jax.config.jax_compilation_cache_max_size)
    for name in "abc":
        program = lambda x: x + ord(name)
        program.__name__ = name
        jax.jit(program)(jnp.ones(3)).block_until_ready()

cli.run(main, default_config="configs/judges.py", keep_programs={keep})
"""


API = """
{first}
import pasta_jax
pasta_jax.load_model
import jax
print(jax.config.jax_compilation_cache_dir)
"""


def compiled_in(folder: Path, script: str, **variables: str) -> tuple[str, str]:
    """stdout and stderr of a script, such as one that compiles a program, with its cache in a folder."""
    env = {name: value for name, value in os.environ.items() if "CACHE" not in name}
    env |= {"PYTHONPATH": str(ROOT), "PASTA_JAX_CACHE": str(folder)}
    env |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"} | variables
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    lines = result.stderr.splitlines(True)
    return result.stdout, "".join(line for line in lines if ": working … " not in line)  # on a busy machine


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keep", "variables", "shown"),
    [
        (True, {}, "{home}/xla 2147483648"),
        (True, {"JAX_COMPILATION_CACHE_DIR": "{home}/mine"}, "{home}/mine -1"),
        (True, {"JAX_COMPILATION_CACHE_DIR": ""}, " -1"),
        (True, {"JAX_ENABLE_COMPILATION_CACHE": "0"}, "{home}/xla 2147483648"),
        (False, {}, "None -1"),
    ],
)
def test_programs_are_kept_where_the_environment_wants_them(tmp_path, keep, variables, shown):
    (tmp_path / "xla").mkdir()
    (tmp_path / "xla/jit_old-cache").write_bytes(b"x")  # without a time of use, of which JAX would warn on stderr
    variables = {name: value.format(home=tmp_path) for name, value in variables.items()}
    assert compiled_in(tmp_path, SCRIPT.format(keep=keep), **variables) == (shown.format(home=tmp_path) + "\n", "")
    kept = {path.parent.name for path in tmp_path.rglob("*-cache") if path.name != "jit_old-cache"}
    folder = shown.partition(" ")[0].rpartition("/")[2]
    assert kept == ({folder} & {"xla", "mine"} if "JAX_ENABLE_COMPILATION_CACHE" not in variables else set())


@pytest.mark.slow
@pytest.mark.parametrize(("first", "shown"), [("", "{home}/xla"), ("import jax", "None")])
def test_the_api_keeps_programs_unless_its_user_has_imported_jax(tmp_path, first, shown):
    assert compiled_in(tmp_path, API.format(first=first)) == (shown.format(home=tmp_path) + "\n", "")


@pytest.mark.slow
def test_a_damaged_program_is_compiled_and_kept_again(tmp_path):
    def errors() -> str:
        return compiled_in(tmp_path, SCRIPT.format(keep=True), JAX_COMPILATION_CACHE_MAX_SIZE="-1")[1]

    assert errors() == ""
    cut, empty, folder = entries = [next(tmp_path.rglob(f"jit_{name}-*-cache")) for name in "abc"]
    cut.write_bytes(cut.read_bytes()[:99])
    empty.write_bytes(b"")
    folder.unlink()
    folder.mkdir()
    assert errors().count("damaged and is compiled again\n") == 3
    assert all(len(path.read_bytes()) > 100 for path in entries)
    assert errors() == ""


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """A cache of its own, whose variables are forgotten afterwards."""
    for name in ("JAX_COMPILATION_CACHE_DIR", "JAX_COMPILATION_CACHE_MAX_SIZE"):
        monkeypatch.setenv(name, "")  # what it had is restored
        monkeypatch.delenv(name)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setenv("PASTA_JAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("obstacle", ["cache", "cache/xla", "cache/xla/.lockfile"])
def test_a_cache_that_cannot_be_written_stops_nothing(cache, monkeypatch, capsys, obstacle):
    path = cache.parent / obstacle
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir() if path.name == ".lockfile" else path.touch()
    compilation_cache.keep()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ
    said = capsys.readouterr().err
    assert said.startswith(f"compiled programs are not kept for later runs: cache {cache}")
    assert (said.count("\n"), "set PASTA_JAX_CACHE" in said) == (1, True)


def test_the_time_of_use_of_another_users_program_may_stay(cache, monkeypatch, capsys):
    def denied(*_, **__):
        raise PermissionError(13, os.strerror(13))

    (cache / "xla").mkdir(parents=True)
    (cache / "xla/jit_old-1-cache").touch()
    monkeypatch.setattr(Path, "touch", denied)
    monkeypatch.setattr(Path, "unlink", denied)
    compilation_cache.keep()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(cache / "xla")
    warnings.showwarning("Error reading persistent compilation cache entry for 'jit_old'", UserWarning, "file", 1)
    assert capsys.readouterr().err.endswith("is damaged and is compiled again\n")


@pytest.fixture
def listeners(monkeypatch) -> Iterator[tuple[list, list]]:
    """What is registered at JAX, by its begin and its end; forgotten afterwards."""
    begins, ends = [], []
    with monkeypatch.context() as patch:
        patch.setattr(jax.monitoring, "register_scalar_listener", begins.append)
        patch.setattr(jax.monitoring, "register_event_duration_secs_listener", ends.append)
        yield begins, ends


def test_programs_are_forgotten_before_their_mappings_of_memory_run_out(monkeypatch):
    forgotten = []
    monkeypatch.setattr(jax, "clear_caches", lambda: forgotten.append(True))
    compilation_cache.make_room()
    assert not forgotten
    compilation_cache.make_room(10)
    assert forgotten == [True]


def test_compiling_is_displayed_and_counts_nested_phases_once(monkeypatch, listeners):
    monkeypatch.setattr(progress, "_running", [])
    now = [10.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    compiling = compilation_cache._registered.__wrapped__()
    (begin,), (end,) = listeners
    trace, _, xla = compilation_cache.PHASES
    for phases, took, total in (([trace, trace], 4.0, 4.0), ([xla], 1.0, 5.0)):
        for event in ("/another/event", *phases):
            begin(event, 0.0, fun_name="f")
        assert [one.what.partition(",")[0] for one in progress._running] == ["compiling"]
        now[0] += took
        for event in ("/another/event", *phases):
            end(event, 0.0, fun_name="f")
        assert (compiling.seconds, progress._running) == (total, [])


def test_threads_that_begin_at_once_are_registered_and_displayed_once(monkeypatch, listeners):
    """A second display would stay for ever."""
    monkeypatch.setattr(progress, "_running", [])
    monkeypatch.setattr(compilation_cache, "_registered", functools.cache(compilation_cache._registered.__wrapped__))
    others = []

    def interrupted(function: Callable, other: Callable) -> Callable:
        """The function, which another thread tries to overtake once it has begun."""

        def both(*arguments: object) -> object:
            if not others:
                others.append(threading.Thread(target=other))
                others[0].start()
                others[0].join(0.2)  # it waits for this thread
            return function(*arguments)

        return both

    register = jax.monitoring.register_scalar_listener
    with monkeypatch.context() as patch:
        patch.setattr(jax.monitoring, "register_scalar_listener", interrupted(register, compilation_cache._compiling))
        compiling = compilation_cache._compiling()
    others.pop().join()
    (begin,), (end,) = listeners
    event = compilation_cache.PHASES[0]
    monkeypatch.setattr(compilation_cache, "doing", interrupted(progress.doing, lambda: begin(event)))
    begin(event)
    others.pop().join()
    assert (compiling.depth, len(progress._running)) == (2, 1)
    end(event)
    end(event)
    assert (compiling.depth, progress._running) == (0, [])


def test_jax_reports_what_is_counted():
    begun, ended = [], []

    def begin(event: str, *_: float, **__: str) -> None:
        begun.append(event)

    def end(event: str, *_: float, **__: str) -> None:
        ended.append(event)

    jax.monitoring.register_scalar_listener(begin)
    jax.monitoring.register_event_duration_secs_listener(end)
    try:
        before = compilation_cache.seconds()
        jax.jit(lambda x: x * 3 + 17)(2.0)
    finally:
        jax.monitoring.unregister_scalar_listener(begin)
        jax.monitoring.unregister_event_duration_listener(end)
    assert set(compilation_cache.PHASES) <= set(begun)
    assert sorted(begun) == sorted(event for event in ended if event in begun)
    assert compilation_cache.seconds() > before
