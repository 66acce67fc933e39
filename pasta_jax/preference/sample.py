"""Step 1 of a round: sample answers to every prompt. Baseline and held-out answers are decoded the same way."""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any

from pasta_jax.data.pairs import Pair
from pasta_jax.data.records import prompt_ids
from pasta_jax.decode import request as decoding
from pasta_jax.decode.generate import positions_for, slots_for
from pasta_jax.decode.request import Request
from pasta_jax.errors import PastaError
from pasta_jax.files import fingerprints
from pasta_jax.files.validated import Count
from pasta_jax.preference.artifacts import Artifact, Step
from pasta_jax.preference.candidates import Candidate, sample
from pasta_jax.preference.sample_on_ray import on_workers, write_for_workers
from pasta_jax.preference.stage import RoundModel, Stage
from pasta_jax.progress import say, track
from pasta_jax.runs.checkpoint import fingerprint_of_params
from pasta_jax.tokenizers.tokenizer import tokenizer_fingerprint
from pasta_jax.weights.model import Model
from pasta_jax.weights.prepare import for_decoding


@dataclasses.dataclass(frozen=True)
class Answers:
    """The answers to one prompt."""

    prompt: Count  # its number
    answers: tuple[Candidate, ...]


def template(stage: Stage, temperature: float, seed: int, sequential: bool) -> Request:
    """A request without its prompt."""
    request = stage.settings.request
    for name in ("temperature", "seed"):
        if getattr(request, name) is not None:
            raise PastaError(f"config.request.{name}: answers are sampled with config.sample.{name}; set that instead")
    # From the model's own distribution unless the config says otherwise: what is learned is a preference between its
    # answers, by their plain log-probabilities.
    plain = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "fork_bias": 0.0}
    own = dataclasses.replace(stage.sft.defaults, temperature=temperature, **plain)
    return decoding.template(request, own, sequential).with_rules(seed=seed)


def decode_inputs(stage: Stage, model: Model, prompts: Sequence[Pair], request: Request) -> dict[str, Any]:
    """What answers depend on, apart from the model's parameters."""
    return {
        "prompts": fingerprints.of_data([dataclasses.astuple(prompt) for prompt in prompts]),
        "request": request.recorded(),
        "tokenizer": tokenizer_fingerprint(model.tokenizer),
        "decoding": dataclasses.asdict(stage.settings.decoding),
        "block": stage.settings.sample.block,
        "positions": dataclasses.asdict(positions_for(model)),
        "fields": [field.name for field in dataclasses.fields(Candidate)],
    }


def decode(
    stage: Stage, step: str, model: Model, fingerprint: str, prompts: Sequence[Pair], count: int, request: Request
) -> Artifact[Answers]:
    """`count` answers to each prompt. Prompts are decoded in fixed blocks, so a resumed run decodes like any other."""
    block, decoding = stage.settings.sample.block, stage.settings.decoding
    inputs = {"model": fingerprint, "count": count} | decode_inputs(stage, model, prompts, request)

    def compute(numbers: Sequence[int]) -> Iterator[tuple[int, Answers]]:
        began, tokens = time.monotonic(), 0
        # As many slots as all prompts need, so that every block and every share of one runs the same programs.
        requests = [
            dataclasses.replace(request, prompt_ids=tuple(prompt_ids(prompt, model.tokenizer))) for prompt in prompts
        ]
        config = dataclasses.replace(decoding, slots=slots_for(model, requests, decoding))
        some = {number: prompts[number] for number in numbers}
        if stage.settings.executor == "ray":
            sampled = on_workers(stage, fingerprint, some, count, config, request)
        else:
            sampled = sample(model, some, count, config, request)
        for number, answers in track(sampled, f"{step}, this block", len(numbers)):
            tokens += sum(len(answer.ids) for answer in answers)
            yield number, Answers(number, tuple(answers))
        say(f"{step}: {tokens / (time.monotonic() - began):.0f} tokens per second in {decoding.lanes} lanes")

    def fits(number: int, record: Answers) -> bool:
        return record.prompt == number and len(record.answers) == count

    return stage.artifacts.make(Step(step, inputs, Answers, len(prompts), compute, block, fits))


def sample_baseline(stage: Stage, prompts: Sequence[Pair]) -> Artifact[Answers]:
    """Baseline-SFT's own answers: speedups are relative to their lengths, and the judge compares with them."""
    request = template(stage, stage.settings.sample.baseline_temperature, seed=0, sequential=True)
    fingerprint = fingerprint_of_params(stage.baseline.params)
    write_for_workers(stage, stage.baseline, fingerprint)
    return decode(stage, "baseline", for_decoding(stage.baseline), fingerprint, prompts, 1, request)


def sample_round(stage: Stage, start: RoundModel, model: Model) -> Artifact[Answers]:
    """Sample answers for a round from the model it starts from; `model` is `start` ready for decoding."""
    settings, number = stage.settings.sample, start.round + 1
    # Seeds of rounds and runs lie far apart: otherwise a model that hardly changed would repeat its answers.
    seed = (settings.seed * 977 + number) * 0x9E3779B1 % 2**32
    request = template(stage, settings.temperature, seed, sequential=False)
    samples = decode(stage, "sample", model, start.fingerprint, stage.prompts, settings.count, request)
    answers = [answer for record in samples.records for answer in record.answers]
    say(f"round {number}: {len(answers)} samples, {sum(not answer.whole for answer in answers)} cut off")
    return samples
