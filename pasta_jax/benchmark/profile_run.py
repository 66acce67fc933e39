"""Profile decoding: where a step's time goes, by phase, and an answer's, between theoretical and realised speedup."""

import statistics
from pathlib import Path

from pasta_jax.benchmark import programs, steps
from pasta_jax.benchmark.phases import PHASES, SHOWN
from pasta_jax.benchmark.profile import PARTS, Costs, answer_time, profiled
from pasta_jax.benchmark.reports import ProfileReport, as_json
from pasta_jax.benchmark.run import load_or_make
from pasta_jax.benchmark.settings import BenchmarkSettings
from pasta_jax.decode.generate import loop_spec
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.errors import PastaError
from pasta_jax.files import atomic
from pasta_jax.progress import say, track
from pasta_jax.view.plots import Bar, stacked


def profile(settings: BenchmarkSettings) -> ProfileReport:
    """The report; pictures, a trace per width and the report itself are written to config.profile.folder."""
    config, interpreter, decode = settings.profile, settings.interpreter, settings.decode
    folder = Path(config.folder)
    try:
        atomic.check_writable(folder)
    except OSError as error:
        raise PastaError(f"config.profile.folder {folder}: {error.strerror}; choose another folder") from None
    items = programs.read_programs(Path(interpreter.programs))
    model = load_or_make(settings)
    decoding = DecodeConfig(lanes=1, rows=interpreter.rows, slots=interpreter.slots, widths=interpreter.widths)
    runners: dict[int, steps.Steps] = {}
    for rows in loop_spec(model, decoding, interpreter.slots, sequential=False).widths:
        say(f"compiling the step of {rows} row(s)")
        runners[rows] = steps.decode_runner(model, rows, interpreter.slots, interpreter.prompt, decode.steps)
    times = steps.interleaved({str(rows): runner for rows, runner in runners.items()}, decode.rounds)
    median = {rows: statistics.median(times[str(rows)]) for rows in runners}
    phases = {}
    for rows, runner in track(runners.items(), "profiles", len(runners)):
        under_profiler = profiled(runner, folder / f"step_of_{rows}_rows.perfetto.json.gz")
        scale = median[rows] / sum(under_profiler.values())  # the profiler's own time is divided among all phases
        phases[rows] = {phase: round(ms * scale, 3) for phase, ms in under_profiler.items()}
    events = steps.interleaved(
        steps.event_runners(model, interpreter.slots, interpreter.prompt), interpreter.event_rounds
    )
    fork, join = (max(0.0, steps.difference(events, name, "plain")) for name in ("fork", "join"))
    costs = Costs(median, fork, join)
    chosen = items[:: -(-len(items) // config.answers)]
    prompt = programs.prompt_of(model.tokenizer, interpreter.prompt)
    answers = [
        answer_time(model, program, prompt, decoding, costs, interpreter.rounds)
        for program in track(chosen, "answers", len(chosen))
    ]
    report = ProfileReport(
        benchmark="profile",
        model=model.name,
        dtype=model.precision,
        slots=interpreter.slots,
        prompt=interpreter.prompt,
        ms_per_step={rows: round(ms, 2) for rows, ms in median.items()},
        phases=phases,
        fork_ms=round(costs.fork, 2),
        join_ms=round(costs.join, 2),
        answers=answers,
    )
    atomic.write_whole(folder / "report.json", as_json(report) + "\n")
    atomic.write_whole(folder / "steps.svg", picture_of_steps(report))
    atomic.write_whole(folder / "answers.svg", picture_of_answers(report))
    say(f"{folder}: report.json, steps.svg, answers.svg, and step_of_*_rows.perfetto.json.gz for ui.perfetto.dev")
    return report


def picture_of_steps(report: ProfileReport) -> str:
    """A bar per width, of its phases."""
    bars = [
        Bar(name_of(rows), {SHOWN[phase]: ms for phase, ms in phases.items()}) for rows, phases in report.phases.items()
    ]
    return stacked(f"Where a step's time goes: {report.model}, {report.dtype}", "ms", bars)


def name_of(rows: int) -> str:
    """A step of so many rows."""
    return f"{rows} row{'s' if rows > 1 else ''}"


def picture_of_answers(report: ProfileReport) -> str:
    """Two bars per answer: sequential, and asynchronous by cause."""
    bars = []
    for answer in report.answers:
        bars.append(Bar(f"{answer.tokens} tokens, sequential", {"sequential": answer.sequential_ms}))
        parts = {title: answer.parts[name] for name, title in PARTS.items()}
        bars.append(Bar(f"{answer.realised:.2f} of {answer.theoretical:.2f} in theory", parts))
    return stacked(f"Where the speedup goes: {report.model}, {report.dtype}", "ms", bars)


def table(report: ProfileReport) -> str:
    """The report for people."""
    widths = list(report.phases)
    lines = [f"{'ms of a step':36}" + "".join(f"{name_of(rows):>10}" for rows in widths)]
    for phase in PHASES:
        lines.append(f"{SHOWN[phase]:36}" + "".join(f"{report.phases[rows][phase]:10.2f}" for rows in widths))
    lines.append(f"{'all':36}" + "".join(f"{report.ms_per_step[rows]:10.2f}" for rows in widths))
    lines += ["", f"{'ms of an answer':36}" + "".join(f"{f'{a.tokens} tokens':>12}" for a in report.answers)]
    for name, title in PARTS.items():
        lines.append(f"{title:36}" + "".join(f"{a.parts[name]:12.1f}" for a in report.answers))
    for title, name in (("all", "asynchronous_ms"), ("sequential", "sequential_ms")):
        lines.append(f"{title:36}" + "".join(f"{getattr(a, name):12.1f}" for a in report.answers))
    for title, name in (("speedup in theory", "theoretical"), ("realised", "realised")):
        lines.append(f"{title:36}" + "".join(f"{getattr(a, name):12.2f}" for a in report.answers))
    return "\n".join(lines)
