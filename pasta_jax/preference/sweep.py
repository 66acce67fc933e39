"""Runs of the preference stage over values of its settings: one table and one plot of all of them."""

import dataclasses
import itertools
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pasta_jax.errors import PastaError
from pasta_jax.files import atomic
from pasta_jax.files.remote import absolute, path_of
from pasta_jax.files.workdir import claim
from pasta_jax.llm.client import EndpointDown
from pasta_jax.preference.report import COLUMNS, Row, RunReport
from pasta_jax.preference.run import run as run_preference
from pasta_jax.preference.settings import PreferenceSettings, SweepSettings, Value
from pasta_jax.progress import say
from pasta_jax.runs.ray import on_ray
from pasta_jax.runs.settings import changed
from pasta_jax.toy.level import refuse_other_level
from pasta_jax.train.fit import Watch, unwatched
from pasta_jax.view.pareto import Point as Dot
from pasta_jax.view.pareto import pareto

MOST_RUNS = 1000


@dataclasses.dataclass(frozen=True)
class Run:
    """One run."""

    values: dict[str, Value]  # of the swept fields
    report: RunReport


@dataclasses.dataclass(frozen=True)
class Spread:
    """A figure over several runs."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f}" + (f" ({self.low:.3f} to {self.high:.3f})" if self.high > self.low else "")


@dataclasses.dataclass(frozen=True)
class SweepRow:
    """A model at one temperature, over all runs that differ in seeds alone."""

    model: str  # as tables show it
    kind: Literal["baseline", "sft", "round"]
    round: int
    values: dict[str, Value]  # of the swept fields that are not seeds; empty for models that all runs share
    temperature: float
    runs: int
    win_rate: Spread | None
    exact: Spread | None
    speedup: Spread | None
    speedup_of_ended: Spread | None
    parallelism: Spread | None
    length_ratio: Spread | None
    cut_off: Spread | None
    realised: Spread | None


class RunsFailed(PastaError):
    """Some runs failed; the results of the others are written."""

    exit_code = 1


@dataclasses.dataclass(frozen=True)
class Sweep:
    """All runs and the rows of their table."""

    runs: list[Run]
    rows: list[SweepRow]
    failed: dict[str, str]  # the error of each run that failed, by its name

    def fields(self) -> dict[str, Any]:
        """For JSON, which has no infinity."""
        runs = [{"values": plain_values(run.values), "report": run.report.fields()} for run in self.runs]
        rows = [dataclasses.asdict(row) | {"values": plain_values(row.values)} for row in self.rows]
        return {"runs": runs, "rows": rows, "failed": self.failed}

    def no_pairs(self) -> dict[str, str]:
        """Why runs had nothing to learn from, by their names."""
        return {name_of(run.values): run.report.no_pairs for run in self.runs if run.report.no_pairs}

    def refuse_failed(self) -> None:
        """Raise if runs failed; call it when the results are shown."""
        if self.failed:
            failed = "; ".join(f"{name}: {error}" for name, error in self.failed.items())
            of = len(self.runs) + len(self.failed)
            raise RunsFailed(f"{len(self.failed)} of {of} runs failed, rerun the command to repeat them: {failed}")


def plain_values(values: Mapping[str, Value]) -> dict[str, str]:
    """Values as text."""
    return {field: str(value) for field, value in values.items()}


def run(settings: SweepSettings, workdir: Path, watch: Watch = unwatched) -> Sweep | None:
    """Do all runs, or those that remain, here or on Ray; write results.json, results.md and pareto.svg to the workdir.

    A run that fails stops no other one. The result is None if `watch` (see preference/run.py) stopped a training run;
    the same call resumes. A workdir that another process uses is refused.
    """
    with claim(workdir):
        found = points_of(settings, workdir)
        sweep, reports = Sweep([], [], {}), {}
        outcomes = on_ray(settings.ray, _on_worker, found) if settings.executor == "ray" else _here(found, watch)
        for number, outcome in outcomes:
            point = found[number]
            if isinstance(outcome, PastaError):
                say(f"run {number + 1} of {len(found)} failed: {outcome}")
                sweep.failed[point.name] = str(outcome)
                continue
            if outcome is None:
                return None
            reports[number] = Run(point.values, outcome)
            runs = [reports[done] for done in sorted(reports)]
            sweep = dataclasses.replace(sweep, runs=runs, rows=rows_of(runs))
            write_results(sweep, workdir)  # after each run, so that whatever ends the next one leaves a table
        if not sweep.runs:
            sweep.refuse_failed()
        write_results(sweep, workdir)
        return sweep


@dataclasses.dataclass(frozen=True)
class Point:
    """One run to do."""

    values: dict[str, Value]
    stage: PreferenceSettings
    workdir: Path

    @property
    def name(self) -> str:
        """As tables and folders show it."""
        return name_of(self.values)


def points_of(settings: SweepSettings, workdir: Path) -> list[Point]:
    """All runs. Every one is read before anything runs, so that a bad value shows at once.

    Their folders are absolute: Ray's workers may have another current one.
    """
    found, workdir = [], absolute(workdir)
    for values in points(settings):
        stage = settings_of(settings.base, values, workdir)
        if stage.prompts.toy:
            models = {"base.model": stage.model, "base.baseline": stage.baseline}
            refuse_other_level(stage.prompts.toy, "base.prompts.toy", **models)
        found.append(Point(values, stage, workdir / "points" / name_of(values)))
    return found


def run_point(settings: SweepSettings, workdir: Path, name: str, watch: Watch = unwatched) -> RunReport | None:
    """Do one run, by its name; see `run`."""
    found = {point.name: point for point in points_of(settings, workdir)}
    if name not in found:
        raise PastaError(f"--point={name}: no run of this sweep; choose from {', '.join(found)}")
    return run_preference(found[name].stage, found[name].workdir, watch)


def commands(settings: SweepSettings, workdir: Path, argv: Sequence[str]) -> list[str]:
    """A shell command for each run; afterwards the command of `argv` itself makes the table of what they computed."""
    own = [*argv, "--config.executor=local"]
    return [shlex.join([*own, f"--point={point.name}"]) for point in points_of(settings, workdir)]


def _here(found: Sequence[Point], watch: Watch) -> Iterator[tuple[int, RunReport | PastaError | None]]:
    """Do the runs one after another."""
    for number, point in enumerate(found):
        say(f"run {number + 1} of {len(found)}: {point.name}")
        try:
            yield number, run_preference(point.stage, point.workdir, watch)
        except EndpointDown:  # it is down for the other runs too
            raise
        except PastaError as error:
            yield number, error


def _on_worker(point: Point) -> RunReport:
    """Do one run in a worker of Ray, to its end."""
    report = run_preference(point.stage, point.workdir)
    assert report is not None
    return report


def write_results(sweep: Sweep, workdir: Path) -> None:
    """The figures, the table and the plot."""
    atomic.write_json(workdir / "results.json", sweep.fields())
    atomic.write_whole(workdir / "results.md", markdown(sweep))
    rows = [row for run in sweep.runs for row in run.report.rows]
    first = next((row.temperature for row in rows if row.kind == "sft"), 0.0)
    atomic.write_whole(workdir / "pareto.svg", plot(sweep.rows, first))


def points(settings: SweepSettings) -> list[dict[str, Value]]:
    """The swept fields' values in each run."""
    fields, choices = settings.fields, settings.choices
    if len(fields) != len(choices) or not fields:
        raise PastaError(f"config.choices: {len(choices)} lists for {len(fields)} fields; set one list for each field")
    if not all(choices):
        raise PastaError("config.choices: one of its lists is empty; give each field a value or more")
    if not settings.base.evaluate.count:
        raise PastaError("config.base.evaluate.count is 0: a sweep compares models; set how many prompts are held out")
    match settings.mode:
        case "grid":
            if math.prod(map(len, choices)) > MOST_RUNS:
                raise PastaError(f"config.choices: a grid of more than {MOST_RUNS} runs; sweep fewer values")
            combinations = list(itertools.product(*choices))
        case "zip":
            if len(set(map(len, choices))) > 1:
                raise PastaError(f"config.choices: zip needs lists of one length, not {[*map(len, choices)]}")
            combinations = list(zip(*choices, strict=True))
    return [dict(zip(fields, values, strict=True)) for values in combinations]


