"""Compare a trained model with its baseline; the last line on stdout is one JSON object. See configs/evaluate.py."""

import json

from absl import flags

from launch import cli
from pasta_jax.errors import PastaError
from pasta_jax.evaluate.settings import EvaluateSettings
from pasta_jax.files.remote import path_of
from pasta_jax.toy.settings import ToyEvaluationSettings

OUTPUT = flags.DEFINE_string("output", None, "of the toy task: JSON lines of all answers, as --output=answers.jsonl")
WORKDIR = flags.DEFINE_string(
    "workdir", None, "of other prompts: folder of answers and report, as --workdir=runs/evaluation"
)
LIMIT = flags.DEFINE_integer(
    "limit", None, "of other prompts: at most so many of each set, as --limit=80", lower_bound=1
)


def main(settings: EvaluateSettings | ToyEvaluationSettings) -> None:
    """Evaluate and print the report."""
    on_toy_task = isinstance(settings, ToyEvaluationSettings)
    if not on_toy_task and not WORKDIR.value:
        raise PastaError("--workdir is missing: pass a folder for the answers and the report")
    for flag in (WORKDIR, LIMIT) if on_toy_task else (OUTPUT,):
        if flag.value is not None:
            kind = "other prompts than the toy task's" if on_toy_task else "the toy task"
            raise PastaError(f"--{flag.name} is for {kind}; leave it out")
    from pasta_jax.evaluate import run as evaluate  # these import JAX, which would slow down --help
    from pasta_jax.toy import run as toy

    cli.announce_device()
    if on_toy_task:
        report = toy.run(settings, path_of(OUTPUT.value) if OUTPUT.value else None)
        text = toy.table(report)
    else:
        evaluation = evaluate.run(settings, path_of(WORKDIR.value), LIMIT.value)
        if evaluation is None:  # the first of several processes reports
            return
        text = evaluation.report.text()
        report = {"report": str(path_of(WORKDIR.value) / "report.json"), "sets": evaluation.report.products()}
    print(text)
    print(json.dumps(report))


if __name__ == "__main__":
    cli.run(main, default_config="configs/evaluate.py")
