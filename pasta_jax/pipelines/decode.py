"""Answer prompts with a model: print answers as they are decoded, and write records, traces and pictures."""

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from typing import Annotated

import msgspec
from rich.console import Console

from pasta_jax import compiled
from pasta_jax.decode.generate import DecodeConfig, Event, Request, Result, stream
from pasta_jax.decode.replay import replay_stream
from pasta_jax.decode.sampling import Sampling
from pasta_jax.decode.trace import Trace
from pasta_jax.decode.trace_file import to_json
from pasta_jax.decode.transcript import Transcript
from pasta_jax.errors import PastaError
from pasta_jax.files import growing, write_whole
from pasta_jax.lang.clock import geometric_mean
from pasta_jax.lang.tags import TagIds
from pasta_jax.models.source import ModelSource, load
from pasta_jax.models.weights import Model
from pasta_jax.pipelines.decode_job import Job
from pasta_jax.progress import Progress, doing, say
from pasta_jax.view.page import page
from pasta_jax.view.perfetto import to_perfetto
from pasta_jax.view.picture import picture
from pasta_jax.view.terminal import LiveView, answer_view
from pasta_jax.view.text import printable


@dataclasses.dataclass(frozen=True)
class RequestSettings:
    """The fields of configs/common.py::request."""

    max_tokens: Annotated[int, msgspec.Meta(ge=1)]
    temperature: Annotated[float, msgspec.Meta(ge=0)]
    top_k: Annotated[int, msgspec.Meta(ge=0)]
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)]
    seed: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
    sequential: bool | None  # None: unless the model was trained on the tags
    max_topic_tokens: Annotated[int, msgspec.Meta(ge=1)]
    max_chunk_tokens: Annotated[int, msgspec.Meta(ge=1)]


@dataclasses.dataclass(frozen=True)
class Settings:
    """The fields of configs/decode.py."""

    model: ModelSource
    chat: bool
    system: str
    decoding: DecodeConfig
    request: RequestSettings
    round_steps: Annotated[int, msgspec.Meta(ge=1)]


@dataclasses.dataclass(frozen=True)
class FirstToken:
    """When the first token came, as time.perf_counter(), and the seconds of compiling before it."""

    time: float
    compiling: float

    @staticmethod
    def now() -> "FirstToken":
        """It came just now."""
        return FirstToken(time.perf_counter(), compiled.seconds())


