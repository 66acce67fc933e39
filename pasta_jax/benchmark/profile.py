"""Where the time of a decoding step and of an answer goes: by phase, and between theoretical and realised speedup."""

import dataclasses
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from pasta_jax.benchmark.phases import Phase, phases_of, spans, split
from pasta_jax.benchmark.steps import Steps
from pasta_jax.decode.replay import replay_stream, request_for
from pasta_jax.decode.request import Result
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.decode.trace import Trace
from pasta_jax.lang.clock import clock, theoretical_speedup
from pasta_jax.lang.program import Program
from pasta_jax.weights.model import Model

Ms = float
ROUND_STEPS = 32  # steps between two reads of the device


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


@dataclasses.dataclass(frozen=True)
class Costs:
    """Milliseconds, measured apart."""

    step: Mapping[int, Ms]  # of a step, by the rows it computes: all widths of the loop, so one holds any step's rows
    fork: Ms  # more than of a plain step
    join: Ms


@dataclasses.dataclass(frozen=True)
class AnswerTime:
    """One program, decoded asynchronously and, as its plain text, sequentially; milliseconds, medians over rounds.

    `parts` add up to the asynchronous time: `path` is the critical path in steps of one row, which alone would give the
    theoretical speedup; `waiting` the steps beyond it, when chunks wait for rows; `rows` what steps of more rows cost
    more. `rest` is the host's reading of the device, and what the other parts do not explain; it may be negative.
    """

    tokens: int  # of the plain text
    critical_path: int
    steps: int
    sequential_ms: Ms
    asynchronous_ms: Ms
    theoretical: float
    realised: float
    parts: dict[str, Ms]


PARTS: Mapping[str, str] = {
    "path": "critical path, one row a step",
    "waiting": "steps beyond it",
    "rows": "extra rows",
    "forks": "forks",
    "joins": "joins",
    "prefill": "prefill",
    "rest": "host and rest",
}


def answer_time(
    model: Model, program: Program, prompt: Sequence[int], config: DecodeConfig, costs: Costs, rounds: int
) -> AnswerTime:
    """Decode a program both ways, alternating, after one round that may compile."""
    tokenizer = model.tokenizer
    linear, plain = program.ids(tokenizer), tokenizer.encode(program.strip())
    ways = {"asynchronous": (linear, config), "sequential": (plain, dataclasses.replace(config, rows=1))}
    traces: dict[str, list[Trace]] = {name: [] for name in ways}
    for _ in range(1 + rounds):
        for name, (ids, decoding) in ways.items():
            traces[name].append(replayed(model, prompt, ids, decoding))

    def median(name: str) -> Ms:
        return statistics.median(trace.rounds[-1][1] for trace in traces[name][1:])

    path = clock(linear, tokenizer.tags, 0).critical_path
    trace = traces["asynchronous"][0]
    parts = parts_of(trace, path, costs)
    parts["prefill"] = statistics.median(one.prefill_ms for one in traces["asynchronous"][1:])
    total, sequential = median("asynchronous"), median("sequential")
    return AnswerTime(
        tokens=len(plain),
        critical_path=path,
        steps=trace.steps,
        sequential_ms=round(sequential, 1),
        asynchronous_ms=round(total, 1),
        theoretical=round(theoretical_speedup(len(plain), path), 3),
        realised=round(sequential / total, 3),
        parts={name: round(ms, 1) for name, ms in (parts | {"rest": total - sum(parts.values())}).items()},
    )


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
