"""Profile decoding: where a step's time goes, by phase, and an answer's, between theoretical and realised speedup."""

import dataclasses
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from pasta_jax.benchmark import programs, steps
from pasta_jax.benchmark.phases import PHASES, SHOWN, Phase, phases_of, spans, split
from pasta_jax.benchmark.run import Report, as_json, load_or_make
from pasta_jax.benchmark.settings import BenchmarkSettings
from pasta_jax.benchmark.steps import Steps
from pasta_jax.decode.generate import loop_spec
from pasta_jax.decode.replay import replay_stream, request_for
from pasta_jax.decode.request import Result
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.decode.trace import Trace
from pasta_jax.errors import PastaError
from pasta_jax.files import atomic
from pasta_jax.lang.clock import clock, theoretical_speedup
from pasta_jax.lang.program import Program
from pasta_jax.progress import say, track
from pasta_jax.view.plots import Bar, stacked
from pasta_jax.weights.model import Model

Ms = float
ROUND_STEPS = 32  # steps between two reads of the device
PARTS: Mapping[str, str] = {
    "path": "critical path, one row a step",
    "waiting": "steps beyond it",
    "rows": "extra rows",
    "forks": "forks",
    "joins": "joins",
    "prefill": "prefill",
    "rest": "host and rest",
}


@dataclasses.dataclass(frozen=True)
class Costs:
    """Milliseconds, measured apart."""

    step: Mapping[int, Ms]  # of a step, by the rows it computes: all widths of the loop, so one holds any step's rows
    fork: Ms  # more than of a plain step
    join: Ms


def profile(settings: BenchmarkSettings) -> Report:
    """The report; pictures, a trace per width and the report itself are written to config.profile.folder."""
    config, interpreter, decode = settings.profile, settings.interpreter, settings.decode
    folder = Path(config.folder)
    try:
        atomic.check_writable(folder)
    except OSError as error:
        raise PastaError(f"config.profile.folder {folder}: {error.strerror}; choose another folder") from None
    items = programs.read_programs(Path(interpreter.programs or programs.OWN))
    model = load_or_make(settings)
    programs.refuse_longer(items, model.tokenizer, interpreter.slots, interpreter.prompt)
    decoding = DecodeConfig(lanes=1, rows=interpreter.rows, slots=interpreter.slots, widths=interpreter.widths)
    runners: dict[int, steps.Steps] = {}
    for rows in loop_spec(model, decoding, interpreter.slots, sequential=False).widths:
        say(f"compiling the step of {rows} row(s)")
        runners[rows] = steps.decode_runner(model, rows, interpreter.slots, interpreter.prompt, decode.steps)
    times = steps.interleaved(runners, decode.rounds)
    median = {rows: statistics.median(ms) for rows, ms in times.items()}
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
    report = {
        "benchmark": "profile",
        "model": model.name,
        "dtype": model.precision,
        "slots": interpreter.slots,
        "prompt": interpreter.prompt,
        "ms_per_step": {rows: round(ms, 2) for rows, ms in median.items()},  # without the profiler
        "phases": phases,  # by width; they add up to ms_per_step
        "fork_ms": round(costs.fork, 2),
        "join_ms": round(costs.join, 2),
        "answers": answers,
    }
    atomic.write_whole(folder / "report.json", as_json(report) + "\n")
    atomic.write_whole(folder / "steps.svg", picture_of_steps(report))
    atomic.write_whole(folder / "answers.svg", picture_of_answers(report))
    say(f"{folder}: report.json, steps.svg, answers.svg, and step_of_*_rows.perfetto.json.gz for ui.perfetto.dev")
    return report


def profiled(step: Steps, perfetto: Path) -> dict[Phase, Ms]:
    """Milliseconds of each phase of one step, under the profiler; its trace for ui.perfetto.dev goes to `perfetto`."""
    phases = phases_of(step.program())
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, create_perfetto_trace=True, profiler_options=options):
            step()
        [trace] = Path(folder).glob("plugins/profile/*/perfetto_trace.json.gz")
        perfetto.write_bytes(trace.read_bytes())
        total = split(spans(Path(folder), phases))
    return {phase: ms / step.steps for phase, ms in total.items()}


