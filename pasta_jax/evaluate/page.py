"""The report of an evaluation for people: one self-contained HTML page, and the same in Markdown with its pictures."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from markupsafe import Markup

from pasta_jax.data.repetition import repeated
from pasta_jax.evaluate.answers import SystemAnswer
from pasta_jax.evaluate.published import PAPER, SETTING
from pasta_jax.evaluate.report import Evaluation, SystemReport
from pasta_jax.evaluate.settings import System
from pasta_jax.evaluate.summary import Estimate
from pasta_jax.evaluate.systems import SHOWN
from pasta_jax.files import atomic
from pasta_jax.view.lanes import lanes
from pasta_jax.view.pareto import Point, pareto
from pasta_jax.view.plots import Dots, Histogram, histograms, scatter
from pasta_jax.view.style import DRAWING, SANS, css_variables
from pasta_jax.view.templates import render
from pasta_jax.view.text import short

SPEEDUP_EDGES = (0, 0.5, 0.75, 1, 1.25, 1.5, 2, 2.5, 3, 4, 5)
WORST = 10
COLUMNS = ("wins %", "realised", "theoretical", "parallelism", "efficiency", "forked %")


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the report: text, then a table or a picture."""

    title: str
    text: str
    rows: Sequence[Sequence[str]] = ()  # of a table; the first one is its head
    picture: str = ""  # SVG
    name: str = ""  # of the picture's file

    @property
    def inline(self) -> Markup:
        """The picture within a page: without the declaration of a file."""
        return Markup(self.picture[self.picture.index("<svg") :])


def write_report(evaluation: Evaluation, texts: bool, workdir: Path) -> None:
    """Write report.html, report.md and its pictures. `texts`: with prompts and answers, which may be of others."""
    parts = sections(evaluation, texts)
    for part in parts:
        if part.picture:
            atomic.write_whole(workdir / f"{part.name}.svg", part.picture)
    contents = {
        "style": Markup(css_variables() + DRAWING),
        "sans": Markup(SANS),
        "about": about(evaluation),
        "parts": parts,
        "first": SHOWN[next(iter(evaluation.answers))],
        "worst": worst(evaluation) if texts else [],
        "prompts": list(timelines(evaluation, texts)),
    }
    for name in ("report.html", "report.md"):
        atomic.write_whole(workdir / name, render(Path(__file__).with_name(name), **contents))


def about(evaluation: Evaluation) -> str:
    """What was measured, in a line."""
    sets = ", ".join(f"{len(chosen)} prompts of {name}" for name, chosen in evaluation.questions.items())
    sampling = evaluation.report.options["sampling"]
    how = f"temperature {sampling['temperature']:g}, seed {sampling['seed']}"
    models = ", ".join(f"{SHOWN[system]}: {model}" for system, model in evaluation.report.models.items())
    return f"{sets}; {how}. {models}."


def sections(evaluation: Evaluation, texts: bool) -> list[Section]:
    """The parts of the report, in order; `texts`: pictures name prompts and topics."""
    name = next(iter(evaluation.report.sets))
    systems = evaluation.report.sets[name]
    parts = [_beside_the_paper(evaluation, systems), _pareto(systems)]
    others = [system for system in systems if system != "baseline"]
    plain = {answer.number: answer for answer in evaluation.answers.get("baseline", ()) if answer.prompts == name}
    if plain and others:
        parts += _speedups(evaluation, name, others, plain, texts)
    parts += _calibration(evaluation, name, texts)
    parts += _categories(systems)
    parts += [_sets(evaluation)] * (len(evaluation.report.sets) > 1)
    parts += [_throughput(evaluation)] * bool(evaluation.report.throughput)
    return parts


def cell(estimate: Estimate | None, factor: float = 1.0) -> str:
    """A mean with its interval."""
    if estimate is None:
        return "—"
    value, low, high = (factor * number for number in (estimate.value, estimate.low, estimate.high))
    digits = 1 if factor > 1 else 2
    return f"{value:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def figure_row(system: str, report: SystemReport) -> list[str]:
    """A system's row under COLUMNS."""
    of = report.estimates
    win = next(iter(report.wins.values()), None)
    shown = [of.get(key) for key in ("realised", "speedup", "parallelism", "efficiency")]
    values = ["1"] * 4 if system == "baseline" else map(cell, shown)
    wins = "50" if system == "baseline" else cell(win, 100)
    return [SHOWN[system], wins, *values, cell(of.get("fork_rate"), 100)]


