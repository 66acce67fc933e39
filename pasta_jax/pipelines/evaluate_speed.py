"""Realised speedup: seconds of a baseline's answers over those of a model's to the same prompts, one at a time.

Model and baseline alternate, because a machine's speed drifts; of several rounds the median counts. The answers are
those of the same prompts, options and seeds in any other run.
"""

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from pasta_jax import files, fingerprints
from pasta_jax.decode.generate import DecodeConfig, Request, generate, slots_for
from pasta_jax.decode.trace import Trace
from pasta_jax.errors import PastaError
from pasta_jax.lang.clock import geometric_mean
from pasta_jax.models.weights import Model
from pasta_jax.progress import Progress

ROUNDS = 3


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds of one prompt's answers, prefill included; medians over rounds."""

    number: int
    seconds: float
    baseline_seconds: float
    chunks: int
    critical_path: int
    baseline_steps: int


@dataclasses.dataclass(frozen=True)
class Realised:
    """Geometric means over prompts."""

    prompts: int
    speedup: float
    theoretical: float  # of the same answers
    forked: int
    speedup_of_forked: float | None
    theoretical_of_forked: float | None


def realised(timings: Sequence[Timing]) -> Realised:
    """The figures of some timings. Answers without tokens are left out."""
    some = [timing for timing in timings if timing.critical_path and timing.baseline_steps]
    forked = [timing for timing in some if timing.chunks]

    def mean(timings: Sequence[Timing]) -> float:
        return geometric_mean(timing.baseline_seconds / timing.seconds for timing in timings)

    def mean_of_steps(timings: Sequence[Timing]) -> float:
        return geometric_mean(timing.baseline_steps / timing.critical_path for timing in timings)

    if not some:
        raise PastaError("config.timed: all timed answers are empty; time more prompts")
    return Realised(
        prompts=len(some),
        speedup=mean(some),
        theoretical=mean_of_steps(some),
        forked=len(forked),
        speedup_of_forked=mean(forked) if forked else None,
        theoretical_of_forked=mean_of_steps(forked) if forked else None,
    )


def time_answers(
    models: Sequence[Model],
    requests: Sequence[Sequence[Request]],
    config: DecodeConfig,
    about: Sequence[dict[str, Any]],
    workdir: Path,
) -> list[Timing]:
    """Time the requests of a model and of its baseline, which are two of each; an earlier run's timings are read.

    `about` states what the answers depend on.
    """
    header = {"models": list(about), "rounds": ROUNDS, "timed": len(requests[0])}
    alone = dataclasses.replace(config, lanes=1)
    configs = [
        dataclasses.replace(alone, slots=slots_for(model, own, alone))
        for model, own in zip(models, requests, strict=True)
    ]

    def answered(number: int) -> list[Trace]:
        several = zip(models, requests, configs, strict=True)
        return [generate(model, [own[number]], slots)[0].trace for model, own, slots in several]

    path = workdir / f"timings-{fingerprints.of_data(header)}.jsonl"
    with files.JsonLines(path, exclusive=True) as lines:
        if not lines.lines:
            lines.append(header)
        timings = [msgspec.json.decode(line, type=Timing) for line in lines.lines[1:]]
        with Progress("timings", len(requests[0]), len(timings)) as progress:
            for number in range(len(timings), len(requests[0])):
                _, *rounds = [answered(number) for _ in range(1 + ROUNDS)]  # the first one may compile
                ours, plain = rounds[0]
                timing = Timing(
                    number=number,
                    seconds=statistics.median(own.rounds[-1][1] / 1000 for own, _ in rounds),
                    baseline_seconds=statistics.median(other.rounds[-1][1] / 1000 for _, other in rounds),
                    chunks=len(ours.closed) - 1,
                    critical_path=ours.critical_path,
                    baseline_steps=plain.critical_path,
                )
                lines.append(dataclasses.asdict(timing))
                timings.append(timing)
                progress.add()
    return timings
