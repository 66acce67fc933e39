"""The settings of judges, and of measuring their agreement with preferences."""

import dataclasses
from typing import Annotated, Literal, Protocol

import msgspec

from pasta_jax.errors import PastaError
from pasta_jax.files.validated import AboveZero, AtLeastZero, Positive, Share
from pasta_jax.weights.settings import ModelSource

JudgeName = Literal["rules", "repetition", "shorter", "checked", "reward"]  # judges/choice.py


@dataclasses.dataclass(frozen=True)
class Weights:
    """What each term from 0 to 1 counts; 0: it is not computed."""

    finished: AtLeastZero = 1.0
    topics: AtLeastZero = 0.5
    repetition: AtLeastZero = 2.0
    rules: AtLeastZero = 1.0
    fluency: AtLeastZero = 1.0
    fit: AtLeastZero = 1.0
    enough: AtLeastZero = 0.0


@dataclasses.dataclass(frozen=True)
class Checks:
    """The weighted sum that the judge `checked` compares, and the scale of its verdicts."""

    weights: Weights = Weights()
    worst: float = -4.0  # nats per token whose fluency is 0
    best: float = -1.0  # and 1
    share: Share = 0.8  # of the other answer's new words that is enough
    scale: AboveZero = 0.25  # difference of two sums that is a verdict of 73%

    def __post_init__(self):
        if not self.worst < self.best:
            raise PastaError(f"worst {self.worst}: must be below best, which is {self.best}")


@dataclasses.dataclass(frozen=True)
class CheckedSettings:
    """The judge `checked`: a weighted sum of checks and log-likelihood (judges/checked.py)."""

    checks: Checks = Checks()
    untrained: ModelSource = ModelSource("smollm2_135m")  # whose log-probabilities are the fluency
    # Tokens per row, question included; of longer ones the beginning.
    lengths: Annotated[tuple[Positive, ...], msgspec.Meta(min_length=1)] = (128, 192, 256, 320, 384)
    rows: Positive = 2  # answers per batch; more suit an accelerator
    slice: Positive = 64  # tokens of each row whose logits exist at a time
    products: Literal["float32", "bfloat16"] = "float32"  # as in configs/sft.py


@dataclasses.dataclass(frozen=True)
class RewardSettings:
    """The judge `reward`: a reward model (judges/reward.py)."""

    model: str = ""  # a Hugging Face folder, or its id on the Hub
    # Tokens per row, question included; each length is a program.
    lengths: Annotated[tuple[Positive, ...], msgspec.Meta(min_length=1)] = (256, 512, 1024, 2048)
    rows: Positive = 2  # conversations per batch; more suit an accelerator


class JudgeModels(Protocol):
    """Settings of the judges that need models."""

    checked: CheckedSettings
    reward: RewardSettings


@dataclasses.dataclass(frozen=True)
class AgreementSettings:
    """Judges whose agreement with preferences is to be measured."""

    kinds: tuple[JudgeName, ...] = ("rules", "repetition")
    pairs: Positive = 300
    file: str = ""  # of a person's verdicts; empty: known preferences, which `setup.sh --data` installs
    rules: str = "ifeval"  # where `rules` and `checked` read their rules from; see docs/DATA.md
    checked: CheckedSettings = CheckedSettings()
    reward: RewardSettings = RewardSettings()