def _beside_the_paper(evaluation: Evaluation, systems: dict[str, SystemReport]) -> Section:
    rows = [["", *COLUMNS], *(figure_row(system, report) for system, report in systems.items())]
    for one in PAPER:
        numbers = (one.realised, one.speedup, one.parallelism, one.efficiency)
        rows.append([f"paper: {one.name}", f"{one.win_rate:.1f}", *(f"{number:.2f}" for number in numbers), "—"])
    judge = next((name for report in systems.values() for name in report.wins), None)
    won = f"“wins” is the share of prompts whose answer the judge {judge} prefers to the baseline's" if judge else ""
    text = (
        "Geometric means over prompts with 95% intervals. Realised speedup is the baseline's seconds over the "
        "system's, one prompt at a time in the same interpreter; theoretical speedup counts steps. "
        f"{won or 'Wins were not judged'}. The paper's setting: {SETTING}."
    )
    if annotated := evaluation.report.annotated():
        text += f" {annotated}."
    return Section("The paper's table beside ours", text, rows)


def _pareto(systems: dict[str, SystemReport]) -> Section:
    points = []
    measured = "realised" if any("realised" in report.estimates for report in systems.values()) else "speedup"
    for system, report in systems.items():
        speed = report.estimates.get(measured)
        win = next(iter(report.wins.values()), None)
        if system == "baseline":
            points.append(Point(SHOWN[system], SHOWN[system], 1.0, 50.0, (1.0, 1.0), (50.0, 50.0)))
        elif speed and win:
            x, y = (speed.low, speed.high), (100 * win.low, 100 * win.high)
            points.append(Point(SHOWN[system], SHOWN[system], speed.value, 100 * win.value, x, y))
    paper = [
        Point(one.name, one.family, one.realised, one.win_rate, (one.realised,) * 2, (one.win_rate,) * 2)
        for one in PAPER
    ]
    kind = "realised speedup" if measured == "realised" else "theoretical speedup"
    panels = [(f"ours: {kind}", "wins %", points), ("the paper: realised speedup", "LC win rate %", paper)]
    return Section("Quality against speed", "Right and up is better.", picture=pareto(panels), name="pareto")


def _speedups(
    evaluation: Evaluation, name: str, systems: Sequence[System], plain: dict[int, SystemAnswer], texts: bool
) -> list[Section]:
    by_system = {}
    for system in systems:
        pairs = [(answer, plain[answer.number]) for answer in evaluation.of(name, system)]
        by_system[system] = [(own, other) for own, other in pairs if own.critical_path and other.critical_path]
    panels, dots = [], []
    for system, pairs in by_system.items():
        ratios = [other.critical_path / own.critical_path for own, other in pairs]
        panels.append(Histogram(SHOWN[system], "answers", ratios, SPEEDUP_EDGES))
        names = [
            f"{short(own.prompt, 60) if texts else own.number}: {ratio:.2f}"
            for (own, _), ratio in zip(pairs, ratios, strict=True)
        ]
        lengths = [float(other.text_tokens) for _, other in pairs]
        dots.append(Dots(SHOWN[system], "tokens of the baseline's answer", "speedup", lengths, ratios, False, names))
    return [
        Section("Distribution of speedups", "Theoretical, by prompt.", picture=histograms(panels), name="speedups"),
        Section("Speedup against length", "Theoretical, by prompt.", picture=scatter(dots), name="lengths"),
    ]


def _calibration(evaluation: Evaluation, name: str, texts: bool) -> list[Section]:
    if "model" not in evaluation.answers:
        return []
    chunks = [chunk for answer in evaluation.of(name, "model") for chunk in answer.chunks if chunk.closed == "own"]
    if not chunks:
        return []
    of = evaluation.report.sets[name]["model"].figures
    correlation = "unknown" if of.length_correlation is None else f"{of.length_correlation:.2f}"
    text = (
        f"Over {len(chunks)} chunks that ended themselves: {of.promised:.0f} tokens promised and {of.length:.0f} "
        f"written on average, {of.length_error:.0f} off, correlation {correlation}. The line is where both are equal."
    )
    promised, length = [float(chunk.promised) for chunk in chunks], [float(chunk.length) for chunk in chunks]
    names = [f"{chunk.topic * texts}: {chunk.promised} promised, {chunk.length} written" for chunk in chunks]
    dots = Dots("chunks", "tokens promised", "tokens written", promised, length, True, names)
    return [Section("Promised against real lengths", text, picture=scatter([dots]), name="calibration")]


