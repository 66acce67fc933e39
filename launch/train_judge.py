"""Train a judge that reads, a reward model, on published verdicts; rerun to resume. See configs/train_judge.py."""

import dataclasses
import json

from absl import flags

from launch import cli
from pasta_jax.command.flags import folder_of
from pasta_jax.judges.settings import TrainJudgeSettings

WORKDIR = flags.DEFINE_string(
    "workdir", None, "folder of this run, as --workdir=runs/judge: a judge for each part of all questions"
)


def main(settings: TrainJudgeSettings) -> None:
    """Train the judges, or those that are missing; print a line for each, then JSON."""
    workdir = folder_of(WORKDIR)
    cli.announce_device()
    from pasta_jax.judges import training  # imports JAX, which --help does not need
    from pasta_jax.train.fit import StopSignal

    stop = StopSignal()
    reports = training.run(settings, workdir, stop.watch)
    for report in stop.finished(reports):
        print(report)
    print(json.dumps([dataclasses.asdict(report) for report in reports]))


if __name__ == "__main__":
    cli.run(main, default_config="configs/train_judge.py", large_pages=True, quiet=True)
