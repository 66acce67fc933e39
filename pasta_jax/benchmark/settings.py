"""The settings of launch.benchmark: one model, and a section for each benchmark."""

import dataclasses
from typing import Annotated, Literal

from msgspec import Meta

from pasta_jax.fields.settings import FillOptions
from pasta_jax.files.validated import (
    AboveZero,
    Lanes,
    Length,
    Positive,
    Rounds,
    Rows,
    Seed,
    Slots,
    SlotsOrNone,
    Threads,
)
from pasta_jax.models.settings import MeshSettings
from pasta_jax.serve.settings import ServeSettings
from pasta_jax.weights.settings import ModelSource

Widths = Annotated[tuple[Threads, ...], Meta(min_length=1, max_length=16)]
LaneCounts = Annotated[tuple[Lanes, ...], Meta(min_length=1, max_length=16)]
# A runtime, and how it drafts: llama.cpp by its own types of speculation, transformers by prompt lookup.
Drafting = Literal[
    "llama_cpp",
    "llama_cpp_ngram_simple",
    "llama_cpp_ngram_map_k",
    "llama_cpp_ngram_map_k4v",
    "llama_cpp_ngram_mod",
    "llama_cpp_ngram_cache",
    "llama_cpp_draft_simple",  # by the same model in Q4_0
    "transformers",
    "transformers_lookup",
]


@dataclasses.dataclass(frozen=True)
class StepBenchmark:
    """Steps of one request at several widths."""

    widths: Widths = (1, 2, 4, 8)  # threads of one request that feed a token in a step
    slots: Slots = 512
    prompt: Positive = 128  # tokens before the first measured step
    steps: Rounds = 16  # steps per measurement
    rounds: Rounds = 11  # measurements of each width, interleaved


@dataclasses.dataclass(frozen=True)
class PrefillBenchmark:
    """Prompts of several lengths, one at a time."""

    lengths: Annotated[tuple[Positive, ...], Meta(min_length=1, max_length=16)] = (128, 512)  # tokens of a prompt
    slots: Slots = 1024
    rounds: Rounds = 11  # measurements of each length, interleaved


@dataclasses.dataclass(frozen=True)
class RoundingBenchmark:
    """Texts whose next tokens' distributions are compared."""

    source: str = "alpaca_rows"  # see docs/DATA.md
    texts: Rounds = 8
    tokens: Length = 96  # of each


@dataclasses.dataclass(frozen=True)
class TrainBenchmark:
    """Training steps over all parameters, or over an adapter's beside a frozen base, whose dtype is config.model's."""

    rank: Annotated[int, Meta(ge=0, le=256)] = 0  # of the adapter, on all matrices of the layers; 0: all parameters
    rows: Rows = 2
    length: Length = 128  # tokens per batch row
    steps: Rounds = 1  # per measurement, after one for warm-up
    rounds: Rounds = 3
    slice: Slots = 256  # slice, block and remat as in configs/sft.py
    block: SlotsOrNone = 0
    remat: bool = False
    keep_products: bool = False
    products: Literal["float32", "bfloat16"] = "float32"
    clip: AboveZero = 1.0


@dataclasses.dataclass(frozen=True)
class SamplingBenchmark:
    """Several answers to each prompt of a source, at several numbers of lanes."""

    source: str = "alpaca_rows"  # see docs/DATA.md
    lanes: LaneCounts = (1, 8, 32, 128)
    count: Rounds = 10  # answers per prompt
    waves: Annotated[float, Meta(gt=0, le=1000)] = 2.0  # answers per lane, so that lanes are also refilled
    max_tokens: Positive = 128  # per answer
    rows: Threads = 4
    slots: Slots = 512
    seed: Seed = 0


@dataclasses.dataclass(frozen=True)
class InterpreterBenchmark:
    """Fixed programs, decoded asynchronously and sequentially."""

    programs: str = ""  # a file with {"program": "surface text"} in each line; empty: the 43 of the project
    rows: Threads = 16
    widths: Widths = (1, 2, 4, 8, 16)
    slots: Slots = 1024
    prompt: Positive = 64
    rounds: Rounds = 2  # measured runs of each program in each way, alternating
    event_rounds: Rounds = 25  # measured steps that fork, join, or do neither


@dataclasses.dataclass(frozen=True)
class ServeBenchmark:
    """Servers that stream answers to some clients at a time."""

    # But for its model, lanes, forks and port, and in `load` the limits of the queue and of an answer's seconds.
    server: ServeSettings = ServeSettings(log=False)
    threads: ModelSource = ModelSource()  # answers in threads; neither preset nor path: not measured
    lanes: Lanes = 8  # of each server
    clients: LaneCounts = (1, 2, 4, 8)  # at a time
    max_tokens: Positive = 128  # per answer
    rounds: Rounds = 3  # of one question per client, the servers in turn
    source: str = "alpaca_rows"
    least_characters: Positive = 800  # of the answer in the source, so that few answers end early


@dataclasses.dataclass(frozen=True)
class LoadBenchmark:
    """Requests that arrive by chance, each on its own, at the servers of `serve` with so many lanes."""

    lanes: Lanes = 4
    rates: Annotated[tuple[AboveZero, ...], Meta(min_length=1, max_length=16)] = (0.25, 0.5, 1.0)  # arrivals a second
    requests: Rounds = 40  # of each rate; their times are drawn once for all servers
    target_s: AboveZero = 10.0  # an answer that takes longer is no use: goodput counts the others
    seed: Seed = 0