def _categories(systems: dict[str, SystemReport]) -> list[Section]:
    names = sorted({category for report in systems.values() for category in report.categories})
    if not names:
        return []
    shown = {system: report for system, report in systems.items() if system != "baseline"}
    judge = next((name for report in shown.values() for name in report.wins), None)
    columns = {"speedup": ("speedup", 1), "parallelism": ("parallelism", 1)}
    if judge:
        columns["wins %"] = (f"wins, {judge}", 100)
    rows = [["", "prompts", *(f"{SHOWN[system]}: {what}" for system in shown for what in columns)]]
    for category in names:
        found = [report.categories.get(category, {}) for report in shown.values()]
        count = max((one["fork_rate"].count for one in found if "fork_rate" in one), default=0)
        figures = (cell(one.get(key), factor) for one in found for key, factor in columns.values())
        rows.append([category, str(count), *figures])
    text = f"Theoretical speedup and parallelism, geometric means{'; wins over the baseline' if judge else ''}."
    return [Section("By category", text, rows)]


def _sets(evaluation: Evaluation) -> Section:
    rows = [["", "set", *COLUMNS, "rules followed"]]
    for name, systems in evaluation.report.sets.items():
        for system, report in systems.items():
            shown, *values = figure_row(system, report)
            rules = "—" if report.figures.rules is None else f"{100 * report.figures.rules:.1f} %"
            rows.append([shown, name, *values, rules])
    return Section("By set of prompts", "Rules are IFEval's: the share of prompts with all of them followed.", rows)


def _throughput(evaluation: Evaluation) -> Section:
    rows = [["", "prompts", "at a time", "seconds", "tokens per second"]]
    for system, one in evaluation.report.throughput.items():
        figures = (str(one.answers), str(one.lanes), f"{one.seconds:.1f}", f"{one.tokens_per_second:.1f}")
        rows.append([SHOWN[system], *figures])
    return Section("Throughput", "Many prompts at a time; tokens of text, without tags and topics.", rows)


def worst(evaluation: Evaluation) -> list[tuple[str, str, str]]:
    """(prompt, answer, why) of the first system's answers: the most repetitive, then those that were cut off."""

    def badness(answer: SystemAnswer) -> tuple[float, bool]:
        words = answer.text.casefold().split()
        return repeated(words) if words else 1.0, not answer.finished

    ranked = sorted(next(iter(evaluation.answers.values())), key=badness, reverse=True)[:WORST]
    reasons = [f"{100 * badness(answer)[0]:.0f}% repeated" + ", cut off" * (not answer.finished) for answer in ranked]
    return [(short(answer.prompt, 90), answer.text, why) for answer, why in zip(ranked, reasons, strict=True)]


def timelines(evaluation: Evaluation, texts: bool) -> Iterator[tuple[str, str, list[tuple[str, Markup, str]]]]:
    """(prompt, steps of each system, (system, its threads over its steps, its answer) of each) by prompt."""
    by_key: dict[tuple[str, int], dict[System, SystemAnswer]] = {}
    for system, answers in evaluation.answers.items():
        for answer in answers:
            by_key.setdefault((answer.prompts, answer.number), {})[system] = answer
    for (name, number), several in by_key.items():
        most = max(max(answer.fed.steps, default=0) for answer in several.values())
        shown = []
        for system, answer in several.items():
            first = "skeleton" if system in ("skeleton", "unshared") and answer.chunks else "main"
            topics = (chunk.topic if texts else f"chunk {n}" for n, chunk in enumerate(answer.chunks, start=1))
            picture = lanes(answer.fed.threads, answer.fed.steps, [first, *topics], most)
            shown.append((SHOWN[system], Markup(picture), answer.text * texts))
        prompt = next(iter(several.values())).prompt
        steps = " · ".join(f"{SHOWN[system]} {answer.critical_path}" for system, answer in several.items())
        yield short(prompt, 90) if texts else f"{name}, prompt {number}", steps, shown
