"""Step 3 of a round: pair the best and the worst answer to each prompt, by efficiency and weighted quality."""

import dataclasses
import math
from collections.abc import Iterator, Sequence

from pasta_jax.errors import PastaError
from pasta_jax.files.validated import Count, Finite
from pasta_jax.judges.judge import quality
from pasta_jax.preference.artifacts import Artifact, Step
from pasta_jax.preference.candidates import Candidate
from pasta_jax.preference.sample import Answers
from pasta_jax.preference.score import Scores
from pasta_jax.preference.settings import Efficiency
from pasta_jax.preference.stage import Stage
from pasta_jax.progress import say


@dataclasses.dataclass(frozen=True)
class PromptPair:
    """The pair of one prompt, if it has one, and the figures of all its answers."""

    prompt: Count
    better: Count | None  # number of the answer; None: no pair
    worse: Count | None
    efficiency: tuple[Finite, ...]
    quality: tuple[Finite | None, ...]  # None: the judge returned no verdict
    score: tuple[Finite | None, ...]


class NoPairs(PastaError):
    """No prompt has a better and a worse answer."""


def pair(stage: Stage, samples: Artifact[Answers], scores: Artifact[Scores]) -> Artifact[PromptPair]:
    """Choose the pairs."""
    settings = stage.settings.score
    inputs = {
        "samples": samples.fingerprint,
        "scores": scores.fingerprint,
        "score": dataclasses.asdict(settings) | {"quality_weight": str(settings.quality_weight)},  # inf is not JSON
    }

    def compute(numbers: Sequence[int]) -> Iterator[tuple[int, PromptPair]]:
        for number in numbers:
            answers, judged = samples.records[number].answers, scores.records[number]
            speeds = [efficiency(settings.efficiency, answer, judged.baseline_tokens) for answer in answers]
            qualities = [
                None if verdicts is None else quality(verdicts, settings.floor) for verdicts in judged.verdicts
            ]
            totals = [
                None if value is None else score(speed, value, settings.quality_weight)
                for speed, value in zip(speeds, qualities, strict=True)
            ]
            better, worse = choose(totals, speeds, [answer.whole for answer in answers]) or (None, None)
            yield number, PromptPair(number, better, worse, tuple(speeds), tuple(qualities), tuple(totals))

    def fits(number: int, record: PromptPair) -> bool:
        count, chosen = len(samples.records[number].answers), (record.better, record.worse)
        lengths = {len(record.efficiency), len(record.quality), len(record.score)}
        if record.prompt != number or lengths != {count}:
            return False
        if record.better is None or record.worse is None:
            return chosen == (None, None)
        return max(chosen) < count and None not in (record.quality[record.better], record.quality[record.worse])

    pairs = stage.artifacts.make(Step("pair", inputs, PromptPair, len(samples.records), compute, fits=fits))
    say_lead(stage, samples, pairs)
    return pairs


def say_lead(stage: Stage, samples: Artifact[Answers], pairs: Artifact[PromptPair]) -> None:
    """Print how many prompts have a pair, and by how much the better answers lead."""
    chosen = [record for record in pairs.records if record.better is not None]
    if not chosen:
        whole = any(answer.whole for record in samples.records for answer in record.answers)
        fix = "sample more, or from a better model" if whole else "all were cut off: raise config.request.max_tokens"
        qualities = [quality for record in pairs.records for quality in record.quality]
        if whole and qualities and qualities.count(None) == len(qualities):
            fix = "the judge gave no verdict that can be read: choose another"
        raise NoPairs(f"no prompt has a better and a worse answer; {fix}")
    speed = sum(record.efficiency[record.better] - record.efficiency[record.worse] for record in chosen) / len(chosen)
    worth = sum(record.quality[record.better] - record.quality[record.worse] for record in chosen) / len(chosen)
    say(
        f"pairs: {len(chosen)} of {len(pairs.records)} prompts have one; "
        f"better answers lead by {speed:.3f} in {stage.settings.score.efficiency} and {worth:.3f} in quality"
    )


def efficiency(term: Efficiency, answer: Candidate, baseline_tokens: int) -> float:
    """The efficiency term of an answer: theoretical speedup over the baseline's own answer to the prompt, parallelism,
    or the arithmetic or harmonic mean of both. An empty answer scores 0."""
    if not answer.critical_path:
        return 0.0
    speedup, parallelism = baseline_tokens / answer.critical_path, answer.text_tokens / answer.critical_path
    both = speedup + parallelism
    return {
        "speedup": speedup,
        "parallelism": parallelism,
        "arithmetic": both / 2,
        "harmonic": 2 * speedup * parallelism / both if both else 0.0,
    }[term]


def score(efficiency: float, quality: float, weight: float) -> float:
    """The efficiency plus `weight` times the quality; with an infinite weight, the quality alone."""
    return quality if math.isinf(weight) else efficiency + weight * quality


def choose(
    scores: Sequence[float | None], efficiencies: Sequence[float], whole: Sequence[bool]
) -> tuple[int, int] | None:
    """The numbers of the best whole answer and of the worst of all; None if the first scores no higher than the second.

    Of equal scores, both choices take the most efficient answer. An exact judge scores many answers equally when
    quality alone counts: then the pair shows what makes a fast answer good, and teaches little about speed itself.
    An answer without a score (None) could not be judged and is never chosen.
    """
    judged = [number for number, value in enumerate(scores) if value is not None]
    eligible = [number for number in judged if whole[number]]
    if not eligible:
        return None
    better = max(eligible, key=lambda number: (scores[number], efficiencies[number]))
    worse = min(judged, key=lambda number: (scores[number], -efficiencies[number]))
    return (better, worse) if scores[better] > scores[worse] else None
