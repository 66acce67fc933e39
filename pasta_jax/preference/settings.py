"""The fields of configs/preference.py, as types; the config states every default and what each field means."""

import dataclasses
from typing import Annotated, Literal

import msgspec

from pasta_jax.decode.settings import AnswerSettings, DecodeConfig
from pasta_jax.files.validated import (
    AboveZero,
    AtLeastZero,
    Count,
    Lengths,
    Positive,
    Records,
    RecordsOrNone,
    Rounds,
    Rows,
    Seed,
    Threading,
    WordLimits,
)
from pasta_jax.judges.settings import CheckedSettings, JudgeName
from pasta_jax.llm.client import Endpoint
from pasta_jax.models.settings import TrainingMeshSettings
from pasta_jax.preference.loss import PreferenceLoss
from pasta_jax.preference.scores import Efficiency
from pasta_jax.runs.ray import RaySettings
from pasta_jax.train.settings import AdapterSettings, TrainingSettings
from pasta_jax.weights.settings import ModelSource


@dataclasses.dataclass(frozen=True)
class PromptSettings:
    """Which prompts are answered."""

    toy: str
    toy_seed: Seed
    source: str
    records: str
    count: Records
    prompt_words: WordLimits
    response_words: WordLimits


@dataclasses.dataclass(frozen=True)
class SampleSettings:
    """How the answers to choose from are sampled."""

    count: Rounds
    temperature: AtLeastZero
    baseline_temperature: AtLeastZero
    seed: Seed
    block: Positive


@dataclasses.dataclass(frozen=True)
class JudgeSettings:
    """The judge that compares answers."""

    kind: Literal["llm", "toy", JudgeName]
    scale: AboveZero
    asks: Threading
    concurrency: Threading
    checked: CheckedSettings
    agreement: Count
    endpoint: Endpoint


@dataclasses.dataclass(frozen=True)
class ScoreSettings:
    """How much the verdicts on an answer and its speed count."""

    efficiency: Efficiency
    quality_weight: Annotated[float, msgspec.Meta(ge=0)]
    floor: AboveZero


@dataclasses.dataclass(frozen=True)
class PreferenceTraining(TrainingSettings):
    """Training on pairs."""

    learning_rate: AtLeastZero = 5e-7  # decays linearly to 0
    clip: AboveZero = 10.0  # largest global norm of a gradient
    epochs: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    lengths: Lengths = (1024,)  # tokens per row; a pair gets the shortest that holds both answers
    rows: Rows = 8  # pairs per batch


@dataclasses.dataclass(frozen=True)
class EverySettings:
    """Intervals of training, in updates; 0: never."""

    log: Count
    save: Count


@dataclasses.dataclass(frozen=True)
class EvaluateSettings:
    """How the models are compared."""

    count: Records
    temperatures: Annotated[tuple[AtLeastZero, ...], msgspec.Meta(min_length=1, max_length=100)]
    timed: RecordsOrNone


@dataclasses.dataclass(frozen=True)
class Settings:
    """The whole config."""

    model: ModelSource
    baseline: ModelSource
    artifacts: str
    rounds: Annotated[int, msgspec.Meta(ge=0, le=1000)]
    prompts: PromptSettings
    sample: SampleSettings
    decoding: DecodeConfig
    request: AnswerSettings  # without temperature and seed, which `sample` has
    judge: JudgeSettings
    score: ScoreSettings
    loss: PreferenceLoss
    adapter: AdapterSettings
    train: PreferenceTraining
    mesh: TrainingMeshSettings
    executor: Literal["local", "ray"]
    ray: RaySettings
    every: EverySettings
    evaluate: EvaluateSettings
