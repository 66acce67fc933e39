"""The reports of the benchmarks; printed as JSON, their fields are the keys."""

import dataclasses
import json
from typing import Literal

from pasta_jax.benchmark.phases import Phase
from pasta_jax.benchmark.profile import AnswerTime

ByWidth = dict[int, float]  # by the number of rows that a step feeds
ByLength = dict[int, float]  # by the number of tokens of a prompt


@dataclasses.dataclass(frozen=True)
class DecodeReport:
    """Milliseconds of a decoding step, and how fast it reads the weights."""

    benchmark: Literal["decode"]
    model: str
    dtype: str
    slots: int
    prompt: int
    rounds: int
    ms_per_step: ByWidth  # medians
    ms_per_step_min: ByWidth
    weights_gb: float
    weights_gb_s: float  # read by the narrowest step
    copy_gb_s: float  # read and written by a plain copy
    share_of_bandwidth: float
    peers: dict[str, ByWidth] | None  # None: not measured
    ours_over_peer: dict[str, ByWidth] | None


@dataclasses.dataclass(frozen=True)
class PrefillReport:
    """Milliseconds to read prompts, by their numbers of tokens; medians."""

    benchmark: Literal["prefill"]
    model: str
    dtype: str
    slots: int
    rounds: int
    ms: ByLength
    tokens_per_s: ByLength
    peers: dict[str, ByLength] | None  # milliseconds; None: not measured
    ours_over_peer: dict[str, ByLength] | None


@dataclasses.dataclass(frozen=True)
class InterpreterReport:
    """How much of the theoretical speedup asynchronous decoding realises, and what its steps and events cost."""

    benchmark: Literal["interpreter"]
    model: str
    dtype: str
    rows: int
    programs: int
    parallelism: float
    theoretical: float
    realised: float
    efficiency: float
    steps_over_critical_path: float
    ms_per_step: ByWidth
    in_one_row_steps: ByWidth
    step_reads_gb: float
    copy_gb_s: float
    step_over_reading: float
    ms_of_a_plain_step_of_2_rows: float
    fork_ms: float
    join_ms: float
    host_overhead_ms: float


@dataclasses.dataclass(frozen=True)
class TrainReport:
    """Milliseconds of a training step, ours and the peer's."""

    benchmark: Literal["train"]
    model: str
    dtype: str
    rows: int
    length: int
    remat: bool
    rounds: int
    ms_per_step: dict[str, int]
    tokens_per_s: dict[str, float]
    tflops: float
    mfu: float | Literal["unknown"]  # unknown: no peak is published for the device
    ours_over_peer: float | None  # None: not measured


@dataclasses.dataclass(frozen=True)
class LanesReport:
    """Sampling with one number of lanes."""

    answers: int
    cut_off: int
    tokens: int
    s: float
    tokens_per_s: float
    hours_of_2000_prompts: float


@dataclasses.dataclass(frozen=True)
class SamplingReport:
    """Tokens per second of sampling, by lanes."""

    benchmark: Literal["sampling"]
    model: str
    dtype: str
    answers_a_prompt: int
    max_tokens: int
    rows: int
    slots: int
    lanes: dict[int, LanesReport]


@dataclasses.dataclass(frozen=True)
class ServerFigures:
    """What the clients of a server saw."""

    first_token_ms: int  # median of all answers
    tokens_per_s: float  # of all clients together; median of the rounds
    tokens: int  # of text in all answers


@dataclasses.dataclass(frozen=True)
class ServeReport:
    """Servers under the same requests, by lanes and by their names."""

    benchmark: Literal["serve"]
    model: str
    threads: str  # the adapter of the server that answers in threads
    rows: int
    widths: tuple[int, ...]
    packed: tuple[int, ...]
    max_tokens: int
    rounds: int
    lanes: dict[int, dict[str, ServerFigures]]


@dataclasses.dataclass(frozen=True)
class ProfileReport:
    """Where the time of steps and of answers goes, in milliseconds."""

    benchmark: Literal["profile"]
    model: str
    dtype: str
    slots: int
    prompt: int
    ms_per_step: ByWidth  # medians, without the profiler
    phases: dict[int, dict[Phase, float]]  # by width; scaled to add up to ms_per_step
    fork_ms: float
    join_ms: float
    answers: list[AnswerTime]


Report = DecodeReport | InterpreterReport | TrainReport | SamplingReport | ServeReport | ProfileReport


def as_json(report: Report | LanesReport) -> str:
    """One line of JSON; fields that were not measured are left out."""
    return json.dumps({name: value for name, value in dataclasses.asdict(report).items() if value is not None})
