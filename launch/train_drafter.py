"""Train a drafter on a model's own answers; rerun to resume. See configs/train_drafter.py."""

import dataclasses
import json
import os
import sys

from absl import flags

from launch import cli
from pasta_jax.command.flags import folder_of
from pasta_jax.train.settings import DrafterSettings

WORKDIR = flags.DEFINE_string("workdir", None, "folder of this run, as --workdir=runs/drafter; the drafter is in it")


def main(settings: DrafterSettings) -> None:
    """Train, and print how often it guesses right as JSON."""
    workdir = folder_of(WORKDIR)
    cli.announce_device()
    from pasta_jax.train import drafter  # imports JAX, which --help does not need
    from pasta_jax.train.fit import StopSignal

    stop = StopSignal()
    with stop.watch() as stopping:
        report = drafter.run(settings, workdir, stopping)
    if report is None:
        sys.exit(stop.exit_code)
    print(json.dumps(dataclasses.asdict(report)))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    cli.run(main, default_config="configs/train_drafter.py", large_pages=True)
