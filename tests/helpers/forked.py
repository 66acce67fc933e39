"""Functions and commands in forks of a process that has imported what they need: imports take longer than most tests.

The process has not started JAX when it is forked, so each fork has its own devices, programs, signals and end.
"""

import atexit
import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path

# What most commands import, and pytest, since the functions that are forked live in files of tests.
import pytest

from pasta_jax.answer import run as decode  # noqa: F401
from pasta_jax.evaluate import run as evaluate_text  # noqa: F401
from pasta_jax.preference import sweep  # noqa: F401
from pasta_jax.serve import run as serve  # noqa: F401
from pasta_jax.train import sft  # noqa: F401
from tests import ROOT
from tests.helpers.few_programs import decode_with_few_programs

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__])


class Forked:
    """A function that runs in a fork, with files in a folder as its stdout and stderr."""

    def __init__(self, folder: Path, call: Callable[..., None], *arguments: object):
        written = len(list(folder.glob("fork*.out")))
        self._out, self._err = (folder / f"fork{written}.{name}" for name in ("out", "err"))
        self._out.touch()  # the next fork has other files
        self._process = FORKS.Process(target=_run, args=(self._out, self._err, call, arguments))
        self._process.start()

    def poll(self) -> int | None:
        """The exit code, or None if it still runs after a moment: loops that poll leave it the processor."""
        self._process.join(0.02)
        return self._process.exitcode

    def wait(self, until: Callable[[], bool]) -> None:
        """Until something is so, which must be before the end."""
        while not until():
            assert self.poll() is None, self.errors()

    def send_signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def errors(self) -> str:
        """What was written to stderr by now."""
        return self._err.read_text() if self._err.exists() else ""

    def output(self) -> str:
        """What was written to stdout by now."""
        return self._out.read_text()

    def finish(self, code: int = 0) -> str:
        """Wait for its end with an exit code; its stdout."""
        self._process.join(timeout=300)
        assert self.poll() == code, self.errors()
        return self.output()

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)
        self.finish(-signal.SIGKILL)


def command(folder: Path, script: str, *arguments: str) -> Forked:
    """A launch script in a fork."""
    return Forked(folder, launch, script, *arguments)


def _run(out: Path, err: Path, call: Callable[..., None], arguments: tuple) -> None:
    for stream, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND), stream)
    as_command(call, *arguments)


def as_command(call: Callable[..., None], *arguments: object) -> None:
    """Call a function in a fork as if it were a command."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a foreground process
    try:
        call(*arguments)
    finally:
        atexit._run_exitfuncs()  # which multiprocessing leaves out: processes of one run wait for each other


def launch(script: str, *arguments: str) -> None:
    """Run a launch script from the repository root, and end as it ends; it decodes with few programs."""
    os.chdir(ROOT)
    decode_with_few_programs(pytest.MonkeyPatch())
    sys.argv = [script, *arguments]
    runpy.run_module(f"launch.{script}", run_name="__main__", alter_sys=True)
