"""The figures of one system over a set of prompts, relative to the baseline's: means with their 95% intervals.

The intervals are of a percentile bootstrap: prompts are drawn again with replacement.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from pasta_jax.evaluate.answers import SystemAnswer
from pasta_jax.judges.judge import Entry, Judge, both_orders, win_rate

DRAWS = 2000
LOW, HIGH = 2.5, 97.5


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


@dataclasses.dataclass(frozen=True)
class Ratios:
    """One value by prompt, of the prompts that have it."""

    speedup: Mapping[int, float]  # theoretical: the baseline's steps over the answer's critical path
    speedup_of_stopped: Mapping[int, float]  # of prompts at which both answers ended by themselves
    parallelism: Mapping[int, float]
    fork_rate: Mapping[int, float]
    realised: Mapping[int, float]
    efficiency: Mapping[int, float]  # realised over theoretical


def ratios(
    answers: Sequence[SystemAnswer], baseline: Sequence[SystemAnswer] | None, realised: Mapping[int, float]
) -> Ratios:
    """Of answers to the same prompts. `realised`: the realised speedup of the timed prompts, by number."""
    plain = {answer.number: answer for answer in baseline or ()}
    if baseline is not None and any(plain[answer.number].prompt != answer.prompt for answer in answers):
        raise ValueError("the baseline answered other prompts")
    speedup = {
        answer.number: plain[answer.number].critical_path / answer.critical_path
        for answer in answers
        if answer.number in plain and answer.critical_path and plain[answer.number].critical_path
    }
    stopped = {answer.number for answer in answers if answer.finished}
    return Ratios(
        speedup=speedup,
        speedup_of_stopped={n: value for n, value in speedup.items() if n in stopped and plain[n].finished},
        parallelism={
            answer.number: answer.text_tokens / answer.critical_path for answer in answers if answer.text_tokens
        },
        fork_rate={answer.number: float(bool(answer.chunks)) for answer in answers},
        realised=realised,
        efficiency={number: value / speedup[number] for number, value in realised.items() if number in speedup},
    )


def estimates(of: Ratios, numbers: set[int] | None = None) -> dict[str, Estimate]:
    """The means by name; with `numbers`, over these prompts only. Ratios have both means, the geometric one first."""
    found: dict[str, Estimate | None] = {}
    for field in dataclasses.fields(of):
        by_number = getattr(of, field.name)
        values = [value for number, value in by_number.items() if numbers is None or number in numbers]
        if field.name == "fork_rate":
            found[field.name] = arithmetic(values)
            continue
        found[field.name] = geometric(values)
        if field.name in ("speedup", "parallelism", "realised"):
            found[f"{field.name}_arithmetic"] = arithmetic(values)
    return {name: estimate for name, estimate in found.items() if estimate is not None}


def wins(judge: Judge, answers: Sequence[SystemAnswer], baseline: Sequence[SystemAnswer]) -> dict[int, float]:
    """The judge's preference for each answer over the baseline's, from 0 to 1, in both orders; 0.5 is a tie."""
    found = {}
    for answer, plain in zip(answers, baseline, strict=True):
        verdicts = both_orders(judge, answer.prompt, as_entry(answer), [as_entry(plain)])
        if verdicts is not None:
            found[answer.number] = win_rate(verdicts)
    return found


def shares(won: Mapping[str, Mapping[int, float]], numbers: set[int] | None = None) -> dict[str, Estimate]:
    """The mean preference by judge; with `numbers`, over these prompts only."""
    found = {
        judge: arithmetic([value for number, value in values.items() if numbers is None or number in numbers])
        for judge, values in won.items()
    }
    return {judge: estimate for judge, estimate in found.items() if estimate is not None}


def as_entry(answer: SystemAnswer) -> Entry:
    """An answer as judges read it."""
    return Entry(answer.text, answer.finished, tuple(chunk.topic for chunk in answer.chunks))
