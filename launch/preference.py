"""Rounds of sample, score, pair, learn, evaluate; rerun the command to resume. See configs/preference.py."""

import json
import shlex
import sys

from absl import flags

from launch import cli
from pasta_jax.command import console
from pasta_jax.command.flags import folder_of
from pasta_jax.errors import PastaError
from pasta_jax.preference.settings import PreferenceSettings
from pasta_jax.runs import processes

WORKDIR = flags.DEFINE_string(
    "workdir",
    None,
    "folder of this run, as --workdir=runs/toy_preference: artifacts, report, and the model at the end",
)


def main(settings: PreferenceSettings) -> None:
    """Run all rounds, or those that remain, and print the report."""
    workdir = folder_of(WORKDIR)
    # JAX is imported here, so that --help and flag errors don't wait for it.
    from pasta_jax.preference import run as preference
    from pasta_jax.train.fit import StopSignal

    cli.announce_device()
    command = shlex.join(["python", "-m", "launch.preference", *sys.argv[1:]])
    stop = StopSignal()
    report = stop.finished(preference.run(settings, workdir, stop.watch, command))
    if processes.is_first():
        print(report.table())
        if not report.no_pairs or any(row.kind == "round" for row in report.rows):
            console.print_next(WORKDIR.value, bool(settings.prompts.toy))
        print(json.dumps(report.fields()))
    if report.no_pairs:
        raise PastaError(report.no_pairs)


if __name__ == "__main__":
    cli.run(main, default_config="configs/preference.py", large_pages=True, quiet=True)