@dataclasses.dataclass(frozen=True)
class Record:
    """One answer, as a line of --output. Fields that are None are left out."""

    index: int
    prompt: str
    text: str
    program: str
    model: str
    sequential: bool
    replayed: bool
    finish_reason: str
    prompt_tokens: int
    tokens: int
    text_tokens: int
    chunks: int
    steps: int
    critical_path: int
    parallelism: float
    prefill_ms: float
    decode_ms: float
    baseline_tokens: int | None
    theoretical_speedup: float | None

    def fields(self) -> dict[str, str | int | float | bool]:
        """The record as plain data."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


def run(settings: Settings, job: Job) -> list[Record]:
    """Answer all prompts of a job; one answer is printed while it is decoded."""
    compiled.seconds()  # counts from here
    with doing("loading the model"):
        model = load(settings.model, only_decoding=True)
    sequential = settings.request.sequential
    if sequential is None:
        sequential = model.positions is None
    requests = [
        request_for(model, settings, prompt, place, sequential)
        for prompt, place in zip(job.prompts, job.places, strict=True)
    ]
    loaded = time.perf_counter()
    if job.program is None:
        items = stream(model, requests, settings.decoding, settings.round_steps)
    else:
        sequential = False
        say(f"replay: the answer comes from {job.program_file}, {model.name} did not write it")
        ids = job.program.ids(model.tokenizer)
        items = replay_stream(model, requests[0], ids, settings.decoding, settings.round_steps)
    if len(requests) == 1:
        return [answer_one(job, items, model.tokenizer.tags, sequential, loaded)]
    return answer_many(job, items, sequential)


def request_for(model: Model, settings: Settings, prompt: str, place: str, sequential: bool) -> Request:
    """The request for a prompt; `place` names the prompt in errors."""
    tokenizer, options = model.tokenizer, settings.request
    messages = [("system", settings.system)] if settings.system else []
    try:
        ids = tokenizer.chat([*messages, ("user", prompt)]) if settings.chat else tokenizer.prompt_ids(prompt)
    except PastaError as error:
        raise PastaError(f"{place}: {error}") from None
    return Request(
        prompt_ids=tuple(ids),
        max_tokens=options.max_tokens,
        sampling=Sampling(options.temperature, options.top_k, options.top_p, options.seed),
        sequential=sequential,
        max_topic_tokens=options.max_topic_tokens,
        max_chunk_tokens=options.max_chunk_tokens,
        text=prompt,
        name=place,
    )


def answer_one(job: Job, items: Iterator[Event | Result], tags: TagIds, sequential: bool, loaded: float) -> Record:
    """Print one answer while it is decoded, then write and summarise it."""
    result, first_token = print_answer(job, items, tags, sequential)
    record = record_of(job, result, sequential)
    if job.as_json:
        times = {"load_s": round(loaded - job.started, 3), "compile_s": round(first_token.compiling, 3)}
        print(json.dumps(record.fields() | times, ensure_ascii=False))
    if job.outputs.output is not None:
        write_whole(job.outputs.output, json.dumps(record.fields(), ensure_ascii=False) + "\n")
    write_pictures(job, result)
    say(
        f"[{record.finish_reason}: {summary(record)}; first token after {first_token.time - job.started:.1f} s, "
        f"{loaded - job.started:.1f} s of them loading, {first_token.compiling:.1f} s compiling]"
    )
    return record


def print_answer(
    job: Job, items: Iterator[Event | Result], tags: TagIds, sequential: bool
) -> tuple[Result, FirstToken]:
    """Print the only answer as it is decoded; its result, and when its first token came."""
    on_terminal = sys.stdout.isatty()
    live = job.live == "yes" or (job.live == "auto" and on_terminal and not sequential and not job.as_json)
    console = Console(highlight=False, force_terminal=True if job.live == "yes" else None)
    safe: Callable[[str], str] = printable if on_terminal else str
    transcript = Transcript(tags)
    first_token = None
    with ExitStack() as stack:
        stack.enter_context(doing("reading the prompt"))
        view = stack.enter_context(LiveView(tags, console)) if live else None
        for item in items:
            if isinstance(item, Result):
                result = item
                break
            if first_token is None:
                first_token = FirstToken.now()
                stack.enter_context(doing(""))  # from now on, the answer itself
            if view is not None:
                view.push(item)
                continue
            text = transcript.push(item.thread, item.token, item.step, item.text)
            if text and not job.as_json:
                print(safe(text), end="", flush=True)
    if live:
        console.print(answer_view(result.trace, console.width), soft_wrap=True)
    elif not job.as_json:
        print(safe(transcript.rest(result.text)))
    return result, first_token or FirstToken.now()


def answer_many(job: Job, items: Iterator[Event | Result], sequential: bool) -> list[Record]:
    """Print or write results in the order of the prompts, each as soon as all before it are finished."""
    waiting: dict[int, Result] = {}
    records: list[Record] = []
    output = job.outputs.output
    began = time.perf_counter()
    with (
        growing(output) if output is not None else nullcontext() as file,
        Progress("answers", len(job.prompts)) as progress,
    ):
        for item in items:
            if not isinstance(item, Result):
                continue
            waiting[item.request] = item
            while (number := len(records)) in waiting:
                result = waiting.pop(number)
                record = record_of(job, result, sequential)
                records.append(record)
                write_pictures(job, result)
                line = json.dumps(record.fields(), ensure_ascii=False)
                if file is not None:
                    print(line, file=file, flush=True)
                elif job.as_json:
                    print(line, flush=True)
                else:
                    print(f"=== {number + 1}: {' '.join(record.prompt.split())}\n{record.text}\n", flush=True)
            progress.add()
    say(f"[{summary_of_many(records, time.perf_counter() - began)}]")
    return records


def baseline_of(job: Job, request: int) -> int | None:
    """Tokens of the sequential answer to the same prompt; None if unknown or empty."""
    return None if job.baseline_tokens is None else job.baseline_tokens[request] or None


def record_of(job: Job, result: Result, sequential: bool) -> Record:
    """The record of an answer."""
    trace, baseline = result.trace, baseline_of(job, result.request)
    if not trace.critical_path:
        baseline = None
    return Record(
        index=result.request,
        prompt=trace.prompt,
        text=result.text,
        program=trace.program().render(),
        model=trace.model,
        sequential=sequential,
        replayed=trace.replayed,
        finish_reason=result.finish_reason,
        prompt_tokens=len(trace.prompt_ids),
        tokens=len(trace.token),
        text_tokens=trace.text_tokens,
        chunks=len(trace.closed) - 1,
        steps=trace.steps,
        critical_path=trace.critical_path,
        parallelism=round(trace.parallelism, 4),
        prefill_ms=trace.prefill_ms,
        decode_ms=round(trace.decode_ms, 3),
        baseline_tokens=baseline,
        theoretical_speedup=None if baseline is None else round(trace.speedup(baseline), 4),
    )


def write_pictures(job: Job, result: Result) -> None:
    """Write the files that show one answer."""
    baseline = baseline_of(job, result.request)
    writers: dict[str, Callable[[Trace], str]] = {
        "trace": to_json,
        "perfetto": lambda trace: json.dumps(to_perfetto(trace), ensure_ascii=False),
        "html": lambda trace: page(trace, baseline),
        "svg": picture,
    }
    for flag, path in job.outputs.by_flag().items():
        if flag not in writers:
            continue
        if len(job.prompts) > 1:
            path = path.with_name(f"{path.stem}-{result.request + 1:04}{path.suffix}")
        write_whole(path, writers[flag](result.trace))


def summary(record: Record) -> str:
    """The figures of one answer."""
    text = f"{record.tokens} tokens in {record.steps} steps"
    if not record.sequential:
        text += f" (critical path {record.critical_path}, parallelism {record.parallelism:.2f})"
    if record.theoretical_speedup is not None:
        text += (
            f", theoretical speedup {record.theoretical_speedup:.2f} over {record.baseline_tokens} sequential tokens"
        )
    if record.decode_ms > 0:
        text += f", {1000 * record.tokens / record.decode_ms:.0f} tokens/s"
    return text


def summary_of_many(records: Sequence[Record], seconds: float) -> str:
    """The figures of all answers; means are geometric, over answers that are not empty."""
    text = f"{len(records)} answers, {sum(record.tokens for record in records)} tokens in {seconds:.1f} s, "
    text += "including compilation"
    for name, values in (
        ("parallelism", [record.parallelism for record in records]),
        ("theoretical speedup", [record.theoretical_speedup for record in records]),
    ):
        if positive := [value for value in values if value]:
            text += f", {name} {geometric_mean(positive):.2f}"
    return text
