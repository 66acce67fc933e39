"""What an answer is worth: an efficiency term and, weighed against it, quality; and which two of many to learn from."""

import dataclasses
import math
from collections.abc import Sequence

from pasta_jax.errors import PastaError
from pasta_jax.evaluate.candidates import Candidate

EFFICIENCY = ("speedup", "parallelism", "arithmetic", "harmonic")


def efficiency(term: str, answer: Candidate, baseline_tokens: int) -> float:
    """The efficiency term of an answer: theoretical speedup over the baseline's own answer to the prompt, parallelism,
    or a mean of both. An answer of no tokens has none."""
    if term not in EFFICIENCY:
        raise PastaError(f"efficiency {term!r}: there is none of this name; choose one of {', '.join(EFFICIENCY)}")
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


def score(efficiency: float, quality: float, weight: float) -> float:
    """The dial: quality counts `weight` times; at infinity it alone counts."""
    return quality if math.isinf(weight) else efficiency + weight * quality


@dataclasses.dataclass(frozen=True)
class Choice:
    """The answers of one prompt to learn from, by their number."""

    better: int
    worse: int


def choose(scores: Sequence[float | None], speeds: Sequence[float], whole: Sequence[bool]) -> Choice | None:
    """The best whole answer and the worst of all, of equals the fastest. None where there is nothing to tell apart.

    An exact judge, with quality alone on the dial, finds many answers equal: then a pair shows what makes a fast answer
    a good one, and teaches little of speed itself. An answer whose score is None could not be judged, and is neither.
    """
    judged = [number for number, value in enumerate(scores) if value is not None]
    fit = [number for number in judged if whole[number]]
    if not fit:
        return None
    better = max(fit, key=lambda number: (scores[number], speeds[number]))
    worse = min(judged, key=lambda number: (scores[number], -speeds[number]))
    return Choice(better, worse) if scores[better] > scores[worse] else None
