"""The fields of configs/preference.py, as types; the config states every default and what each field means."""

import dataclasses
from typing import Annotated, Literal

import msgspec

from pasta_jax.decode.generate import DecodeConfig
from pasta_jax.evaluate.scores import Efficiency
from pasta_jax.llm import Endpoint
from pasta_jax.models.source import ModelSource
from pasta_jax.pipelines.trainable import AdapterSettings, MeshSettings, TrainingSettings
from pasta_jax.train.preference import PreferenceLoss

Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]


@dataclasses.dataclass(frozen=True)
class PromptSettings:
    """Which prompts are answered."""

    toy: str
    toy_seed: Count
    source: str
    count: Positive
    prompt_words: tuple[int, int]
    response_words: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class SampleSettings:
    """How the answers to choose from are sampled."""

    count: Positive
    temperature: float
    seed: int
    block: Positive


@dataclasses.dataclass(frozen=True)
class RequestSettings:
    """Limits of every answer."""

    max_tokens: int
    max_topic_tokens: int
    max_topic_words: int | None
    distinct_topics: bool | None
    max_chunk_tokens: int


@dataclasses.dataclass(frozen=True)
class JudgeSettings:
    """The judge that compares answers."""

    kind: Literal["llm", "toy", "rules", "repetition"]
    scale: float
    asks: Positive
    concurrency: Positive
    agreement: Count
    endpoint: Endpoint


@dataclasses.dataclass(frozen=True)
class ScoreSettings:
    """How much the verdicts on an answer and its speed count."""

    efficiency: Efficiency
    quality_weight: float
    floor: float


@dataclasses.dataclass(frozen=True)
class TrainSettings(TrainingSettings):
    """Training on pairs."""

    epochs: Positive
    lengths: Annotated[tuple[int, ...], msgspec.Meta(min_length=1)]
    rows: Positive


@dataclasses.dataclass(frozen=True)
class EverySettings:
    """Intervals of training, in updates; 0: never."""

    log: Count
    save: Count


@dataclasses.dataclass(frozen=True)
class EvaluateSettings:
    """How the models are compared."""

    count: Positive
    temperatures: Annotated[tuple[float, ...], msgspec.Meta(min_length=1)]
    timed: Count


@dataclasses.dataclass(frozen=True)
class Settings:
    """The whole config."""

    model: ModelSource
    baseline: ModelSource
    artifacts: str
    rounds: Count
    prompts: PromptSettings
    sample: SampleSettings
    decoding: DecodeConfig
    request: RequestSettings
    judge: JudgeSettings
    score: ScoreSettings
    loss: PreferenceLoss
    adapter: AdapterSettings
    train: TrainSettings
    mesh: MeshSettings
    every: EverySettings
    evaluate: EvaluateSettings
