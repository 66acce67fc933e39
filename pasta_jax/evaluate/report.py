"""What an evaluation found, as plain data: the figures by set of prompts and system, and the answers behind them."""

import dataclasses
from typing import Any

from pasta_jax.evaluate.answers import SystemAnswer
from pasta_jax.evaluate.figures import Figures
from pasta_jax.evaluate.interop import WinRate
from pasta_jax.evaluate.length_controlled import LengthControlled
from pasta_jax.evaluate.questions import Question
from pasta_jax.evaluate.settings import System
from pasta_jax.evaluate.summary import Estimate
from pasta_jax.evaluate.timing import Realised, Throughput


@dataclasses.dataclass(frozen=True)
class SystemReport:
    """The figures of one system on one set of prompts."""

    figures: Figures
    estimates: dict[str, Estimate]  # means with intervals, by name
    judged: dict[str, Estimate]  # against the baseline's answers: see summary.judged
    categories: dict[str, dict[str, Estimate]]


@dataclasses.dataclass(frozen=True)
class EvaluationReport:
    """The figures of all sets, by name and system, and how the answers were sampled."""

    options: dict[str, Any]
    models: dict[str, str]  # name and fingerprint, by system
    sets: dict[str, dict[str, SystemReport]]
    realised: dict[str, Realised]  # by system; empty: not measured
    throughput: dict[str, Throughput]  # likewise
    annotations: WinRate | None
    length_controlled: LengthControlled | None  # of the annotations; None: not fitted

    def products(self) -> dict[str, dict[str, dict[str, float]]]:
        """Speedup, parallelism and length ratio, by set and system."""
        names = ("speedup", "parallelism", "length_ratio")
        return {
            name: {
                system: {key: round(one.estimates[key].value, 4) for key in names if key in one.estimates}
                for system, one in systems.items()
            }
            for name, systems in self.sets.items()
        }

    def text(self) -> str:
        """A table: one row per figure, one column per set and system."""
        columns = [
            (name, system, _cells(report)) for name, systems in self.sets.items() for system, report in systems.items()
        ]
        lines = ["".join([f"{'':36}", *(f"{name:>14}" for name, _, _ in columns)])]
        lines.append("".join([f"{'':36}", *(f"{system:>14}" for _, system, _ in columns)]))
        for field in dict.fromkeys(key for _, _, one in columns for key in one):
            cells = (_cell(one.get(field)) for _, _, one in columns)
            lines.append("".join([f"{field.replace('_', ' '):36}", *(f"{cell:>14}" for cell in cells)]))
        for system, one in self.realised.items():
            lines += ["", f"realised, one prompt at a time: {system}"]
            lines += [f"{name.replace('_', ' '):36}{_cell(value):>14}" for name, value in vars(one).items()]
        for system, one in self.throughput.items():
            together = f"{one.answers} prompts, {one.lanes} at a time"
            lines += ["", f"{system}: {one.tokens_per_second:.1f} tokens of text per second, {together}"]
        if self.annotations:
            lines += ["", self.annotated()]
        return "\n".join(lines)

    def annotated(self) -> str:
        """What a judge's annotations say, in a line; nothing without any."""
        rate, fitted = self.annotations, self.length_controlled
        if rate is None:
            return ""
        lc = (
            f"LC win rate {fitted.win_rate:.2f}% (± {fitted.standard_error:.2f})" if fitted else "not length-controlled"
        )
        return (
            f"alpaca_eval: {rate.generator} over {rate.reference}: win rate {rate.win_rate:.2f}% "
            f"(± {rate.standard_error:.2f}), {lc}; {rate.judged} prompts"
        )


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Everything a report is made of."""

    report: EvaluationReport
    questions: dict[str, tuple[Question, ...]]
    answers: dict[System, list[SystemAnswer]]

    def of(self, name: str, system: System) -> list[SystemAnswer]:
        """A system's answers to a set."""
        return [answer for answer in self.answers[system] if answer.prompts == name]


def _cells(report: SystemReport) -> dict[str, Any]:
    means = report.estimates | report.judged
    return dataclasses.asdict(report.figures) | {name: estimate.value for name, estimate in means.items()}


def _cell(value: float | int | None) -> str:
    return "—" if value is None else str(value) if isinstance(value, int) else f"{value:.3f}"
