"""Annotate a dataset and verify every record, resuming after any stop; show records. See configs/annotate.py."""

from absl import flags

from launch import cli
from pasta_jax.annotate.settings import AnnotateSettings
from pasta_jax.command.flags import folder_of
from pasta_jax.errors import PastaError
from pasta_jax.llm.client import EndpointDown

OUTPUT = flags.DEFINE_string(  # other scripts define it too, and a test process may import several
    "output",
    None,
    "folder for records, refusals and summary, as --output=runs/structure; rerun the same command to resume",
    allow_override=True,
)
INSPECT = flags.DEFINE_integer("inspect", None, "show N records of --output, chunks in colour, as --inspect=5")
FORKS = flags.DEFINE_bool("forks", False, "draw from the records with chunks only, as --inspect=5 --forks")
SEED = flags.DEFINE_integer("seed", 0, "seed that draws the records of --inspect, as --inspect=5 --seed=1")


def main(settings: AnnotateSettings) -> None:
    """Annotate, or show records of a finished run."""
    from pasta_jax.annotate import pipeline, terminal  # imports JAX; --help need not wait for it

    folder = folder_of(OUTPUT, "the records")
    if FORKS.value and INSPECT.value is None:
        raise PastaError("--forks: chooses among the records of --inspect; add --inspect=5")
    if INSPECT.value is not None:
        terminal.inspect(folder, INSPECT.value, SEED.value, FORKS.value)
        return
    if settings.annotator == "likelihood":
        cli.announce_device()
    summary = pipeline.run(settings, folder)
    if summary is None:  # the first of several processes reports
        return
    print(summary.text())
    if summary.unanswered:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in summary.unanswered.items())
        raise EndpointDown(f"pairs without an answer ({reasons}); rerun the command to ask for them again")
    if not summary.kept:
        raise PastaError(f"{folder}: no record was kept; refused.jsonl there says why of each")


if __name__ == "__main__":
    cli.run(main, default_config="configs/annotate.py")
