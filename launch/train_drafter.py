"""Train a drafter on a model's own answers; rerun to resume. See configs/train_drafter.py."""

import dataclasses
import json

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
    print(json.dumps(dataclasses.asdict(stop.finished(report))))


if __name__ == "__main__":
    cli.run(main, default_config="configs/train_drafter.py", large_pages=True, quiet=True)
