"""The report of an evaluation for people: one self-contained HTML page, and the same in Markdown with its pictures."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from markupsafe import Markup

from pasta_jax.evaluate import interop, multipart
from pasta_jax.evaluate.answers import SystemAnswer
from pasta_jax.evaluate.published import PAPER, SETTING
from pasta_jax.evaluate.report import Evaluation, SystemReport
from pasta_jax.evaluate.settings import System
from pasta_jax.evaluate.summary import Estimate
from pasta_jax.evaluate.systems import SHOWN
from pasta_jax.files import atomic
from pasta_jax.judges.offline import repetition
from pasta_jax.lang.words import plain_words
from pasta_jax.view.lanes import lanes
from pasta_jax.view.pareto import Point, pareto
from pasta_jax.view.plots import Dots, Histogram, histograms, scatter
from pasta_jax.view.style import DRAWING, SANS, css_variables
from pasta_jax.view.templates import render
from pasta_jax.view.text import short

SPEEDUP_EDGES = (0, 0.5, 0.75, 1, 1.25, 1.5, 2, 2.5, 3, 4, 5)
WORST = 10
PRODUCT = ("theoretical", "= parallelism", "× length ratio")
COLUMNS = (*PRODUCT, "over itself untagged", "realised", "efficiency", "forked %")


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
    sets = ", ".join(
        f"{len(chosen)} prompts of {name}, {chosen[0].number} to {chosen[-1].number} by hash"
        for name, chosen in evaluation.questions.items()
    )
    sampling = evaluation.report.options["sampling"]
    how = f"temperature {sampling['temperature']:g}, seed {sampling['seed']}"
    models = ", ".join(f"{SHOWN[system]}: {model}" for system, model in evaluation.report.models.items())
    return f"{sets}; {how}. {models}."


def sections(evaluation: Evaluation, texts: bool) -> list[Section]:
    """The parts of the report, in order; `texts`: pictures name prompts and topics."""
    name = next(iter(evaluation.report.sets))
    systems = evaluation.report.sets[name]
    parts = [_beside_the_paper(evaluation, systems)]
    if any("speedup" in report.estimates for report in systems.values()):
        parts.append(_length_and_forks(systems))
    if any(report.judged for report in systems.values()):
        parts += [_judged(systems), _pareto(systems)]
    others = [system for system in systems if system != "baseline"]
    plain = {answer.number: answer for answer in evaluation.answers.get("baseline", ()) if answer.prompts == name}
    if plain and others:
        parts += _speedups(evaluation, name, others, plain, texts)
    parts += _calibration(evaluation, name, texts)
    parts += _categories(systems)
    parts += [_likelihood(systems)] * any("nats" in report.estimates for report in systems.values())
    parts += [_sets(evaluation)] * (len(evaluation.report.sets) > 1)
    if exact := evaluation.report.sets.get(multipart.NAME):
        parts.append(_exact(exact))
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
    keys = ("speedup", "parallelism", "length_ratio", "speedup_over_untagged", "realised", "efficiency")
    of = {key: cell(report.estimates.get(key)) for key in keys}
    if system == "baseline":
        of |= dict.fromkeys(("speedup", "parallelism", "length_ratio", "realised", "efficiency"), "1")
    return [SHOWN[system], *of.values(), cell(report.estimates.get("fork_rate"), 100)]


def _beside_the_paper(evaluation: Evaluation, systems: dict[str, SystemReport]) -> Section:
    rows = [["", *COLUMNS, "LC win rate %"]]
    fitted, rated = evaluation.report.length_controlled, evaluation.report.annotations
    for system, report in systems.items():
        both = interop.generator(system), interop.generator("baseline")  # another reference is in the line below
        is_rated = fitted is not None and (rated.generator, rated.reference) == both
        rows.append([*figure_row(system, report), f"{fitted.win_rate:.1f}" if is_rated else "—"])
    for one in PAPER:
        # The paper states no length ratio; it follows from the other two.
        numbers = [f"{number:.2f}" for number in (one.speedup, one.parallelism, one.speedup / one.parallelism)]
        others = "—", f"{one.realised:.2f}", f"{one.efficiency:.2f}", "—", f"{one.win_rate:.1f}"
        rows.append([f"paper: {one.name}", *numbers, *others])
    text = (
        "Geometric means over prompts with 95% intervals. Theoretical speedup is the baseline's steps over the "
        "system's. It is the product of parallelism and length ratio, which is above 1 where answers are shorter than "
        "the baseline's. “Over itself untagged” is the speedup over the same model with tags forbidden. Realised "
        "speedup is the baseline's seconds over the system's, one prompt at a time in the same interpreter. LC win "
        "rate is a judge's preference over the baseline, length-controlled; in the paper GPT-4's. "
        f"The paper's setting: {SETTING}."
    )
    if timed := {one.prompts for one in evaluation.report.realised.values()}:
        text += f" Seconds and efficiency are of the first {max(timed)} prompts alone."
    if annotated := evaluation.report.annotated():
        text += f" {annotated}."
    return Section("The paper's table beside ours", text, rows)


def _length_and_forks(systems: dict[str, SystemReport]) -> Section:
    """Where the speedup comes from: answers that fork, and the others."""
    kinds = {
        "": "all",
        "_of_stopped": "all, where both end",
        "_of_forked": "that fork",
        "_of_stopped_of_forked": "that fork, where both end",
        "_of_unforked": "that don't",
    }
    names = ("speedup", "parallelism", "length_ratio", "speedup_over_untagged")
    rows = [["", "answers", "prompts", *PRODUCT, COLUMNS[3]]]
    for system, report in systems.items():
        for ending, kind in kinds.items():
            found = [report.estimates.get(name + ending) for name in names]
            if system != "baseline" and found[0] is not None:
                rows.append([SHOWN[system], kind, str(found[0].count), *map(cell, found)])
    text = (
        "Theoretical speedup over the baseline, of the answers that fork and of the others; and of prompts at which "
        "both answers end by themselves (in the last column, the answer and the one with tags forbidden): at the limit "
        "of tokens, an answer with forks has taken fewer steps."
    )
    return Section("Speed apart from brevity", text, rows)


def _judged(systems: dict[str, SystemReport]) -> Section:
    names = [name for report in systems.values() for name in report.judged if name.startswith("preferred")]
    rows = [["", *dict.fromkeys(names)]]
    for system, report in systems.items():
        if report.judged:
            rows.append([SHOWN[system], *(cell(report.judged.get(name), 100) for name in rows[0][1:])])
    text = (
        "The percentage of prompts at which a judge prefers the system's answer to the baseline's; a tie counts half. "
        "Each judge is named by what it looks at; all but “reward”, a model that was trained to judge, are programs "
        "that know nothing of what an answer says."
    )
    return Section("What judges prefer", text, rows)


def _pareto(systems: dict[str, SystemReport]) -> Section:
    measured = "realised" if any("realised" in report.estimates for report in systems.values()) else "speedup"
    judge = next(name for report in systems.values() for name in report.judged if name.startswith("preferred"))
    points = []
    for system, report in systems.items():
        speed, share = report.estimates.get(measured), report.judged.get(judge)
        if system == "baseline":
            points.append(Point(SHOWN[system], SHOWN[system], 1.0, 50.0, (1.0, 1.0), (50.0, 50.0)))
        elif speed and share:
            x, y = (speed.low, speed.high), (100 * share.low, 100 * share.high)
            points.append(Point(SHOWN[system], SHOWN[system], speed.value, 100 * share.value, x, y))
    timed = max((one.estimates[measured].count for one in systems.values() if measured in one.estimates), default=0)
    kind = f"realised speedup, {timed} prompts" if measured == "realised" else "theoretical speedup"
    picture = pareto([(kind, f"{judge}, % of prompts", points)])
    return Section("What a judge prefers, against speed", "Right and up is better.", picture=picture, name="pareto")


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
    columns = ("speedup", "parallelism", "length_ratio")
    rows = [["", "prompts", *(f"{SHOWN[system]}: {what.replace('_', ' ')}" for system in shown for what in columns)]]
    for category in names:
        found = [report.categories.get(category, {}) for report in shown.values()]
        count = max((one["fork_rate"].count for one in found if "fork_rate" in one), default=0)
        rows.append([category, str(count), *(cell(one.get(key)) for one in found for key in columns)])
    text = "Theoretical speedup = parallelism × length ratio, geometric means."
    return [Section("By category", text, rows)]


def _sets(evaluation: Evaluation) -> Section:
    rows = [["", "set", *COLUMNS, "rules followed"]]
    for name, systems in evaluation.report.sets.items():
        for system, report in systems.items():
            shown, *values = figure_row(system, report)
            rules = "—" if report.figures.rules is None else f"{100 * report.figures.rules:.1f} %"
            rows.append([shown, name, *values, rules])
    return Section("By set of prompts", "Rules are IFEval's: the share of prompts with all of them followed.", rows)


def _exact(systems: dict[str, SystemReport]) -> Section:
    rows = [["", "prompts", "parts right %", "last line right %", "theoretical speedup"]]
    for system, report in systems.items():
        shares = [cell(report.estimates.get(name), 100) for name in ("parts_right", "last_right")]
        speedup = "1" if system == "baseline" else cell(report.estimates.get("speedup"))
        rows.append([SHOWN[system], str(report.figures.answers), *shares, speedup])
    text = (
        "Questions of three to eight parts with exact answers, half of them with a last line that needs the others: "
        "their largest, their sum, or which two agree. It can't be written beside them."
    )
    return Section("Parts with exact answers", text, rows)


def _likelihood(systems: dict[str, SystemReport]) -> Section:
    rows = [["", "answers", "nats per token", "above the baseline's answer"]]
    for system, report in systems.items():
        if nats := report.estimates.get("nats"):
            more = report.estimates.get("nats_over_baseline") if system != "baseline" else None
            rows.append([SHOWN[system], str(nats.count), *(cell(one) for one in (nats, more))])
    text = "The mean log-probability of a token of sequential answers under the baseline's model: how alike both write."
    return Section("Likelihood under the baseline", text, rows)


def _throughput(evaluation: Evaluation) -> Section:
    rows = [["", "prompts", "at a time", "seconds", "tokens per second"]]
    for system, one in evaluation.report.throughput.items():
        figures = (str(one.answers), str(one.lanes), f"{one.seconds:.1f}", f"{one.tokens_per_second:.1f}")
        rows.append([SHOWN[system], *figures])
    return Section("Throughput", "Many prompts at a time; tokens of text, without tags and topics.", rows)


def worst(evaluation: Evaluation) -> list[tuple[str, str, str]]:
    """(prompt, answer, why) of the first system's answers: the most repetitive, then those that were cut off."""

    def badness(answer: SystemAnswer) -> tuple[float, bool]:
        return -repetition(answer.prompt, answer.text) if plain_words(answer.text) else 0.0, not answer.finished

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
