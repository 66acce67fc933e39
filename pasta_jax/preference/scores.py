"""Scores of answers, an efficiency term plus weighted quality, and the choice of a pair to learn from."""

import dataclasses
import math
from collections.abc import Sequence
from typing import get_args

from pasta_jax.errors import PastaError
from pasta_jax.preference.candidates import Candidate
from pasta_jax.preference.settings import Efficiency


def efficiency(term: Efficiency, answer: Candidate, baseline_tokens: int) -> float:
    """The efficiency term of an answer: theoretical speedup over the baseline's own answer to the prompt, parallelism,
    or the arithmetic or harmonic mean of both. An empty answer scores 0."""
    if not answer.critical_path:
        return 0.0
    speedup, parallelism = baseline_tokens / answer.critical_path, answer.text_tokens / answer.critical_path
    match term:
        case "speedup":
            return speedup
        case "parallelism":
            return parallelism
        case "arithmetic":
            return (speedup + parallelism) / 2
        case "harmonic":
            return 2 * speedup * parallelism / (speedup + parallelism) if speedup + parallelism else 0.0
    raise PastaError(f"efficiency {term!r}: unknown term; choose one of {', '.join(get_args(Efficiency))}")


def score(efficiency: float, quality: float, weight: float) -> float:
    """The efficiency plus `weight` times the quality; with an infinite weight, the quality alone."""
    return quality if math.isinf(weight) else efficiency + weight * quality


@dataclasses.dataclass(frozen=True)
class Choice:
    """The two answers to one prompt that make a pair, by their numbers."""

    better: int
    worse: int


def choose(scores: Sequence[float | None], efficiencies: Sequence[float], whole: Sequence[bool]) -> Choice | None:
    """The best whole answer and the worst of all; None if the first scores no higher than the second.

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
    return Choice(better, worse) if scores[better] > scores[worse] else None
