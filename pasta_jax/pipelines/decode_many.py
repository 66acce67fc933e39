"""Answer a file of prompts: records as they are finished, a page for each answer and one that links to them."""

import dataclasses
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext

from pasta_jax.decode.generate import DecodeConfig, Request, Result, slots_for, stream
from pasta_jax.files import part_of, write_whole
from pasta_jax.models.weights import Model
from pasta_jax.pipelines.answers_file import answers_file
from pasta_jax.pipelines.decode_job import Job
from pasta_jax.pipelines.decode_record import Record, record_of, summary_of_many, write_pictures
from pasta_jax.progress import Progress, say, show
from pasta_jax.view.index import Entry, index
from pasta_jax.view.text import printable


def answer_many(
    job: Job,
    model: Model,
    requests: Sequence[Request],
    config: DecodeConfig,
    round_steps: int,
    about: Mapping[str, object],
) -> list[Record]:
    """Write answers as they are finished, or without --output print them in the order of the prompts.

    With --output, answers that a stopped run left there are not decoded again; `about` states what they depend on.
    """
    # As many slots as all prompts need, so that a resumed run compiles the same program.
    config = dataclasses.replace(config, slots=slots_for(model, requests, config))
    output = job.outputs.output
    began, printed = time.perf_counter(), 0
    with nullcontext() if output is None else answers_file(output, about, job.prompts) as file:
        records: dict[int, Record] = {} if file is None else file.records
        earlier = len(records)
        if earlier:
            say(f"resuming: {part_of(output)} has {earlier} of {len(requests)} answers")
        numbers = [number for number in range(len(requests)) if number not in records]
        with Progress("answers", len(requests), earlier) as progress:
            for result in _results(model, requests, numbers, config, round_steps):
                record = record_of(job, result, requests[result.request].sequential)
                write_pictures(job, result)
                if file is None:
                    records[record.index] = record
                    while printed in records:
                        show(_shown(job, records[printed]))
                        printed += 1
                else:
                    file.add(record)
                progress.add()
        in_order = [records[number] for number in range(len(requests))]
        if job.outputs.html is not None:
            write_whole(job.outputs.html, index([_entry(job, record) for record in in_order]))
    seconds = time.perf_counter() - began
    added = f"{len(numbers)} of them " * bool(earlier)
    say(f"[{summary_of_many(in_order)}; {added}in {seconds:.1f} s, including compilation]")
    for flag, path in job.outputs.by_flag().items():
        if flag in ("output", "html"):
            say(f"wrote {path}")
    return in_order


def _results(
    model: Model, requests: Sequence[Request], numbers: Sequence[int], config: DecodeConfig, round_steps: int
) -> Iterator[Result]:
    """The results of some of the requests, as they are finished, with their numbers among all."""
    for item in stream(model, [requests[number] for number in numbers], config, round_steps):
        if isinstance(item, Result):
            yield dataclasses.replace(item, request=numbers[item.request])


def _shown(job: Job, record: Record) -> str:
    """A record on stdout."""
    if job.as_json:
        return record.json()
    text = f"=== {record.index + 1}: {' '.join(record.prompt.split())}\n{record.text}\n"
    return printable(text) if sys.stdout.isatty() else text


def _entry(job: Job, record: Record) -> Entry:
    """The line of the index for an answer."""
    return Entry(
        file=job.path_for(job.outputs.html, record.index).name,
        prompt=record.prompt,
        answer=record.text,
        chunks=record.chunks,
        tokens=record.tokens,
        steps=record.steps,
        parallelism=record.parallelism,
        speedup=record.theoretical_speedup,
    )
