"""Answer prompts with a model: print answers as they are decoded, and write records, traces and pictures."""

import dataclasses
import time

import jax

from pasta_jax.answer.compare import compare
from pasta_jax.answer.job import Job
from pasta_jax.answer.many import answer_many
from pasta_jax.answer.one import answer_one
from pasta_jax.answer.prompts import Prompt
from pasta_jax.answer.record import AnswerRecord
from pasta_jax.decode.generate import DecodeConfig, Request, stream
from pasta_jax.decode.replay import replay_stream
from pasta_jax.decode.sampling import Sampling
from pasta_jax.device import compilation_cache
from pasta_jax.errors import PastaError
from pasta_jax.files import fingerprints
from pasta_jax.files.validated import AtLeastZero, Count, Positive, Seed, TopP
from pasta_jax.models.settings import MeshSettings
from pasta_jax.models.sharding import decoding_mesh
from pasta_jax.progress import say
from pasta_jax.weights.generation_config import filled
from pasta_jax.weights.model import Model
from pasta_jax.weights.settings import ModelSource
from pasta_jax.weights.source import load


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
    end_stray_chunks: bool | None
    max_chunk_tokens: Positive


@dataclasses.dataclass(frozen=True)
class Settings:
    """The fields of configs/decode.py."""

    model: ModelSource
    baseline: ModelSource  # its sequential answer is compared by --compare; without preset and path: the model's own
    compare_passes: Positive  # of which --compare takes the medians
    chat: bool
    question: str  # asked without a prompt, by the script
    system: str
    decoding: DecodeConfig
    request: RequestSettings
    round_steps: Positive
    mesh: MeshSettings


def run(settings: Settings, job: Job) -> list[AnswerRecord]:
    """Answer all prompts of a job; one answer is printed while it is decoded."""
    compilation_cache.seconds()  # counts from here
    mesh = decoding_mesh(settings.mesh)
    model = load(settings.model, only_decoding=True, mesh=mesh)
    settings = dataclasses.replace(settings, request=filled(settings.request, model.defaults))
    sequential = settings.request.sequential
    if sequential is None:
        sequential = model.positions is None
        if sequential and job.program is None and not job.compare:
            say(f"{model.name}: not trained on the tags, so it decodes sequentially")
    if jax.process_count() > 1 and len(job.prompts) == 1:
        raise PastaError("one prompt: runs in one process; several answer --prompts_file")
    requests = [request_for(model, settings, prompt, sequential) for prompt in job.prompts]
    loaded = time.perf_counter()
    if len(requests) > 1:
        about = depends_on(settings, model, job, sequential)
        return answer_many(job, model, requests, settings.decoding, settings.round_steps, about)
    if job.compare:
        other = settings.baseline.preset or settings.baseline.path
        baseline = load(settings.baseline, only_decoding=True, mesh=mesh) if other else None
        return compare(
            job, model, baseline, requests[0], settings.decoding, settings.round_steps, settings.compare_passes
        )
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
    tokenizer = model.tokenizer
    messages = [("system", settings.system)] if settings.system else []
    try:
        ids = tokenizer.chat([*messages, ("user", prompt.text)]) if settings.chat else tokenizer.prompt_ids(prompt.text)
    except PastaError as error:
        raise PastaError(f"{prompt.place}: {error}") from None
    template = template_of(settings.request, sequential)
    return dataclasses.replace(template, prompt_ids=tuple(ids), text=prompt.text, name=prompt.place)


def template_of(options: RequestSettings, sequential: bool) -> Request:
    """A request with these options, without its prompt."""
    return Request(
        prompt_ids=(),
        max_tokens=options.max_tokens,
        sampling=Sampling(options.temperature, options.top_k, options.top_p, options.seed),
        sequential=sequential,
        max_topic_tokens=options.max_topic_tokens,
        max_chunk_tokens=options.max_chunk_tokens,
        max_topic_words=options.max_topic_words,
        distinct_topics=options.distinct_topics,
        end_stray_chunks=options.end_stray_chunks,
    )


def depends_on(settings: Settings, model: Model, job: Job, sequential: bool) -> dict[str, str | int | float | None]:
    """What the answers to a file of prompts and the files beside them depend on, flat, by names that a user knows.

    Neither lanes nor widths are among it: they decide how fast answers are decoded, not which.
    """
    texts = [prompt.text for prompt in job.prompts]
    request = dataclasses.asdict(settings.request) | {"sequential": sequential}
    return {
        "model": f"{model.identity}, positions {model.positions}",
        "prompts": f"{len(texts)} prompts {fingerprints.of_texts(texts)}",
        "config.chat": settings.chat,
        "config.system": settings.system,
        **{f"config.request.{key}": value for key, value in request.items()},
        "config.decoding.rows": settings.decoding.rows,
        "config.decoding.slots": settings.decoding.slots,
        "--baseline": job.baseline_tokens and fingerprints.of_data(job.baseline_tokens),
        **{f"--{flag}": str(path) for flag, path in job.outputs.by_flag().items() if flag != "output"},
    }
