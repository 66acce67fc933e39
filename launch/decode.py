"""Answer a prompt, or a file of them: text as it is decoded, results, traces and pictures. See configs/decode.py."""

import time

from absl import flags

from launch import cli
from pasta_jax.answer.job import Outputs, read_job
from pasta_jax.answer.settings import DecodeSettings
from pasta_jax.command.flags import file_of
from pasta_jax.errors import PastaError
from pasta_jax.progress import say
from pasta_jax.runs.settings import changed

PROMPT = flags.DEFINE_string(
    "prompt",
    None,
    "the question, as --prompt='Why is the sky blue?', or with --config.chat=False the text to continue; "
    "- reads it from stdin",
)
PROMPTS_FILE = flags.DEFINE_string(
    "prompts_file", None, "JSON lines or a list, with `prompt` or `instruction`, as --prompts_file=questions.jsonl"
)
PROGRAM = flags.DEFINE_string(
    "program", None, "replay an answer in PASTA-LANG instead of sampling one, as --program=docs/example.txt"
)
SEQUENTIAL = flags.DEFINE_bool("sequential", None, "forbid the tags, as --sequential; else the config's")
ROWS = flags.DEFINE_integer("rows", None, "threads of a request decoded at once, as --rows=4; else the config's")
LANES = flags.DEFINE_integer("lanes", None, "requests decoded at once, as --lanes=8; else the config's")
LIVE = flags.DEFINE_enum(
    "live", "auto", ["auto", "yes", "no"], "show threads side by side while they run, as --live=no; auto: on a terminal"
)
SLOW = flags.DEFINE_bool("slow", False, "show the threads at reading speed, after the answer was decoded, as --slow")
JSON = flags.DEFINE_bool("json", False, "print one JSON object per answer instead of text, as --json")
COMPARE = flags.DEFINE_bool(
    "compare",
    False,
    "answer with tags and sequentially (by the baseline, if one is set), and compare times and steps, as --compare",
)
OUTPUT = flags.DEFINE_string(  # other scripts have this flag too, and a test process may import both
    "output",
    None,
    "write the results in the order of the prompts: JSON lines, as --output=out.jsonl, or for AlpacaEval one list, as "
    "--output=out.json; rerun the same command to resume a stopped run",
    allow_override=True,
)
BASELINE = flags.DEFINE_string(
    "baseline", None, "the --output of a --sequential run on the same prompts, for speedups, as --baseline=plain.jsonl"
)
TRACE = flags.DEFINE_string("trace", None, "write the trace (docs/API.md), as --trace=a.json; several: a-0001.json, …")
PERFETTO = flags.DEFINE_string("perfetto", None, "write events for ui.perfetto.dev, as --perfetto=events.json")
HTML = flags.DEFINE_string(
    "html",
    None,
    "write a page that shows the answer, its threads and what they see, as --html=answer.html; several: "
    "answer-0001.html, …, and answer.html links to them",
)
SVG = flags.DEFINE_string("svg", None, "write a picture of the answer and its timeline, as --svg=answer.svg")


def main(settings: DecodeSettings, question: str | None = None) -> None:
    """Load, decode, print and write."""
    started = time.perf_counter()
    if question is not None and PROMPT.value is not None:
        raise PastaError(f"{question!r}: unexpected argument beside --prompt; ask one question")
    prompt = PROMPT.value if question is None else question
    if prompt is None and PROMPTS_FILE.value is None and settings.question:
        prompt = settings.question
        say(f"the question of this config:\n{prompt}\n")
    job = read_job(
        prompt=prompt,
        prompts_file=file_of(PROMPTS_FILE),
        program_file=file_of(PROGRAM),
        baseline_file=file_of(BASELINE),
        outputs=Outputs(*map(file_of, (OUTPUT, TRACE, PERFETTO, HTML, SVG))),
        live=LIVE.value,
        slow=SLOW.value,
        as_json=JSON.value,
        compare=COMPARE.value,
        sequential=SEQUENTIAL.value,
        started=started,
    )
    given = {"request.sequential": SEQUENTIAL.value, "decoding.rows": ROWS.value, "decoding.lanes": LANES.value}
    settings = changed(settings, **{key: value for key, value in given.items() if value is not None})
    cli.announce_device()

    from pasta_jax.answer import run as decode  # imports JAX: after the flags, so that --help starts quickly

    decode.run(settings, job)


if __name__ == "__main__":
    cli.run(main, default_config="configs/decode.py", argument="question", optional=True)
