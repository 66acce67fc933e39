"""The settings of launch.preference and launch.sweep; the defaults of training are the paper's."""

import dataclasses
from typing import Annotated, Any, Literal

from msgspec import Meta

from pasta_jax.decode.settings import AnswerSettings, DecodeConfig
from pasta_jax.files.validated import (
    AboveZero,
    AtLeastZero,
    Count,
    Finite,
    Lengths,
    Positive,
    Records,
    RecordsOrNone,
    Rounds,
    Rows,
    Seed,
    Share,
    Threading,
    WordLimits,
)
from pasta_jax.judges.settings import CheckedSettings, JudgeName, RewardSettings
from pasta_jax.llm.client import Endpoint
from pasta_jax.models.settings import TrainingMeshSettings
from pasta_jax.runs.ray import RaySettings
from pasta_jax.train.settings import TrainingSettings
from pasta_jax.weights.settings import AdapterSettings, ModelSource

Efficiency = Literal["speedup", "parallelism", "arithmetic", "harmonic"]
Value = bool | int | float | str | tuple[Any, ...]  # of a swept field


@dataclasses.dataclass(frozen=True)
class PromptSettings:
    """Which prompts are answered."""

    toy: Literal["", "small", "medium", "large"] = ""  # a level of the toy task
    toy_seed: Seed = 2  # other problems than those of supervised training
    source: str = ""  # or a source of pairs (data/sources.py)
    records: str = ""  # or the training prompts of a folder that launch.annotate wrote
    file: str = ""  # or JSON lines with prompt or instruction: judged beside the baseline's answer alone
    count: Records = 2000
    prompt_words: WordLimits = (1, 300)  # fewest and most, of pairs from a source
    response_words: WordLimits = (1, 500)
    drop_evaluation: bool = True  # drop prompts of AlpacaEval, MT-bench and IFEval, which must be installed


@dataclasses.dataclass(frozen=True)
class SampleSettings:
    """How the answers to choose from are sampled."""

    count: Rounds = 10
    temperature: AtLeastZero = 1.0
    baseline_temperature: AtLeastZero = 0.0  # of Baseline-SFT's answers, which speed and quality are relative to
    seed: Seed = 0
    block: Positive = 64  # prompts decoded together


@dataclasses.dataclass(frozen=True)
class JudgeSettings:
    """The judge that compares answers."""

    # llm, toy, checked (finished, topics, repetition, …), or a proxy: rules, repetition.
    kind: Literal["llm", "toy", JudgeName] = "llm"
    scale: AboveZero = 1.0  # of a proxy: the difference that is a verdict of 73%; 0.1 suits shares
    asks: Threading = 3  # of llm: attempts to get a well-formed verdict
    concurrency: Threading = 8
    checked: CheckedSettings = CheckedSettings()
    reward: RewardSettings = RewardSettings()
    agreement: Count = 300  # pairs of chosen and rejected answers to compare the judge with; 0: none
    # If its retries fail, the run ends with exit code 3; rerun the command to resume.
    endpoint: Endpoint = Endpoint(
        url="",
        model="",
        key_variable="",
        max_tokens=300,
        timeout_s=60.0,
        requests_per_minute=600.0,
        backoff_s=1.0,
    )


@dataclasses.dataclass(frozen=True)
class ScoreSettings:
    """How much the verdicts on an answer and its speed count."""

    efficiency: Efficiency = "speedup"  # or parallelism, or their mean: arithmetic, harmonic
    quality_weight: Annotated[float, Meta(ge=0)] = 2.0  # relative to efficiency; inf: quality alone
    floor: AboveZero = 0.25  # smallest divisor: quality is confidence of wins over that of losses


@dataclasses.dataclass(frozen=True)
class PreferenceLoss:
    """A loss and its parameters; those of the other losses are ignored."""

    loss: Literal["bonbon", "dpo", "ipo"] = "bonbon"
    alpha: Share = 0.005  # of bonbon: weight of the better answer's plain likelihood
    margin: Finite = 0.0  # of bonbon: the target log-ratio; 0: best of n's, (n - 1) H(n - 1)
    beta: AboveZero = 0.1  # of dpo and ipo
    # Weight of: minus the log-probability that an answer is well-formed without the mask (train/legal.py).
    legal: AtLeastZero = 0.0


@dataclasses.dataclass(frozen=True)
class PreferenceTraining(TrainingSettings):
    """Training on pairs."""

    learning_rate: AtLeastZero = 5e-7  # at the end of the warm-up
    clip: AboveZero = 10.0  # largest global norm of a gradient
    epochs: Annotated[int, Meta(ge=1, le=1000)] = 1
    lengths: Lengths = (1024,)  # tokens per row; a pair gets the shortest that holds both answers
    rows: Rows = 8  # pairs per batch


@dataclasses.dataclass(frozen=True)
class PreferenceIntervals:
    """Intervals of training, in updates; 0: never."""

    log: Count = 10
    save: Count = 100


@dataclasses.dataclass(frozen=True)
class ComparisonSettings:
    """How the models are compared on held-out prompts."""

    count: RecordsOrNone = 256  # 0: they are not compared
    temperatures: Annotated[tuple[AtLeastZero, ...], Meta(min_length=1, max_length=100)] = (0.0,)  # plots: the first
    timed: RecordsOrNone = 0  # prompts that are also answered one at a time, for realised speedup


@dataclasses.dataclass(frozen=True)
class PreferenceSettings:
    """Rounds of sampling, scoring, pairing, learning and comparing."""

    model: ModelSource = ModelSource()  # Pasta-SFT: where the first round starts, and the reference of every round
    baseline: ModelSource = ModelSource()  # Baseline-SFT: trained on the same data without tags
    artifacts: str = ""  # folder of the artifacts; empty: WORKDIR/artifacts
    rounds: Annotated[int, Meta(ge=0, le=1000)] = 2
    prompts: PromptSettings = PromptSettings()
    sample: SampleSettings = SampleSettings()
    decoding: DecodeConfig = DecodeConfig(lanes=64, rows=9, widths=(2, 4))
    request: AnswerSettings = AnswerSettings(max_tokens=600)  # without temperature and seed, which `sample` has
    judge: JudgeSettings = JudgeSettings()
    score: ScoreSettings = ScoreSettings()
    loss: PreferenceLoss = PreferenceLoss()
    adapter: AdapterSettings = AdapterSettings()
    train: PreferenceTraining = PreferenceTraining()
    mesh: TrainingMeshSettings = TrainingMeshSettings()
    executor: Literal["local", "ray"] = "local"  # where answers are sampled: local, or ray (docs/TPU.md)
    ray: RaySettings = RaySettings()
    every: PreferenceIntervals = PreferenceIntervals()
    evaluate: ComparisonSettings = ComparisonSettings()


@dataclasses.dataclass(frozen=True)
class SweepSettings:
    """Runs of the preference stage over values of some of its settings."""

    base: PreferenceSettings = PreferenceSettings()
    mode: Literal["grid", "zip"] = "grid"  # every combination; zip: the first values of all fields, the second ones, …
    fields: tuple[str, ...] = ("score.quality_weight",)  # of base; fields joined by + get the same value
    choices: tuple[tuple[Value, ...], ...] = ((1.0, 2.0, 4.0, 8.0, float("inf")),)  # one list per field
    # Where runs happen: local (one after another), ray (config.ray), or commands: print one for each run.
    executor: Literal["local", "commands", "ray"] = "local"
    ray: RaySettings = RaySettings()
