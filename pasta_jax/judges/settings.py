"""The settings of judges, and of measuring their agreement with preferences."""

import dataclasses
from typing import Annotated, Literal, Protocol

import msgspec

from pasta_jax.errors import PastaError
from pasta_jax.files.validated import AboveZero, AtLeastZero, Count, Lengths, Positive, Rows, Share
from pasta_jax.train.settings import TrainingSettings
from pasta_jax.weights.settings import AdapterSettings, ModelSource

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

    model: str = ""  # a Hugging Face folder, its id on the Hub, or a workdir of launch.train_judge
    # Tokens per row, question included; each length is a program. For longer ones the last is doubled, twice at most.
    lengths: Annotated[tuple[Positive, ...], msgspec.Meta(min_length=1)] = (256, 512, 1024)
    rows: Positive = 2  # conversations per batch; more suit an accelerator


@dataclasses.dataclass(frozen=True)
class TrainJudgeSettings:
    """A reward model trained on published verdicts (judges/training.py)."""

    verdicts: str = ""  # the folder results of a clone of alpaca_eval
    judges: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = (
        "weighted_alpaca_eval_gpt4_turbo",  # probabilities, against GPT-4's answers
        "alpaca_eval_gpt4",  # decisions, against text_davinci_003's
    )
    model: ModelSource = ModelSource("smollm2_135m")
    folds: Annotated[int, msgspec.Meta(ge=2, le=20)] = 5  # parts of all questions; a judge never learnt those it judges
    only: tuple[Count, ...] = ()  # train the judges of these folds; empty: all
    hidden: Positive = 20  # models whose answers no judge learns from; all figures are about them
    wins: Share = 0.3  # learn from models that win at most this share: answers like those that are to be judged
    pairs: Positive = 4000  # per fold
    matched: Share = 0.5  # share of them within 15% of length: else length is what is learnt
    margin: AboveZero = 2.0  # log-odds between the answers of a pair
    measured: Positive = 400  # pairs to measure on, as many within 15% of length, and as many to calibrate with
    ranked: Positive = 40  # questions by which the hidden models are ranked
    lengths: Lengths = (256, 384, 512, 768)  # tokens of question and answer; a longer pair is left out
    rows: Rows = 4  # pairs per batch
    epochs: Positive = 1
    adapter: AdapterSettings = AdapterSettings(rank=16, alpha=32.0)
    train: TrainingSettings = TrainingSettings(
        learning_rate=5e-4, warmup=20, keep_products=True, products="bfloat16", decay="cosine"
    )
    save: Positive = 50  # steps between checkpoints


class JudgeModels(Protocol):
    """Settings of the judges that need models."""

    checked: CheckedSettings
    reward: RewardSettings


@dataclasses.dataclass(frozen=True)
class AgreementSettings:
    """Judges whose agreement with preferences is to be measured."""

    kinds: tuple[JudgeName, ...] = ("rules", "repetition")
    pairs: Count = 0  # at most, ties among them; 0: all
    file: str = ""  # of a person's verdicts; empty: known preferences, which `setup.sh --data` installs
    rules: str = "ifeval"  # where `rules` and `checked` read their rules from; see docs/DATA.md
    checked: CheckedSettings = CheckedSettings()
    reward: RewardSettings = RewardSettings()
