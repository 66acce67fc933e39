"""Compare an asynchronous answer with a sequential one, of the same model or of its baseline, in one process."""

import dataclasses
import json
from collections.abc import Mapping

from pasta_jax.answer.job import Job
from pasta_jax.answer.one import console_of, print_answer, shows_threads
from pasta_jax.answer.record import AnswerRecord, record_of, write_pictures, write_records
from pasta_jax.answer.settings import DecodeSettings
from pasta_jax.answer.show import escaped
from pasta_jax.decode.generate import generate, slots_for, stream
from pasta_jax.decode.request import Request, Result
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.errors import PastaError
from pasta_jax.progress import Progress, doing, say, stdout_is_terminal
from pasta_jax.view.terminal import answer_view, beside
from pasta_jax.view.text import printable
from pasta_jax.weights.model import Model

SEQUENTIAL, ASYNCHRONOUS = "sequential", "asynchronous"


def compare(
    job: Job, model: Model, request: Request, baseline: tuple[Model, Request] | None, settings: DecodeSettings
) -> list[AnswerRecord]:
    """Decode, print and write both answers: the sequential one's record, then the asynchronous one's.

    The sequential answer is the baseline's, to the same prompt in its own ids, or without one the model's own. Both are
    compiled before. On a terminal, the first asynchronous answer is shown while it is decoded.
    """
    if model.positions is None and request.sequential:
        raise PastaError(f"--compare: {model.name} was not trained on the tags, so it has no asynchronous answer")
    other, asked = baseline or (model, request)
    if baseline and settings.decoding.draft == "drafter" and "drafter" not in other.params:
        raise PastaError(
            f"--compare: the baseline, {other.name}, has no drafter; set --config.baseline.drafter, or "
            "--config.decoding.draft=lookup for both, without config.model.drafter"
        )
    asynchronous = dataclasses.replace(request, sequential=False)
    sides = {SEQUENTIAL: (other, dataclasses.replace(asked, sequential=True)), ASYNCHRONOUS: (model, asynchronous)}
    slots = max(slots_for(side, [each], settings.decoding) for side, each in sides.values())
    config = dataclasses.replace(settings.decoding, lanes=1, slots=slots)  # the same for one token as for all
    with doing("compiling"):
        for side, each in sides.values():
            generate(side, [dataclasses.replace(each, max_tokens=1)], config)
    done = {}
    if shows_threads(job, sequential=False):
        items = stream(model, [asynchronous], config, settings.round_steps)
        done[ASYNCHRONOUS] = print_answer(job, items, model.tokenizer.tags, sequential=False)[0]
    results = in_turn(sides, config, settings.compare_passes, done)
    return report(job, results, bool(done), baseline is not None, settings.compare_passes)


def in_turn(
    sides: Mapping[str, tuple[Model, Request]], config: DecodeConfig, passes: int, done: Mapping[str, Result]
) -> dict[str, Result]:
    """Decode each side `passes` times, in turn; of each, the result of median time. `done`: results that exist."""
    results = {name: [done[name]] if name in done else [] for name in sides}
    with Progress("decodings", passes * len(sides), len(done)) as progress:
        for number in range(passes):
            for name, (side, request) in sides.items():
                if len(results[name]) <= number:
                    results[name] += generate(side, [request], config)
                    progress.add()
    return {name: sorted(several, key=total_ms)[len(several) // 2] for name, several in results.items()}


def report(
    job: Job, results: Mapping[str, Result], shown: bool, with_baseline: bool, passes: int
) -> list[AnswerRecord]:
    """Print and write both answers; `shown`: the asynchronous one already was."""
    sequential = record_of(job, results[SEQUENTIAL], sequential=True)
    job = dataclasses.replace(job, baseline_tokens=(sequential.tokens,))
    records = {SEQUENTIAL: sequential, ASYNCHRONOUS: record_of(job, results[ASYNCHRONOUS], sequential=False)}
    write_pictures(job, results[ASYNCHRONOUS])
    if job.outputs.output is not None:
        write_records(job.outputs.output, list(records.values()))
    if job.as_json:
        fields = {name: record.fields() for name, record in records.items()}
        fields |= {"realised_speedup": round(realised(records), 4)}
        print(escaped(json.dumps(fields, ensure_ascii=False)))
    else:
        names = {SEQUENTIAL: "baseline, sequential" if with_baseline else SEQUENTIAL, ASYNCHRONOUS: ASYNCHRONOUS}
        show(job, results, records, names, shown)
        if passes > 1:
            say(f"[medians of {passes} decodings of each, in turn; loading and compiling are not counted]")
    return list(records.values())


def total_ms(answer: Result | AnswerRecord) -> float:
    """Milliseconds of the whole answer: reading the prompt and decoding."""
    measured = answer.trace if isinstance(answer, Result) else answer
    return measured.prefill_ms + measured.decode_ms


def realised(records: Mapping[str, AnswerRecord]) -> float:
    """How many times as fast the asynchronous answer was."""
    return total_ms(records[SEQUENTIAL]) / total_ms(records[ASYNCHRONOUS])


def show(
    job: Job, results: Mapping[str, Result], records: Mapping[str, AnswerRecord], names: Mapping[str, str], shown: bool
) -> None:
    """Both answers, and their figures side by side."""
    console, safe = console_of(job), printable if stdout_is_terminal() else str
    for kind, result in results.items():
        if shown and (kind == ASYNCHRONOUS or names[kind] != kind):  # a baseline's text would hide what was shown
            continue
        if console.is_terminal:
            console.rule(names[kind], align="left", style="dim")
            console.print(answer_view(result.trace, console))
            console.print()
        else:
            print(f"=== {names[kind]}\n{safe(result.text)}\n")
    console.print(beside({names[kind]: figures_of(record) for kind, record in records.items()}))
    console.print()
    faster = f"asynchronous: {realised(records):.2f} times as fast"
    if (in_theory := records[ASYNCHRONOUS].theoretical_speedup) is not None:
        faster += f", {in_theory:.2f} in theory"
    console.print(faster + ", without a chunk" * (not records[ASYNCHRONOUS].chunks), style="bold")
    for flag, path in job.outputs.by_flag().items():
        console.print(f"{'page' if flag == 'html' else flag}: {path}", soft_wrap=True, markup=False)


def figures_of(record: AnswerRecord) -> dict[str, str]:
    """The figures of one answer by name."""
    return {
        "threads": f"{1 + record.chunks}",
        "tokens": f"{record.tokens}",
        "steps": f"{record.steps}",
        "seconds": f"{total_ms(record) / 1000:.2f}",
        "first token": f"{record.prefill_ms / 1000:.2f}",
    }
