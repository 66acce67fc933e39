"""The figures of one system over a set of prompts, relative to the baseline's: means with their 95% intervals.

The intervals are of a percentile bootstrap: prompts are drawn again with replacement.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from pasta_jax.evaluate.answers import SystemAnswer
from pasta_jax.judges.judge import Entry, Judge, both_orders, from_probability, prefers, win_rate

DRAWS = 2000
LOW, HIGH = 2.5, 97.5
ARITHMETIC = ("fork_rate", "parts_right", "last_right", "nats", "nats_over_baseline")  # means; of ratios geometric ones


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over some prompts, and the interval in which 95% of the means of redrawn prompts lie."""

    value: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def arithmetic(values: Sequence[float]) -> Estimate | None:
    """The arithmetic mean; None of nothing."""
    return _estimate(np.asarray(values, np.float64))


def geometric(values: Sequence[float]) -> Estimate | None:
    """The geometric mean of positive values; None of nothing."""
    logs = _estimate(np.log(np.asarray(values, np.float64)))
    return logs and Estimate(*(float(np.exp(value)) for value in (logs.value, logs.low, logs.high)), logs.count)


def _estimate(values: np.ndarray) -> Estimate | None:
    if not len(values):
        return None
    drawn = np.random.default_rng(0).integers(0, len(values), (DRAWS, len(values)))
    low, high = np.percentile(values[drawn].mean(axis=1), (LOW, HIGH))
    return Estimate(float(values.mean()), float(low), float(high), len(values))


Ratios = dict[str, dict[int, float]]  # of each figure, its value by prompt


def ratios(
    answers: Sequence[SystemAnswer], references: Mapping[str, Sequence[SystemAnswer]], realised: Mapping[int, float]
) -> Ratios:
    """Of answers to the same prompts. On every prompt at which both answers have text,

        speedup (the reference's steps over the answer's) = parallelism * length_ratio

    `references`: the answers to compare with, by what the names of those figures end with. `realised`: the realised
    speedup over the baseline of the timed prompts, by number.
    """
    own = {answer.number: answer for answer in answers if answer.text_tokens}
    known = {ending: {one.number: one for one in others if one.text_tokens} for ending, others in references.items()}
    found: Ratios = {}

    def add(name: str, values: dict[int, float], beside: Mapping[int, SystemAnswer]) -> None:
        found[name] = values
        # Without those that the limit cut off: a forked answer then took fewer steps than a sequential one.
        ended = {number for number in values if own[number].finished and beside[number].finished}
        found[f"{name}_of_stopped"] = {number: value for number, value in values.items() if number in ended}

    beside = known.get("", own)  # the parts of a product are of the same prompts as the product
    add("parallelism", {n: one.text_tokens / one.critical_path for n, one in own.items() if n in beside}, beside)
    for ending, plain in known.items():
        both = {number: (one, plain[number]) for number, one in own.items() if number in plain}
        if any(one.prompt != other.prompt for one, other in both.values()):
            raise ValueError("the reference answered other prompts")
        steps = {number: other.critical_path for number, (_, other) in both.items()}
        add("speedup" + ending, {number: steps[number] / own[number].critical_path for number in both}, plain)
        add("length_ratio" + ending, {number: steps[number] / own[number].text_tokens for number in both}, plain)
    forked = {number for number, one in own.items() if one.chunks}
    for name, values in [*found.items()]:
        found[f"{name}_of_forked"] = {number: value for number, value in values.items() if number in forked}
        if not name.endswith("_of_stopped"):
            found[f"{name}_of_unforked"] = {number: value for number, value in values.items() if number not in forked}
    speedup = found.get("speedup", {})
    return found | {
        "realised": dict(realised),
        "efficiency": {number: value / speedup[number] for number, value in realised.items() if number in speedup},
        "fork_rate": {answer.number: float(bool(answer.chunks)) for answer in answers},
    }


def estimates(of: Ratios, numbers: set[int] | None = None) -> dict[str, Estimate]:
    """The means by name; with `numbers`, over these prompts only. Ratios have geometric means, some the other too."""
    found: dict[str, Estimate | None] = {}
    for name, by_number in of.items():
        values = [value for number, value in by_number.items() if numbers is None or number in numbers]
        found[name] = arithmetic(values) if name in ARITHMETIC else geometric(values)
        if name in ("speedup", "parallelism", "realised"):
            found[f"{name}_arithmetic"] = arithmetic(values)
    return {name: estimate for name, estimate in found.items() if estimate is not None}


def preference(judge: Judge, question: str, answer: SystemAnswer, baseline: SystemAnswer) -> float | None:
    """The judge's preference for the answer over the baseline's, from 0 to 1, in both orders; 0.5 is a tie."""
    verdicts = both_orders(judge, question, as_entry(answer), [as_entry(baseline)])
    return None if verdicts is None else win_rate(verdicts)


def judged(preferences: Mapping[str, Mapping[int, float]], numbers: set[int] | None = None) -> dict[str, Estimate]:
    """Of each judge, the share of prompts at which it prefers the answer, a tie counting half, and its mean preference,
    which is nearer to 0.5 the less sure it is; with `numbers`, over these prompts only."""
    found: dict[str, Estimate | None] = {}
    for judge, by_number in preferences.items():
        values = [value for number, value in by_number.items() if numbers is None or number in numbers]
        found[f"preferred, {judge}"] = arithmetic([prefers([from_probability(value)]) for value in values])
        found[f"mean preference, {judge}"] = arithmetic(values)
    return {name: estimate for name, estimate in found.items() if estimate is not None}


def as_entry(answer: SystemAnswer) -> Entry:
    """An answer as judges read it."""
    return Entry(answer.text, answer.finished, tuple(chunk.topic for chunk in answer.chunks))