def settings_of(base: PreferenceSettings, values: Mapping[str, Value], workdir: Path) -> PreferenceSettings:
    """The base with a run's values."""
    shared = path_of(base.artifacts) if base.artifacts else workdir / "artifacts"
    changes: dict[str, Any] = {"artifacts": str(absolute(shared))}
    changes |= {field: value for fields, value in values.items() for field in fields.split("+")}
    return changed(base, "config.base", **changes)


def name_of(values: Mapping[str, Value]) -> str:
    """A run's name, also that of its folder."""
    return ",".join(f"{last_key(field)}={value}" for field, value in values.items())


def last_key(fields: str) -> str:
    """The last key of the first field of `a.b+c.d`."""
    return fields.split("+")[0].split(".")[-1]


def is_seed(fields: str) -> bool:
    """Whether all fields of `a.b+c.d` are seeds."""
    return all(field.split(".")[-1] == "seed" for field in fields.split("+"))


def rows_of(runs: Sequence[Run]) -> list[SweepRow]:
    """A row for each model and temperature. Runs that differ in seeds alone share one, and all runs share that of the
    baseline or of Pasta-SFT if no swept value changes it."""
    groups: dict[tuple, list[Row]] = {}
    for run in runs:
        swept = tuple((field, value) for field, value in run.values.items() if not is_seed(field))
        for row in run.report.rows:
            groups.setdefault((row.kind, row.round, swept, row.temperature), []).append(row)
    for kind, temperature in dict.fromkeys((key[0], key[3]) for key in groups if key[0] != "round"):
        same = [key for key in groups if (key[0], key[3]) == (kind, temperature)]
        most = groups[max(same, key=lambda key: len(groups[key]))]  # where a run failed, there are fewer
        if all(row in most for key in same for row in groups[key]):
            groups[kind, 0, (), temperature] = [row for key in same for row in groups.pop(key)]
    several_rounds = any(number > 1 for _, number, _, _ in groups)
    rows = []
    for (kind, number, values, temperature), group in groups.items():
        label = label_of(name_of(dict(values)), group[0], several_rounds)
        spreads = {name: spread_of([getattr(row, name) for row in group]) for name in COLUMNS}
        rows.append(SweepRow(label, kind, number, dict(values), temperature, len(group), **spreads))
    order = list(dict.fromkeys(row.temperature for run in runs for row in run.report.rows))
    return sorted(rows, key=lambda row: (order.index(row.temperature), row.kind == "round", row.kind == "sft"))


