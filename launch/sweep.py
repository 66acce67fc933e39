"""Runs of the preference stage over config fields: a grid or a zip, one table, one plot. See configs/sweep.py."""

import json
import os
import sys

from absl import flags
from ml_collections import ConfigDict

from launch import cli
from pasta_jax import settings
from pasta_jax.errors import PastaError
from pasta_jax.remote import path_of

WORKDIR = flags.DEFINE_string(
    "workdir",
    None,
    "folder of these runs, as --workdir=runs/toy_sweep: shared artifacts, a folder per run, results",
)


def main(config: ConfigDict) -> None:
    """Do all runs, or those that remain, and print the table."""
    if not WORKDIR.value:
        raise PastaError("--workdir is missing: set a folder for these runs")
    # JAX is imported here, so that --help and flag errors don't wait for it.
    from pasta_jax.pipelines import sweep
    from pasta_jax.train.fit import StopSignal

    cli.announce_device()
    stop = StopSignal()
    results = sweep.run(settings.read(config, sweep.Settings), path_of(WORKDIR.value), stop.watch)
    if results is None:
        sys.exit(stop.exit_code)
    print(sweep.markdown(results.rows), end="")
    print(json.dumps(results.row_fields()))
    results.refuse_failed()


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    cli.run(main, default_config="configs/sweep.py")