def answer_time(
    model: Model, program: Program, prompt: Sequence[int], config: DecodeConfig, costs: Costs, rounds: int
) -> Report:
    """One program, decoded asynchronously and, as its plain text, sequentially: figures, and medians of milliseconds.

    `parts` add up to the asynchronous time: `path` is the critical path in steps of one row, which alone would give the
    theoretical speedup; `waiting` the steps beyond it, when chunks wait for rows; `rows` what steps of more rows cost
    more. `rest` is the host's reading of the device, and what the other parts do not explain; it may be negative.
    """
    tokenizer = model.tokenizer
    asynchronous, sequential = programs.both_ways(
        model, program, config, rounds, lambda ids, decoding: replayed(model, prompt, ids, decoding)
    )
    total, plain = (statistics.median(trace.rounds[-1][1] for trace in traces) for traces in (asynchronous, sequential))
    tokens = len(tokenizer.encode(program.strip()))
    path = clock(program.ids(tokenizer), tokenizer.tags, 0).critical_path
    parts = parts_of(asynchronous[0], path, costs)
    parts["prefill"] = statistics.median(trace.prefill_ms for trace in asynchronous)
    parts["rest"] = total - sum(parts.values())
    return {
        "tokens": tokens,  # of the plain text
        "critical_path": path,
        "steps": asynchronous[0].steps,
        "sequential_ms": round(plain, 1),
        "asynchronous_ms": round(total, 1),
        "theoretical": round(theoretical_speedup(tokens, path), 3),
        "realised": round(plain / total, 3),
        "parts": {name: round(ms, 1) for name, ms in parts.items()},
    }


def replayed(model: Model, prompt: Sequence[int], ids: Sequence[int], config: DecodeConfig) -> Trace:
    """The trace of a program that is decoded as any request is, with its tokens forced."""
    *_, result = replay_stream(model, request_for(prompt, ids), ids, config, ROUND_STEPS)
    assert isinstance(result, Result)
    return result.trace


def parts_of(trace: Trace, critical_path: int, costs: Costs) -> dict[str, Ms]:
    """What the steps of an answer cost, by cause."""
    widths, rows = np.sort([*costs.step]), np.bincount(trace.step)[1:]
    computed = widths[np.searchsorted(widths, rows[rows > 0])]
    one = costs.step[1]
    return {
        "path": critical_path * one,
        "waiting": (trace.steps - critical_path) * one,
        "rows": sum(costs.step[int(size)] - one for size in computed),
        "forks": np.count_nonzero(trace.token == trace.tags.async_) * costs.fork,
        "joins": np.count_nonzero(trace.token == trace.tags.sync) * costs.join,
    }


def picture_of_steps(report: Report) -> str:
    """A bar per width, of its phases."""
    bars = [
        Bar(name_of(rows), {SHOWN[phase]: ms for phase, ms in phases.items()})
        for rows, phases in report["phases"].items()
    ]
    return stacked(f"Where a step's time goes: {report['model']}, {report['dtype']}", bars)


def name_of(rows: int) -> str:
    """A step of so many rows."""
    return f"{rows} row{'s' if rows > 1 else ''}"


def picture_of_answers(report: Report) -> str:
    """Two bars per answer: sequential, and asynchronous by cause."""
    bars = []
    for answer in report["answers"]:
        bars.append(Bar(f"{answer['tokens']} tokens, sequential", {"sequential": answer["sequential_ms"]}))
        parts = {title: answer["parts"][name] for name, title in PARTS.items()}
        bars.append(Bar(f"{answer['realised']:.2f} of {answer['theoretical']:.2f} in theory", parts))
    return stacked(f"Where the speedup goes: {report['model']}, {report['dtype']}", bars)


def table(report: Report) -> str:
    """The report for people."""
    phases, answers = report["phases"], report["answers"]
    steps = {"ms of a step": [name_of(rows) for rows in phases]}
    steps |= {SHOWN[name]: [f"{of[name]:.2f}" for of in phases.values()] for name in PHASES}
    steps["all"] = [f"{ms:.2f}" for ms in report["ms_per_step"].values()]
    times = {"ms of an answer": [f"{answer['tokens']} tokens" for answer in answers]}
    times |= {title: [f"{answer['parts'][name]:.1f}" for answer in answers] for name, title in PARTS.items()}
    for title, name, digits in (
        ("all", "asynchronous_ms", 1),
        ("sequential", "sequential_ms", 1),
        ("speedup in theory", "theoretical", 2),
        ("realised", "realised", 2),
    ):
        times[title] = [f"{answer[name]:.{digits}f}" for answer in answers]
    lines = [f"{title:36}" + "".join(f"{cell:>10}" for cell in row) for title, row in steps.items()]
    lines += ["", *(f"{title:36}" + "".join(f"{cell:>12}" for cell in row) for title, row in times.items())]
    return "\n".join(lines)
