"""Answer prompts with a model: print answers as they are decoded, and write records, traces and pictures."""

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from rich.console import Console

from pasta_jax import compiled, fingerprints
from pasta_jax.decode.generate import DecodeConfig, Event, Request, Result, stream
from pasta_jax.decode.replay import replay_stream
from pasta_jax.decode.sampling import Sampling
from pasta_jax.decode.transcript import Transcript
from pasta_jax.errors import PastaError
from pasta_jax.lang.tags import TagIds
from pasta_jax.models.defaults import filled
from pasta_jax.models.source import ModelSource, load
from pasta_jax.models.weights import Model
from pasta_jax.pipelines.decode_job import Job
from pasta_jax.pipelines.decode_many import answer_many
from pasta_jax.pipelines.decode_record import Record, record_of, summary, write_pictures, write_records
from pasta_jax.pipelines.prompts import Prompt
from pasta_jax.progress import doing, say
from pasta_jax.ranges import AtLeastZero, Count, Positive, Seed, TopP
from pasta_jax.view.terminal import LiveView, answer_view
from pasta_jax.view.text import printable


@dataclasses.dataclass(frozen=True)
class RequestSettings:
    """The fields of configs/common.py::request."""

    max_tokens: Positive
    temperature: AtLeastZero | None  # None, here and below: the model's own
    top_k: Count | None
    top_p: TopP | None
    seed: Seed
    sequential: bool | None  # None: unless the model was trained on the tags
    max_topic_tokens: Positive
    max_topic_words: Count | None
    distinct_topics: bool | None
    max_chunk_tokens: Positive


@dataclasses.dataclass(frozen=True)
class Settings:
    """The fields of configs/decode.py."""

    model: ModelSource
    chat: bool
    question: str  # asked without a prompt, by the script
    system: str
    decoding: DecodeConfig
    request: RequestSettings
    round_steps: Positive


@dataclasses.dataclass(frozen=True)
class FirstToken:
    """When the first token came, as time.perf_counter(), and the seconds of compiling before it."""

    time: float
    compiling: float

    @staticmethod
    def now() -> "FirstToken":
        """It came just now."""
        return FirstToken(time.perf_counter(), compiled.seconds())


def run(settings: Settings, job: Job) -> list[Record]:
    """Answer all prompts of a job; one answer is printed while it is decoded."""
    compiled.seconds()  # counts from here
    with doing("loading the model"):
        model = load(settings.model, only_decoding=True)
    settings = dataclasses.replace(settings, request=filled(settings.request, model.defaults))
    sequential = settings.request.sequential
    if sequential is None:
        sequential = model.positions is None
        if sequential and job.program is None:
            say(f"{model.name}: not trained on the tags, so it decodes sequentially")
    requests = [request_for(model, settings, prompt, sequential) for prompt in job.prompts]
    loaded = time.perf_counter()
    if len(requests) > 1:
        about = depends_on(settings, model, job, sequential)
        return answer_many(job, model, requests, settings.decoding, settings.round_steps, about)
    if job.program is None:
        items = stream(model, requests, settings.decoding, settings.round_steps)
    else:
        sequential = False
        say(f"replay: the answer comes from {job.program_file}, {model.name} did not write it")
        ids = job.program.ids(model.tokenizer)
        items = replay_stream(model, requests[0], ids, settings.decoding, settings.round_steps)
    return [answer_one(job, items, model.tokenizer.tags, sequential, loaded)]


def request_for(model: Model, settings: Settings, prompt: Prompt, sequential: bool) -> Request:
    """The request for a prompt."""
    tokenizer, options = model.tokenizer, settings.request
    messages = [("system", settings.system)] if settings.system else []
    try:
        ids = tokenizer.chat([*messages, ("user", prompt.text)]) if settings.chat else tokenizer.prompt_ids(prompt.text)
    except PastaError as error:
        raise PastaError(f"{prompt.place}: {error}") from None
    return Request(
        prompt_ids=tuple(ids),
        max_tokens=options.max_tokens,
        sampling=Sampling(options.temperature, options.top_k, options.top_p, options.seed),
        sequential=sequential,
        max_topic_tokens=options.max_topic_tokens,
        max_chunk_tokens=options.max_chunk_tokens,
        text=prompt.text,
        name=prompt.place,
        max_topic_words=options.max_topic_words,
        distinct_topics=options.distinct_topics,
    )


def depends_on(settings: Settings, model: Model, job: Job, sequential: bool) -> dict[str, str | int | float | None]:
    """What the answers to a file of prompts and the files beside them depend on, flat, by names that a user knows.

    Neither lanes nor widths are among it: they decide how fast answers are decoded, not which.
    """
    texts = [prompt.text for prompt in job.prompts]
    request = dataclasses.asdict(settings.request) | {"sequential": sequential}
    return {
        "model": f"{model.name} {model.fingerprint}, positions {model.positions}",
        "prompts": f"{len(texts)} prompts {fingerprints.of_texts(texts)}",
        "config.chat": settings.chat,
        "config.system": settings.system,
        **{f"config.request.{key}": value for key, value in request.items()},
        "config.decoding.rows": settings.decoding.rows,
        "config.decoding.slots": settings.decoding.slots,
        "--baseline": job.baseline_tokens and fingerprints.of_data(job.baseline_tokens),
        **{f"--{flag}": str(path) for flag, path in job.outputs.by_flag().items() if flag != "output"},
    }


def answer_one(job: Job, items: Iterator[Event | Result], tags: TagIds, sequential: bool, loaded: float) -> Record:
    """Print one answer while it is decoded, then write and summarise it."""
    result, first_token = print_answer(job, items, tags, sequential)
    record = record_of(job, result, sequential)
    if job.as_json:
        times = {"load_s": round(loaded - job.started, 3), "compile_s": round(first_token.compiling, 3)}
        print(json.dumps(record.fields() | times, ensure_ascii=False))
    if job.outputs.output is not None:
        write_records(job.outputs.output, [record])
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
