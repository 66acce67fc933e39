"""Teach a model to fork, from its own answers; rerun the command to resume. See configs/teach.py."""

from absl import flags

from launch import cli
from pasta_jax.command.flags import folder_of
from pasta_jax.teaching.settings import TeachSettings

WORKDIR = flags.DEFINE_string(  # other scripts have one too, and a test process may import several
    "workdir", None, "folder of everything that comes of it, as --workdir=runs/teach", allow_override=True
)
PLAN = flags.DEFINE_bool("plan", False, "print stages, commands, tokens, memory and hours, as --plan, and stop")


def main(settings: TeachSettings) -> None:
    """Print the plan, or teach."""
    workdir = folder_of(WORKDIR, "what comes of it")
    cli.announce_device()
    from pasta_jax.teaching import plan, run  # import JAX; --help need not wait for it
    from pasta_jax.train.fit import StopSignal

    estimate = plan.estimate(settings, workdir)
    print(plan.text(estimate), flush=True)
    if PLAN.value:
        return
    stop = StopSignal()
    adapter = stop.finished(run.run(settings, workdir, stop.watch))
    print(run.closing(settings, workdir, adapter), flush=True)


if __name__ == "__main__":
    cli.run(main, default_config="configs/teach.py", large_pages=True, quiet=True)
