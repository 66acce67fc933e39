"""Runs of the preference stage over config fields: a grid or a zip, one table, one plot. See configs/sweep.py."""

import json
import sys

from absl import flags

from launch import cli
from pasta_jax.command.console import as_typed
from pasta_jax.command.flags import folder_of
from pasta_jax.preference.settings import SweepSettings

WORKDIR = flags.DEFINE_string(
    "workdir",
    None,
    "folder of these runs, as --workdir=runs/toy_sweep: shared artifacts, a folder per run, results",
)
POINT = flags.DEFINE_string("point", None, "do one run only, by its name, as --point=quality_weight=2.0")


def main(settings: SweepSettings) -> None:
    """Do all runs, or those that remain, and print the table."""
    workdir = folder_of(WORKDIR, "these runs")
    # JAX is imported here, so that --help and flag errors don't wait for it.
    from pasta_jax.preference import sweep
    from pasta_jax.train.fit import StopSignal

    stop = StopSignal()
    if settings.executor == "commands":
        print(as_typed("\n".join(sweep.commands(settings, workdir, ["python", "-m", "launch.sweep", *sys.argv[1:]]))))
        return
    if settings.executor == "local":  # the devices of the others are those of their workers
        cli.announce_device()
    if POINT.value:
        stop.finished(sweep.run_point(settings, workdir, POINT.value, stop.watch))
        return
    results = stop.finished(sweep.run(settings, workdir, stop.watch))
    print(sweep.markdown(results), end="")
    path, no_pairs = str(workdir / "results.json"), results.no_pairs()
    print(json.dumps({"results": path, "runs": len(results.runs), "no_pairs": no_pairs, "failed": results.failed}))
    results.refuse_failed()


if __name__ == "__main__":
    cli.run(main, default_config="configs/sweep.py", quiet=True)