def label_of(values: str, row: Row | SweepRow, several_rounds: bool) -> str:
    """How tables and plots name a model; `values` are those of the swept fields."""
    if row.kind != "round":
        return f"{row.model}, {values}" if values else row.model
    return f"{values} round {row.round}" if several_rounds else values


def spread_of(values: Sequence[float | None]) -> Spread | None:
    """Mean and range of the values that were measured."""
    measured = [value for value in values if value is not None]
    return Spread(round(sum(measured) / len(measured), 4), min(measured), max(measured)) if measured else None


def markdown(sweep: Sweep) -> str:
    """The table: means, with the range where runs differ; a run without pairs is marked so."""
    lines = ["| model | answers | " + " | ".join(COLUMNS) + " |", "|" + "---|" * (2 + len(COLUMNS))]
    for row in sweep.rows:
        cells = ("—" if getattr(row, name) is None else str(getattr(row, name)) for name in COLUMNS)
        lines.append(f"| {row.model} | temperature {row.temperature:g} | " + " | ".join(cells) + " |")
    lines += [f"| {name} | no pairs |" + " — |" * len(COLUMNS) for name in sweep.no_pairs()]
    return "\n".join(lines) + "\n"


def plot(rows: Sequence[SweepRow], temperature: float) -> str:
    """Exactness (without an exact grader: the win rate) against both speedups, of answers at this temperature."""
    exact = any(row.exact is not None for row in rows)
    several_rounds = any(row.round > 1 for row in rows)
    panels = []
    for title, realised in (("theoretical speedup", False), ("realised speedup", True)):
        dots = []
        for row in rows:
            x, y = row.realised if realised else row.speedup, row.exact if exact else row.win_rate
            if x is None or y is None or (row.temperature != temperature and row.kind != "baseline"):
                continue
            name = label_of(short_name(row.values), row, several_rounds)
            family = f"round {row.round}" if row.kind == "round" else row.model
            dots.append(Dot(name, family, x.mean, y.mean, (x.low, x.high), (y.low, y.high)))
        if dots or not realised:
            panels.append((title, "exact answers" if exact else "win rate", dots))
    return pareto(panels)


def short_name(values: Mapping[str, Value]) -> str:
    """Values as dots name them: λ is the quality weight."""

    def text(value: Value) -> str:
        return f"{value:g}".replace("inf", "∞") if isinstance(value, float) else str(value)

    def key(field: str) -> str:
        return "λ" if field == "score.quality_weight" else last_key(field)

    return ",".join(f"{key(field)}={text(value)}" for field, value in values.items())
