"""Train a model on PASTA-LANG; rerun the command to resume. See configs/sft.py."""

import shlex
import sys

from absl import flags

from launch import cli
from pasta_jax.command import console
from pasta_jax.command.flags import folder_of
from pasta_jax.runs import processes
from pasta_jax.train.settings import SftSettings

WORKDIR = flags.DEFINE_string(  # other scripts have one too, and a test process may import several
    "workdir",
    None,
    "folder of this run, as --workdir=runs/toy: checkpoints, metrics, and the model at the end",
    allow_override=True,
)


def main(settings: SftSettings) -> None:
    """Train, or resume training."""
    workdir = folder_of(WORKDIR)
    cli.announce_device()
    # JAX is imported here, so that --help and flag errors don't wait for it.
    from pasta_jax.train import sft
    from pasta_jax.train.fit import StopSignal

    command = shlex.join(["python", "-m", "launch.sft", *sys.argv[1:]])
    stop = StopSignal()
    with stop.watch() as stopping:
        result = sft.run(settings, workdir, stopping, command)
    stop.finished(result.model)
    if processes.is_first():
        base = settings.model.named() if result.model.name == "adapter" else ""
        console.print_next(WORKDIR.value, bool(settings.data.toy), base)


if __name__ == "__main__":
    cli.run(main, default_config="configs/sft.py", large_pages=True, quiet=True)
