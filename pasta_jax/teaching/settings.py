"""The settings of launch.teach: a model, prompts, and how long each stage may take."""

import dataclasses
from typing import Annotated, Literal

from msgspec import Meta

from pasta_jax.files.validated import AtLeastZero, Count, Lanes, Lengths, Positive, Rows, Seed, Share
from pasta_jax.weights.settings import AdapterSettings, ModelSource


@dataclasses.dataclass(frozen=True)
class PromptsSettings:
    """What the model answers to learn from. Nothing near a prompt of an evaluation set is used, if these are there."""

    file: str = ""  # JSON lines with prompt or instruction; empty: our own (data/in_parts.jsonl) and `sources`
    sources: str = "alpaca_rows,preferences"  # packaged sets with stated terms; left out where they aren't installed
    count: Positive = 600
    # Share of prompts that ask for a list, steps or several parts; the others teach when not to fork.
    parts: Share = 0.75
    held_out: Count = 40  # further prompts, which are never trained on, to evaluate with


@dataclasses.dataclass(frozen=True)
class AnswersSettings:
    """How the model answers, sequentially."""

    samples: Positive = 1  # answers to each prompt, each with seeds of its own
    lanes: Lanes = 16  # at a time
    max_tokens: Positive = 350  # longer answers are cut off, and left out
    temperature: AtLeastZero | None = None  # None: the model's own
    top_p: Share | None = None


@dataclasses.dataclass(frozen=True)
class TrainingSettings:
    """How the adapter is trained; configs/sft.py:pasta has the rest."""

    adapter: AdapterSettings = AdapterSettings(rank=16, alpha=32.0, dtype="bfloat16")
    epochs: Count = 2
    steps: Count = 0  # instead of epochs, which must then be 0
    learning_rate: AtLeastZero = 7e-4
    warmup: Count = 5
    rows: Rows = 2
    lengths: Lengths = (512,)
    legal: AtLeastZero = 32.0  # few labels are tags: without it, one answer in four breaks the grammar
    length: AtLeastZero = 2.0
    stray: Share = 0.0
    keep_products: bool = True
    base: Literal["auto", "bfloat16"] = "bfloat16"  # of what stays frozen; auto: the platform's, twice as much on a CPU
    save: Positive = 4  # steps between checkpoints


@dataclasses.dataclass(frozen=True)
class TeachSettings:
    """Teach a model to fork, from its own answers."""

    model: ModelSource = ModelSource()
    prompts: PromptsSettings = PromptsSettings()
    answers: AnswersSettings = AnswersSettings()
    # Keep only answers whose form teaches (docs/DATA.md), at most `unforked` of them without a fork; False: all, but
    # for those of `corrected`.
    filtered: bool = True
    unforked: Annotated[float, Meta(ge=0, lt=1)] = 0.45
    # Weigh chunks with the model's own likelihood, and join or drop those that aren't independent: reads each answer
    # some ten times, in the platform's dtype.
    weigh: bool = False
    training: TrainingSettings = TrainingSettings()
    # Then let the model answer with forks, correct chunks that run on, and train a little further on these answers.
    corrected: Count = 0  # steps of that; 0: none
    # Then rounds of preference training (launch.preference): faster and better ones of its own answers win. Several
    # copies of the model are in memory meanwhile, in the platform's dtype. 0: none.
    preference_rounds: Count = 0
    evaluate: bool = True  # on the prompts held out: beside the model as it was, and beside itself without tags
    evaluate_tokens: Positive = 350
    seed: Seed = 0
