"""Preference runs that kill themselves by SIGKILL in the middle of a step; run as a process, prints how each ended.

Each run is a process forked after the imports, before JAX starts its threads: the imports take longer than most steps.
"""

import json
import os
import signal
import sys
import traceback
from pathlib import Path

from jax._src import xla_bridge  # JAX has no public way to ask whether it has started
from ml_collections import ConfigDict

from pasta_jax import metrics, progress, settings
from pasta_jax.pipelines.preference import run


def die(*_) -> None:
    """No handler runs, and no file is closed."""
    os.kill(os.getpid(), signal.SIGKILL)


def run_until(config: ConfigDict, workdir: Path, where: str) -> None:
    """Run until the middle of a step; to the end if it is empty."""
    if where == "train":
        write = metrics.Metrics.write
        metrics.Metrics.write = lambda self, step, values: die() if step == 2 else write(self, step, values)
    elif where:
        add = progress.Progress.add
        progress.Progress.add = lambda self, n=1: die() if self.what == where and self.done + n > 2 else add(self, n)
    run.run(settings.read(config, run.Settings), workdir)


def end_of(config: ConfigDict, workdir: Path, where: str) -> int:
    """The exit code of a run in a process of its own."""
    assert not xla_bridge.backends_are_initialized()
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    try:
        run_until(config, workdir, where)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    steps = json.loads(sys.argv[3])
    print(json.dumps([end_of(ConfigDict(json.loads(sys.argv[1])), Path(sys.argv[2]), where) for where in steps]))
