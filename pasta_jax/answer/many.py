"""Answer a file of prompts: records as they are finished, a page for each answer and one that links to them."""

import contextlib
import dataclasses
import operator
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pasta_jax.answer.job import Job
from pasta_jax.answer.prompts import Prompt
from pasta_jax.answer.record import AnswerRecord, record_of, summary_of_many, write_pictures, write_records
from pasta_jax.answer.settings import DecodeSettings
from pasta_jax.answer.show import escaped
from pasta_jax.decode.generate import slots_for, stream
from pasta_jax.decode.request import Request, Result
from pasta_jax.files.atomic import write_whole
from pasta_jax.progress import say, show, stdout_is_terminal
from pasta_jax.runs import processes, records
from pasta_jax.runs.records import Records, kept_beside, part_of
from pasta_jax.view.index import index
from pasta_jax.view.text import printable
from pasta_jax.weights.model import Model


@contextlib.contextmanager
def answers_file(
    path: Path | None, about: Mapping[str, object], prompts: Sequence[Prompt]
) -> Iterator[Records[AnswerRecord]]:
    """Yield the answers that an earlier run left, to add the others; `path` is written when the block succeeds.

    `about` is flat and states everything that answers depend on: answers of a run with another value are refused.
    """

    def fits(record: AnswerRecord) -> bool:
        return record.index < len(prompts) and prompts[record.index].text == record.prompt

    part, fix = kept_beside(path), "choose another --output, or delete the file"
    with records.opened(part, about, AnswerRecord, operator.attrgetter("index"), fix, fits) as done:
        yield done
        if path is not None and processes.is_first():
            write_records(path, [done.known[number] for number in range(len(prompts))])
    if part is not None and processes.is_first():
        part.unlink()


def answer_many(
    job: Job, model: Model, requests: Sequence[Request], settings: DecodeSettings, about: Mapping[str, object]
) -> list[AnswerRecord]:
    """Write answers as they are finished, or without --output print them in the order of the prompts.

    With --output, answers that a stopped run left there are not decoded again; `about` states what they depend on. Of
    several processes each decodes a share; the first one writes and returns all answers, the others return their own.
    """
    # As many slots as all prompts need, so that a resumed run compiles the same program.
    config = dataclasses.replace(settings.decoding, slots=slots_for(model, requests, settings.decoding))
    output, total = job.outputs.output, len(requests)
    began, printed = time.perf_counter(), 0

    def compute(numbers: Sequence[int]) -> Iterator[AnswerRecord]:
        for item in stream(model, [requests[number] for number in numbers], config, settings.round_steps):
            if isinstance(item, Result):
                result = dataclasses.replace(item, request=numbers[item.request])
                write_pictures(job, result)
                yield record_of(job, result, requests[result.request].sequential)

    with answers_file(output, about, job.prompts) as done:
        if earlier := len(done.known):
            say(f"resuming: {part_of(output)} has {earlier} of {total} answers")
        missing = done.missing(range(total))
        if not processes.is_first():
            return list(done.fill(missing, compute))
        with records.progress("answers", total, missing) as progress:
            for _ in done.fill(missing, compute):
                while output is None and printed in done.known:
                    show(_shown(job, done.known[printed]))
                    printed += 1
                progress.add()
        in_order = [done.known[number] for number in range(total)]
        if (html := job.outputs.html) is not None:
            linked = [vars(record) | {"file": job.path_for(html, record.index).name} for record in in_order]
            write_whole(html, index(linked))
    seconds = time.perf_counter() - began
    added = f"{len(missing)} of them " * bool(earlier)
    say(f"[{summary_of_many(in_order)}; {added}in {seconds:.1f} s, including compilation]")
    for flag, path in job.outputs.by_flag().items():
        if flag in ("output", "html"):
            say(f"wrote {path}")
    return in_order


def _shown(job: Job, record: AnswerRecord) -> str:
    """A record on stdout."""
    if job.as_json:
        return escaped(record.json())
    text = f"=== {record.index + 1}: {' '.join(record.prompt.split())}\n{record.text}\n"
    return printable(text) if stdout_is_terminal() else text
