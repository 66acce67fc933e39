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
from pasta_jax.answer.settings import DecodeSettings
from pasta_jax.decode.generate import stream
from pasta_jax.decode.replay import replay_stream
from pasta_jax.decode.request import Request, template
from pasta_jax.decode.settings import refuse_idle_drafter
from pasta_jax.device import compilation_cache
from pasta_jax.errors import PastaError
from pasta_jax.files import fingerprints
from pasta_jax.models.sharding import decoding_mesh
from pasta_jax.progress import say
from pasta_jax.runs.checkpoint import fingerprint_of_params
from pasta_jax.weights.model import Model
from pasta_jax.weights.rules import recorded
from pasta_jax.weights.source import load


def run(settings: DecodeSettings, job: Job) -> list[AnswerRecord]:
    """Answer all prompts of a job; one answer is printed while it is decoded."""
    if settings.system and not settings.chat:
        raise PastaError("config.system: without a chat template there is no system message; drop it, or config.chat")
    refuse_idle_drafter(settings.model.drafter, settings.decoding)
    compilation_cache.seconds()  # counts from here
    job, mesh = dataclasses.replace(job, system=settings.system), decoding_mesh(settings.mesh)
    model = load(settings.model, only_decoding=True, mesh=mesh)
    sequential = settings.request.sequential
    if sequential is None:
        sequential = model.positions is None
        if sequential and job.program is None and not job.compare:
            say(f"{model.name}: not trained on the tags, so it decodes sequentially")
    if jax.process_count() > 1 and len(job.prompts) == 1:
        raise PastaError("one prompt: runs in one process; several answer --prompts_file")
    unasked = template(settings.request, model.defaults, sequential)
    # Each draws for itself: with one seed for all, what is a rare draw for one is one for all.
    requests = [request_for(model, settings, prompt, unasked.with_seed(n)) for n, prompt in enumerate(job.prompts)]
    loaded = time.perf_counter()
    if len(requests) > 1:
        about = depends_on(settings, model, job, unasked)
        return answer_many(job, model, requests, settings, about)
    if job.compare:
        baseline = None
        if settings.baseline.preset or settings.baseline.path:
            other = load(settings.baseline, only_decoding=True, mesh=mesh)
            baseline = other, request_for(other, settings, job.prompts[0], unasked)
        return compare(job, model, requests[0], baseline, settings)
    if job.program is None:
        items = stream(model, requests, settings.decoding, settings.round_steps)
    else:
        sequential = False
        say(f"replay: the answer comes from {job.program_file}, {model.name} did not write it")
        ids = job.program.ids(model.tokenizer)
        items = replay_stream(model, requests[0], ids, settings.decoding, settings.round_steps)
    return [answer_one(job, items, model.tokenizer.tags, sequential, loaded)]


def request_for(model: Model, settings: DecodeSettings, prompt: Prompt, unasked: Request) -> Request:
    """The request for a prompt; `unasked` has none."""
    tokenizer = model.tokenizer
    messages = [("system", settings.system)] if settings.system else []
    try:
        ids = tokenizer.chat([*messages, ("user", prompt.text)]) if settings.chat else tokenizer.prompt_ids(prompt.text)
    except PastaError as error:
        raise PastaError(f"{prompt.place}: {error}") from None
    return dataclasses.replace(unasked, prompt_ids=tuple(ids), text=prompt.text, name=prompt.place)


def depends_on(
    settings: DecodeSettings, model: Model, job: Job, unasked: Request
) -> dict[str, str | int | float | None]:
    """What the answers to a file of prompts and the files beside them depend on, flat, by names that a user knows.

    Neither lanes nor widths are among it: they decide how fast answers are decoded, not which.
    """
    texts = [prompt.text for prompt in job.prompts]
    request = {"max_tokens": unasked.max_tokens, "sequential": unasked.sequential} | recorded(unasked.rules)
    return {
        **model.recorded(),
        "positions": str(model.positions),
        "prompts": f"{len(texts)} prompts {fingerprints.of_texts(texts)}",
        "config.chat": settings.chat,
        "config.system": settings.system,
        **{f"config.request.{key}": value for key, value in request.items()},
        "config.decoding.rows": settings.decoding.rows,
        "config.decoding.slots": settings.decoding.slots,
        **({"seed of prompt n": "config.request.seed + n"} if unasked.rules.temperature else {}),
        **({} if settings.decoding.draft == "off" else {"config.decoding.draft": settings.decoding.draft}),
        **({"drafter": fingerprint_of_params(model.params["drafter"])} if "drafter" in model.params else {}),
        **({} if settings.decoding.forks == "eager" else {"config.decoding.forks": settings.decoding.forks}),
        "--baseline": job.baseline_tokens and fingerprints.of_data(job.baseline_tokens),
        **{f"--{flag}": str(path) for flag, path in job.outputs.by_flag().items() if flag != "output"},
    }
