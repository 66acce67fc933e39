"""Compiled programs are kept by default, where the user's environment wants them; long compilations are announced."""

import os
import subprocess
import sys
from collections.abc import Iterator

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
    jax.jit(lambda x: x + 1)(jnp.ones(3)).block_until_ready()

cli.run(main, default_config="configs/judges.py", keep_programs={keep})
"""


def start(tmp_path, keep: bool = True, **settings: str) -> list[str]:
    """What JAX reads in a script that is run with these settings: its folder and the limit of its size."""
    env = {name: value for name, value in os.environ.items() if "CACHE" not in name}
    env |= {"PYTHONPATH": str(ROOT), "PASTA_JAX_CACHE": str(tmp_path), **settings}
    env |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    command = [sys.executable, "-c", SCRIPT.format(keep=keep)]
    result = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    errors = [line for line in result.stderr.splitlines() if ": working … " not in line]  # on a busy machine
    assert (result.returncode, errors) == (0, [])
    return result.stdout.rstrip("\n").split(" ")


@pytest.mark.slow
def test_programs_are_kept_in_the_users_cache_with_a_limit(tmp_path):
    assert start(tmp_path) == [f"{tmp_path}/xla", str(2 << 30)]
    assert list((tmp_path / "xla").glob("*-cache"))


@pytest.mark.slow
def test_a_folder_that_is_set_is_used_as_it_is(tmp_path):
    assert start(tmp_path, JAX_COMPILATION_CACHE_DIR=f"{tmp_path}/mine") == [f"{tmp_path}/mine", "-1"]
    assert list((tmp_path / "mine").glob("*-cache"))
    assert not (tmp_path / "xla").exists()


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"JAX_COMPILATION_CACHE_DIR": ""}, {"JAX_ENABLE_COMPILATION_CACHE": "0"}])
def test_nothing_is_kept_where_it_is_switched_off(tmp_path, settings):
    start(tmp_path, **settings)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_script_with_an_environment_of_its_own_keeps_nothing(tmp_path):
    assert start(tmp_path, keep=False) == ["None", "-1"]
    assert "keep_programs=False" in (ROOT / "launch/compile_tpu.py").read_text()


def test_a_cache_that_cannot_be_written_stops_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    (tmp_path / "file").touch()
    monkeypatch.setenv("PASTA_JAX_CACHE", str(tmp_path / "file/cache"))
    compilation_cache.keep()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ
    assert capsys.readouterr().err.startswith("compiled programs are not kept for later runs: cache ")


@pytest.mark.slow
def test_programs_without_a_time_of_use_do_not_stop_later_ones_from_being_kept(tmp_path):
    (tmp_path / "xla").mkdir()
    (tmp_path / "xla/jit_old-cache").write_bytes(b"x")
    start(tmp_path)  # JAX would warn on stderr
    assert len(list((tmp_path / "xla").glob("*-cache"))) > 1


class FakeTimer:
    """Records what a timer would do, without time passing."""

    made: list["FakeTimer"]

    def __init__(self, seconds: float, function, arguments: list[str]):
        self.line, self.is_running = arguments[0], False
        FakeTimer.made.append(self)

    def start(self):
        self.is_running = True

    def cancel(self):
        self.is_running = False


@pytest.fixture
def listeners(monkeypatch) -> Iterator[tuple[list, list]]:
    """What is registered at JAX, by its begin and its end; forgotten afterwards."""
    begins, ends = [], []
    with monkeypatch.context() as patch:
        patch.setattr(jax.monitoring, "register_scalar_listener", begins.append)
        patch.setattr(jax.monitoring, "register_event_duration_secs_listener", ends.append)
        yield begins, ends


def test_a_line_is_due_while_jax_compiles_and_no_longer(monkeypatch, listeners):
    FakeTimer.made = []
    monkeypatch.setattr(compilation_cache.threading, "Timer", FakeTimer)
    compilation_cache.announce.__wrapped__()
    (begin,), (end,) = listeners
    begin(compilation_cache.XLA, 1.0)
    assert [timer.is_running for timer in FakeTimer.made] == [True]
    assert FakeTimer.made[0].line.startswith("compiling …")
    assert progress._activities[-1]() == "compiling … 0:00"
    end("/another/event", 1.0)
    assert FakeTimer.made[0].is_running
    end(compilation_cache.XLA, 1.0)
    assert not FakeTimer.made[0].is_running
    assert not progress._activities


def test_programs_are_forgotten_before_their_mappings_of_memory_run_out(monkeypatch):
    forgotten = []
    monkeypatch.setattr(jax, "clear_caches", lambda: forgotten.append(True))
    compilation_cache.make_room()
    assert not forgotten
    compilation_cache.make_room(10)
    assert forgotten == [True]


def test_the_seconds_of_compiling_are_those_of_jax_and_count_nested_phases_once(monkeypatch, listeners):
    now = iter([10.0, 14.0, 20.0, 21.0])
    monkeypatch.setattr(compilation_cache.time, "perf_counter", lambda: next(now))
    spent = compilation_cache._spent.__wrapped__()
    (begin,), (end,) = listeners
    trace, _, xla = compilation_cache.PHASES
    for event in (trace, trace):
        begin(event, 0.0, fun_name="f")
    for event in (trace, trace):
        end(event, 0.0, fun_name="f")
    assert spent.seconds == 4
    begin(xla, 0.0)
    end(xla, 0.0)
    assert spent.seconds == 5


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
