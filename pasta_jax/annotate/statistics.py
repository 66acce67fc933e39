"""Statistics of annotated records: how many fork, number and length of chunks, theoretical speedup."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from pasta_jax.data.records import Record
from pasta_jax.errors import PastaError
from pasta_jax.lang.clock import geometric_mean
from pasta_jax.lang.words import words
from pasta_jax.view.plots import Histogram


@dataclasses.dataclass(frozen=True)
class Spread:
    """The distribution of a figure over records or chunks."""

    mean: float
    median: float
    tenth: float
    ninetieth: float
    most: float

    @staticmethod
    def of(values: Sequence[float]) -> "Spread":
        """The distribution of values; zeros if there are none."""
        if not len(values):
            return Spread(0, 0, 0, 0, 0)
        low, middle, high = np.percentile(values, [10, 50, 90])
        return Spread(*(round(float(v), 3) for v in (np.mean(values), middle, low, high, np.max(values))))


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Figures over all records, or where stated over those with a fork."""

    records: int
    with_fork: int
    tokens: int
    plain_tokens: int
    chunks: Spread  # of records with a fork
    chunk_tokens: Spread
    syncs: Spread  # of records with a fork
    topic_words: Spread
    speedup: float  # theoretical, geometric mean
    speedup_mean: float  # arithmetic
    speedup_with_fork: float  # geometric
    parallelism: float  # text tokens a step, geometric mean

    @property
    def share_with_fork(self) -> float:
        """Of all records."""
        return self.with_fork / self.records

    def table(self) -> str:
        """As a Markdown table."""

        def spread(s: Spread) -> str:
            return f"{s.mean:.1f} (median {s.median:g}, 10% {s.tenth:g}, 90% {s.ninetieth:g}, most {s.most:g})"

        rows = {
            "records": f"{self.records:,}",
            "with a fork": f"{self.with_fork:,} ({100 * self.share_with_fork:.1f}%)",
            "tokens of answers, tags included; without": f"{self.tokens:,}; {self.plain_tokens:,}",
            "chunks of an answer with a fork": spread(self.chunks),
            "syncs of an answer with a fork": spread(self.syncs),
            "tokens of a chunk": spread(self.chunk_tokens),
            "words of a topic": spread(self.topic_words),
            "theoretical speedup, geometric mean": f"{self.speedup:.3f} (arithmetic {self.speedup_mean:.3f})",
            "theoretical speedup over answers with a fork": f"{self.speedup_with_fork:.3f}",
            "parallelism, geometric mean": f"{self.parallelism:.3f}",
        }
        return "".join(["| | |\n|---|---|\n", *(f"| {name} | {value} |\n" for name, value in rows.items())])


def statistics(records: Sequence[Record]) -> Statistics:
    """The figures of records. The baseline of the speedup is the same answer without tags."""
    if not records:
        raise PastaError("statistics: no records; all were refused, see refused.jsonl")
    forked = [record for record in records if record.forks]
    speedups = [record.speedup for record in records]
    return Statistics(
        records=len(records),
        with_fork=len(forked),
        tokens=sum(record.tokens for record in records),
        plain_tokens=sum(record.plain_tokens for record in records),
        chunks=Spread.of([record.forks for record in forked]),
        chunk_tokens=Spread.of([length for record in forked for length in record.chunk_tokens]),
        syncs=Spread.of([record.syncs for record in forked]),
        topic_words=Spread.of([len(words(topic)) for record in forked for topic in record.topics]),
        speedup=round(geometric_mean(speedups), 4),
        speedup_mean=round(float(np.mean(speedups)), 4),
        speedup_with_fork=round(geometric_mean([record.speedup for record in forked]), 4) if forked else 1.0,
        parallelism=round(geometric_mean([record.parallelism for record in records]), 4),
    )


def panels_of(records: Sequence[Record]) -> list[Histogram]:
    """The histograms that describe a dataset."""
    forked = [record for record in records if record.forks]
    quarters = [1 + n / 4 for n in range(-1, 13)]
    return [
        Histogram("theoretical speedup", "answers with a fork", [record.speedup for record in forked], quarters),
        Histogram("chunks of an answer", "answers with a fork", [record.forks for record in forked], range(14)),
        Histogram(
            "tokens of a chunk",
            "chunks",
            [length for record in forked for length in record.chunk_tokens],
            range(0, 210, 15),
        ),
    ]
