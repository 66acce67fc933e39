"""Compare a model's asynchronous answer with its sequential one: decoded in turn in one process, compiled before."""

import dataclasses
import json
from collections.abc import Mapping

from pasta_jax.decode.generate import DecodeConfig, Request, Result, generate, slots_for
from pasta_jax.errors import PastaError
from pasta_jax.models.weights import Model
from pasta_jax.pipelines.decode_job import Job
from pasta_jax.pipelines.decode_one import console_of
from pasta_jax.pipelines.decode_record import Record, record_of, write_pictures, write_records
from pasta_jax.progress import Progress, doing, say
from pasta_jax.view.terminal import answer_view, beside

PASSES = 3  # timed decodings of each answer
SEQUENTIAL, ASYNCHRONOUS = "sequential", "asynchronous"


def compare(job: Job, model: Model, request: Request, config: DecodeConfig) -> list[Record]:
    """Decode, print and write both answers: the sequential one's record, then the asynchronous one's."""
    if model.positions is None and request.sequential:
        raise PastaError(f"--compare: {model.name} was not trained on the tags, so it has no asynchronous answer")
    requests = {
        SEQUENTIAL: dataclasses.replace(request, sequential=True),
        ASYNCHRONOUS: dataclasses.replace(request, sequential=False),
    }
    results = in_turn(model, requests, config)
    sequential = record_of(job, results[SEQUENTIAL], sequential=True)
    job = dataclasses.replace(job, baseline_tokens=(sequential.tokens,))
    records = {SEQUENTIAL: sequential, ASYNCHRONOUS: record_of(job, results[ASYNCHRONOUS], sequential=False)}
    write_pictures(job, results[ASYNCHRONOUS])
    if job.outputs.output is not None:
        write_records(job.outputs.output, list(records.values()))
    if job.as_json:
        fields = {name: record.fields() for name, record in records.items()}
        print(json.dumps(fields | {"realised_speedup": round(realised(records), 4)}, ensure_ascii=False))
    else:
        show(job, results, records)
    return list(records.values())


def in_turn(model: Model, requests: Mapping[str, Request], config: DecodeConfig) -> dict[str, Result]:
    """Decode each request PASSES times, in turn; of each, the result that took the median time."""
    slots = max(slots_for(model, [request], config) for request in requests.values())
    config = dataclasses.replace(config, lanes=1, slots=slots)  # the same for one token as for all
    with doing("compiling"):
        for request in requests.values():
            generate(model, [dataclasses.replace(request, max_tokens=1)], config)
    results: dict[str, list[Result]] = {name: [] for name in requests}
    with Progress("decodings", PASSES * len(requests)) as progress:
        for _ in range(PASSES):
            for name, request in requests.items():
                results[name] += generate(model, [request], config)
                progress.add()
    return {name: sorted(several, key=total_ms)[len(several) // 2] for name, several in results.items()}


def total_ms(answer: Result | Record) -> float:
    """Milliseconds of the whole answer: reading the prompt and decoding."""
    measured = answer.trace if isinstance(answer, Result) else answer
    return measured.prefill_ms + measured.decode_ms


def realised(records: Mapping[str, Record]) -> float:
    """How many times as fast the asynchronous answer was."""
    return total_ms(records[SEQUENTIAL]) / total_ms(records[ASYNCHRONOUS])


def show(job: Job, results: Mapping[str, Result], records: Mapping[str, Record]) -> None:
    """Both answers, and their figures side by side."""
    console = console_of(job)
    for name, result in results.items():
        if console.is_terminal:
            console.rule(name, align="left", style="dim")
            console.print(answer_view(result.trace, console))
            console.print()
        else:
            print(f"=== {name}\n{result.text}\n")
    console.print(beside({name: figures_of(record) for name, record in records.items()}))
    faster = f"asynchronous: {realised(records):.2f} times as fast"
    if (in_theory := records[ASYNCHRONOUS].theoretical_speedup) is not None:
        faster += f", {in_theory:.2f} in theory"
    console.print(faster + ", without a chunk" * (not records[ASYNCHRONOUS].chunks), style="bold")
    for flag, path in job.outputs.by_flag().items():
        console.print(f"{'page' if flag == 'html' else flag}: {path}", soft_wrap=True)
    say(f"[medians of {PASSES} decodings of each, in turn; loading and compiling are not counted]")


def figures_of(record: Record) -> dict[str, str]:
    """The figures of one answer by name."""
    return {
        "threads": f"{1 + record.chunks}",
        "tokens": f"{record.tokens}",
        "steps": f"{record.steps}",
        "seconds": f"{total_ms(record) / 1000:.2f}",
        "first token": f"{record.prefill_ms / 1000:.2f}",
    }
