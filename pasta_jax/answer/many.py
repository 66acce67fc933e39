"""Answer a file of prompts: records as they are finished, a page for each answer and one that links to them."""

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import msgspec

from pasta_jax.answer.job import Job
from pasta_jax.answer.prompts import Prompt
from pasta_jax.answer.record import Record, record_of, summary_of_many, write_pictures, write_records
from pasta_jax.decode.generate import DecodeConfig, Request, Result, slots_for, stream
from pasta_jax.errors import PastaError
from pasta_jax.files.atomic import JsonLines, disk_is_full, json_line, part_of, write_whole
from pasta_jax.progress import Progress, say, show
from pasta_jax.runs import processes
from pasta_jax.view.index import Entry, index
from pasta_jax.view.text import printable
from pasta_jax.weights.model import Model


class AnswersFile:
    """The answers so far, by the number of their prompt."""

    def __init__(self, lines: JsonLines, records: dict[int, Record]):
        self._lines = lines
        self.records = records

    def add(self, record: Record) -> None:
        """Keep an answer; it survives a kill from now on."""
        self._lines.append(msgspec.to_builtins(record))
        self.records[record.index] = record


@contextlib.contextmanager
def answers_file(path: Path, about: Mapping[str, object], prompts: Sequence[Prompt]) -> Iterator[AnswersFile]:
    """Yield the answers that an earlier run left, to add the others; `path` is written when the block succeeds.

    `about` is flat and states everything that answers depend on: answers of a run with another value are refused.
    """
    part = part_of(path)
    try:
        with JsonLines(part, exclusive=True) as lines:
            if lines.lines:
                _check_header(part, lines.lines[0], about)
            else:
                lines.append(about)
            answers = AnswersFile(lines, _records(part, lines.lines[1:], prompts))
            yield answers
            write_records(path, [answers.records[number] for number in range(len(prompts))])
            part.unlink()
    except OSError as error:
        if not disk_is_full(error):
            raise
        raise PastaError(f"{part}: the disk is full; free some space and rerun the command to resume") from None


def _check_header(part: Path, line: bytes, about: Mapping[str, object]) -> None:
    """Refuse answers that depend on other values, and name the first of them."""
    if line + b"\n" == json_line(about):
        return
    try:
        before = msgspec.json.decode(line, type=dict[str, str | int | float | bool | None])
        key = next(key for key in (*about, *before) if key not in before or before[key] != about.get(key))
        begun = f"begun with {key}={before.get(key)}, now {about.get(key)}"
    except (ValueError, StopIteration, RecursionError):
        begun = "not the answers of a stopped run"
    raise PastaError(f"{part}: {begun}; change it back to resume, choose another --output, or delete the file")


def _records(part: Path, lines: Sequence[bytes], prompts: Sequence[Prompt]) -> dict[int, Record]:
    records = {}
    for number, line in enumerate(lines, start=2):
        try:
            record = msgspec.json.decode(line, type=Record)
            if not (0 <= record.index < len(prompts) and prompts[record.index].text == record.prompt):
                raise ValueError
        except (ValueError, RecursionError):  # msgspec's errors are among the former
            raise PastaError(f"{part}: line {number} is damaged; delete that line to have it answered again") from None
        records[record.index] = record
    return records


def answer_many(
    job: Job,
    model: Model,
    requests: Sequence[Request],
    config: DecodeConfig,
    round_steps: int,
    about: Mapping[str, object],
) -> list[Record]:
    """Write answers as they are finished, or without --output print them in the order of the prompts.

    With --output, answers that a stopped run left there are not decoded again; `about` states what they depend on. Of
    several processes each decodes a share; the first one writes and returns all answers, the others return their own.
    """
    # As many slots as all prompts need, so that a resumed run compiles the same program.
    config = dataclasses.replace(config, slots=slots_for(model, requests, config))
    output = job.outputs.output
    began, printed = time.perf_counter(), 0
    first = processes.is_first()
    with answers_file(output, about, job.prompts) if output is not None and first else nullcontext() as file:
        records: dict[int, Record] = {} if file is None else file.records
        earlier = len(records)
        if earlier:
            say(f"resuming: {part_of(output)} has {earlier} of {len(requests)} answers")
        missing = [number for number in range(len(requests)) if number not in records]
        numbers = json.loads(processes.told(json.dumps(missing)))
        own = _own(job, model, requests, processes.share(numbers), config, round_steps)
        every = processes.gathered(own, len(numbers), Record)
        if not first:
            return list(every)
        with Progress("answers", len(requests), earlier) as progress:
            for record in every:
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


def _own(
    job: Job,
    model: Model,
    requests: Sequence[Request],
    numbers: Sequence[int],
    config: DecodeConfig,
    round_steps: int,
) -> Iterator[Record]:
    """The records of some of the requests, as they are finished, and the files beside them."""
    for item in stream(model, [requests[number] for number in numbers], config, round_steps) if numbers else ():
        if isinstance(item, Result):
            result = dataclasses.replace(item, request=numbers[item.request])
            write_pictures(job, result)
            yield record_of(job, result, requests[result.request].sequential)


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
