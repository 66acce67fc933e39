"""Means over prompts with their 95% intervals: prompts are drawn again with replacement (percentile bootstrap)."""

import dataclasses
from collections.abc import Sequence

import numpy as np

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
