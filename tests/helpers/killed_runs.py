"""A preference run that kills itself by SIGKILL in the middle of a step; to be run in a fork."""

import json
import os
import signal
from pathlib import Path

import jax
import pytest
from ml_collections import ConfigDict

from pasta_jax import progress
from pasta_jax.preference import run
from pasta_jax.runs import metrics, settings
from tests.helpers.few_programs import decode_with_few_programs


def die(*_) -> None:
    """No handler runs, and no file is closed."""
    os.kill(os.getpid(), signal.SIGKILL)


def run_until(config: str, workdir: Path, where: str) -> None:
    """Run a config, as JSON, until the middle of a step; to the end if it is empty. On eight devices."""
    jax.config.update("jax_num_cpu_devices", 8)
    decode_with_few_programs(pytest.MonkeyPatch())
    if where == "train":
        write = metrics.Metrics.write
        metrics.Metrics.write = lambda self, step, values: die() if step == 2 else write(self, step, values)
    elif where:
        add = progress.Progress.add
        progress.Progress.add = lambda self, n=1: die() if self.what == where and self.done + n > 2 else add(self, n)
    run.run(settings.read(ConfigDict(json.loads(config)), run.Settings), workdir)
