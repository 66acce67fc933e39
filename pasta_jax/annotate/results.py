"""The files of an annotation run: accepted and refused records, the summary, statistics and histograms."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pasta_jax.annotate.statistics import Statistics, panels_of, statistics
from pasta_jax.annotate.verify import Refusal
from pasta_jax.data.pairs import Unreadable
from pasta_jax.data.records import Record
from pasta_jax.files.atomic import write_json, write_lines, write_whole
from pasta_jax.files.jsonl import as_line
from pasta_jax.llm.cache import Cost
from pasta_jax.view.plots import histograms

RECORDS, REFUSED, SUMMARY = "records.jsonl", "refused.jsonl", "summary.json"
TABLE, CHART = "statistics.md", "chart.svg"
MOST_WITH_FORK = 0.9  # share of records; above it a warning


@dataclasses.dataclass(frozen=True)
class Skipped:
    """Records of a source that were not annotated."""

    unreadable: list[Unreadable]
    left_out: list[Refusal]
    unanswered: Counter[str]  # by reason; the next run asks for them again


@dataclasses.dataclass(frozen=True)
class Summary:
    """The outcome of every record of a source; the content of summary.json."""

    annotator: str
    source: str
    tokenizer: str
    read: int
    unreadable: dict[str, int]  # by reason, like `left_out`, `unanswered` and `refused`
    left_out: dict[str, int]
    unanswered: dict[str, int]
    annotated: int
    kept: int
    kept_by_split: dict[str, int]
    refused: dict[str, int]
    cost: Cost | None  # of an endpoint's answers, those of earlier runs included; None for other annotators
    statistics: Statistics | None  # None if no record was kept

    def json(self) -> dict[str, object]:
        """As plain data."""
        fields = dataclasses.asdict(self)
        absent = {name for name in ("cost", "statistics") if fields[name] is None}
        return {name: fields[name] for name in fields if name not in absent}

    def text(self) -> str:
        """For a terminal."""
        counts = {"unreadable": self.unreadable, "left out": self.left_out, "refused": self.refused}
        if self.unanswered:
            counts["unanswered"] = self.unanswered
        lines = [f"read {self.read:,}, " + ", ".join(f"{kind} {sum(by.values()):,}" for kind, by in counts.items())]
        lines += [f"  {kind}: {reason}: {count:,}" for kind, by in counts.items() for reason, count in by.items()]
        lines.append(f"kept {self.kept:,} records")
        if s := self.statistics:
            lines.append(
                f"with a fork {s.with_fork:,} ({s.share_with_fork:.1%}), theoretical speedup {s.speedup:.3f} "
                f"(geometric mean; {s.speedup_with_fork:.3f} over answers with a fork)"
            )
            if s.share_with_fork > MOST_WITH_FORK:
                lines.append("nearly all answers have a fork; add some without, or a model learns to fork everywhere")
        if self.cost:
            lines.append(f"the endpoint's answers, all runs together: {self.cost.text()}")
        return "\n".join(lines)


def write_results(
    folder: Path,
    verdicts: Sequence[Record | Refusal],
    skipped: Skipped,
    annotator: str,
    source: str,
    tokenizer: str,
    cost: Cost | None,
) -> Summary:
    """Write the files of a run, each whole or not at all, the summary last."""
    records = [verdict for verdict in verdicts if isinstance(verdict, Record)]
    refused = [verdict for verdict in verdicts if isinstance(verdict, Refusal)]
    unreadable = [Refusal("", "", row.place, row.reason, row.detail, "") for row in skipped.unreadable]
    summary = Summary(
        annotator=annotator,
        source=source,
        tokenizer=tokenizer,
        read=len(verdicts) + len(skipped.unreadable) + len(skipped.left_out) + skipped.unanswered.total(),
        unreadable=dict(Counter(row.reason for row in skipped.unreadable).most_common()),
        left_out=dict(sorted(Counter(row.reason for row in skipped.left_out).items())),
        unanswered=dict(sorted(skipped.unanswered.items())),
        annotated=len(verdicts),
        kept=len(records),
        kept_by_split=dict(sorted(Counter(record.split for record in records).items())),
        refused=dict(Counter(refusal.reason for refusal in refused).most_common()),
        cost=cost,
        statistics=statistics(records) if records else None,
    )
    write_lines(folder / RECORDS, map(as_line, records))
    write_lines(folder / REFUSED, map(as_line, [*unreadable, *skipped.left_out, *refused]))
    if summary.statistics:
        write_whole(folder / TABLE, summary.statistics.table())
        write_whole(folder / CHART, histograms(panels_of(records)))
    write_json(folder / SUMMARY, summary.json())
    return summary