@dataclasses.dataclass(frozen=True)
class ForksBenchmark:
    """Forks off, eager and admitted, in one process; model and questions are those of `serve`."""

    lanes: Lanes = 8
    clients: LaneCounts = (1, 2, 4, 8)  # at a time
    rows: Threads = 8
    slots: Slots = 1024
    packed: Widths = (1, 2, 4, 8, 16, 32)
    steps: Positive = 4  # between two reads of the device
    max_tokens: Positive = 200  # per answer
    rounds: Rounds = 3  # of one question per client


@dataclasses.dataclass(frozen=True)
class FillBenchmark:
    """Fields read out of texts with facts, made from a seed."""

    facts: Annotated[tuple[Annotated[int, Meta(ge=1, le=32)], ...], Meta(min_length=1)] = (4, 8, 16, 32)
    texts: Rounds = 4  # of each number of facts; all ways take turns on each
    options: FillOptions = FillOptions(max_tokens=32)
    seed: Seed = 0
    slots: Threads = 4  # of llama.cpp's server, which also answers one request after another in one of them
    records: str = ""  # a file that keeps what each text took, so that the same command goes on; empty: none


@dataclasses.dataclass(frozen=True)
class DraftBenchmark:
    """Recorded answers on paper: their text one token after another, with forks, drafts, and both. Loads no model."""

    # Folder of traces, by launch.decode --trace, or a file answers-model.jsonl of launch.evaluate.
    answers: str = "runs/drafts"
    rows: Threads = 8  # of a step, drafts included
    widths: Widths = (1, 2, 4, 8)  # rows whose steps take `ms`; others are those of the next
    # As the benchmark `decode` prints them: of SmolLM2 in 4 bits (docs/results/decoding.md).
    ms: Annotated[tuple[AboveZero, ...], Meta(min_length=1, max_length=16)] = (3.25, 3.57, 4.02, 5.62)
    # Of drafts that are right.
    shares: Annotated[tuple[Annotated[float, Meta(gt=0, le=1)], ...], Meta(min_length=1)] = (0.3, 0.4, 0.5, 0.6, 0.7)


@dataclasses.dataclass(frozen=True)
class WaysBenchmark:
    """Sequential and forked answers, each without and with drafts, in turn."""

    model: ModelSource = ModelSource("smollm2_135m", adapter="pasta")
    draft: Literal["lookup", "drafter"] = "lookup"  # of the ways with drafts
    prompts: Positive = 400  # of AlpacaEval, those with the smallest hashes
    clients: Lanes = 1  # prompts asked at the same time
    max_tokens: Positive = 400
    rows: Threads = 8
    widths: Widths = (2, 4, 6)
    packed: Widths = (1, 2, 4, 8, 16, 32)  # with several clients, instead of widths
    slots: Slots = 1024
    minutes: Annotated[float, Meta(ge=0)] = 0.0  # after which no other prompt begins; 0: all are answered
    log: Annotated[str, Meta(min_length=1)] = "runs/ways.jsonl"  # the same command goes on from it
    # With --peers, whose answers are in a log of their own beside it; transformers holds the weights in float32
    peers: Annotated[tuple[Drafting, ...], Meta(min_length=1, max_length=9)] = (
        "llama_cpp",
        "llama_cpp_ngram_simple",
        "llama_cpp_ngram_mod",
        "llama_cpp_ngram_cache",
        "llama_cpp_draft_simple",
        "transformers",
        "transformers_lookup",
    )
    lookup: Positive = 10  # tokens that transformers looks up at a time, as its documentation does


@dataclasses.dataclass(frozen=True)
class ProfileBenchmark:
    """Where time goes; steps and programs are those of the other benchmarks."""

    answers: Rounds = 5  # of the interpreter's programs
    folder: Annotated[str, Meta(min_length=1)] = "runs/profile"  # of its pictures, traces and report


@dataclasses.dataclass(frozen=True)
class BenchmarkSettings:
    """Every benchmark with one model."""

    model: ModelSource = ModelSource("smollm2_135m", dtype="platform")  # q4: in the blocks of the packaged file
    random_weights: bool = False  # random weights of the model's shape; no file is read
    mesh: MeshSettings = MeshSettings()
    decode: StepBenchmark = StepBenchmark()
    prefill: PrefillBenchmark = PrefillBenchmark()
    rounding: RoundingBenchmark = RoundingBenchmark()
    train: TrainBenchmark = TrainBenchmark()
    sampling: SamplingBenchmark = SamplingBenchmark()
    serve: ServeBenchmark = ServeBenchmark()
    load: LoadBenchmark = LoadBenchmark()
    forks: ForksBenchmark = ForksBenchmark()
    interpreter: InterpreterBenchmark = InterpreterBenchmark()
    fill: FillBenchmark = FillBenchmark()
    drafts: DraftBenchmark = DraftBenchmark()
    ways: WaysBenchmark = WaysBenchmark()
    profile: ProfileBenchmark = ProfileBenchmark()
