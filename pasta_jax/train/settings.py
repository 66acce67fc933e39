"""The settings of supervised training; preference training shares those of the optimizer and of the adapter."""

import dataclasses
import math
from typing import Annotated, Literal

from msgspec import Meta

from pasta_jax.errors import PastaError
from pasta_jax.files.validated import (
    AboveZero,
    AtLeastZero,
    Count,
    Dimension,
    Length,
    Lengths,
    Momentum,
    Positive,
    RecordsOrNone,
    Rows,
    Seed,
    Share,
    Slots,
    SlotsOrNone,
)
from pasta_jax.lang.structure import Positions
from pasta_jax.models.settings import TrainingMeshSettings
from pasta_jax.weights.rules import Defaults
from pasta_jax.weights.settings import AdapterSettings, ModelSource


@dataclasses.dataclass(frozen=True)
class FreshSettings:
    """A model to train from random weights, with the toy task's tokenizer."""

    layers: Annotated[int, Meta(ge=0, le=1000)] = 0  # 0: start from config.model instead
    embed: Dimension = 0
    ff: Dimension = 0
    heads: Dimension = 0
    kv_heads: Dimension = 0
    head_dim: Dimension = 0
    context: Count = 0
    widen: AboveZero = 1.0  # factor on the initial weights; small models learn faster from larger ones


@dataclasses.dataclass(frozen=True)
class DataSettings:
    """What to train and to measure on, and the shapes of batches."""

    records: str = ""  # folder that launch.annotate wrote
    toy: Literal["", "small", "medium", "large"] = ""  # or a level of the toy task
    toy_count: RecordsOrNone = 0  # number of its problems
    toy_seed: Seed = 1
    held_out: RecordsOrNone = 64  # records to measure on that are not trained on
    lengths: Lengths = (1024,)  # tokens of a batch row; a record goes to the shortest that fits it
    rows: Rows = 8
    packed: bool = True  # several records per row
    too_long: Literal["drop", "split"] = "drop"  # what happens to records that exceed the longest row
    # Share of the chunks that go on with what main writes before its next promise, and are to end there: records end
    # their chunks in time, so a model learns from them what comes after "\n2." in main only. Held-out ones don't.
    stray: Share = 0.0


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
    """What all training shares."""

    learning_rate: AtLeastZero = 1e-5  # at the end of the warm-up
    warmup: Count = 0  # steps in which it rises linearly first, at most half of all
    decay: Literal["linear", "cosine", "constant"] = "linear"  # how it falls to 0 afterwards; constant: not at all
    weight_decay: AtLeastZero = 0.0
    clip: AboveZero = 1.0  # largest global norm of a gradient; a large value clips nothing
    b1: Momentum = 0.9
    b2: Momentum = 0.999
    eps: AboveZero = 1e-8
    # Of the factors in products with weights, on platforms that compute in float32: bfloat16 takes half the time on
    # CPUs with AVX512-BF16. Accelerators use bfloat16 for everything.
    products: Literal["float32", "bfloat16"] = "float32"
    seed: Seed = 0  # of fresh weights, new adapters, and the order of the data


@dataclasses.dataclass(frozen=True)
class TrainingSettings(OptimizerSettings):
    """What training of whole models and of adapters shares."""

    accumulate: Rows = 1  # parts of a batch, computed one after another to save memory
    remat: bool = True  # recompute each layer in the backward pass: less memory, a third more time
    keep_products: bool = False  # with remat, keep the results of products with weights: a quarter of that time back
    block: SlotsOrNone = 0  # tokens per block of attention, n * 128 on a TPU; 0: a whole row, with its mask in memory
    slice: Slots = 256  # tokens of a row whose logits are in memory at a time


def refuse_unclear_end(place: str, steps: int, epochs: int) -> None:
    """Raise unless a training ends either after steps or after epochs."""
    if bool(steps) == bool(epochs):
        raise PastaError(f"{place}: set either steps or epochs, and the other to 0")


def refuse_uneven_parts(train: TrainingSettings, rows: int, devices: int = 1) -> None:
    """Raise if a batch doesn't divide into equal parts, or over the devices that share its rows."""
    if rows % devices:
        raise PastaError(
            f"a batch of {rows} rows doesn't divide over the {devices} devices of config.mesh.data; use a multiple of "
            f"{devices}, or, in one process without config.mesh.model, config.mesh.data=1: a single device"
        )
    if rows % train.accumulate:
        raise PastaError(f"config.train.accumulate {train.accumulate}: must divide the {rows} rows of a batch")


def parts_of(train: TrainingSettings, rows: int, devices: int) -> int:
    """Into how many parts a batch is cut: as many as each device has rows for, or all would compute the same part."""
    return math.gcd(train.accumulate, rows // devices)


@dataclasses.dataclass(frozen=True)
class SftTraining(TrainingSettings):
    """How long and how to train. Either epochs or steps is 0."""

    epochs: Annotated[int, Meta(ge=0, le=1000)] = 4
    steps: Count = 0  # a number of steps instead of epochs, which must then be 0


@dataclasses.dataclass(frozen=True)
class KindWeights:
    """The weight of each kind of label in the loss."""

    main: AtLeastZero = 1.0
    topic: AtLeastZero = 1.0
    length: AtLeastZero = 1.0
    chunk: AtLeastZero = 1.0
    sync: AtLeastZero = 1.0
    bracket: AtLeastZero = 1.0  # a further factor on [PROMISE] and [/ASYNC], labels of kinds main and chunk
    # Added, times the mean over labels: the negative log-probability of any id that is legal in a label's place
    # (train/legal.py). Few labels are tags, so the likelihood alone hardly teaches where tags are illegal.
    legal: AtLeastZero = 0.0


@dataclasses.dataclass(frozen=True)
class Intervals:
    """Every how many steps each of these happens; 0: never."""

    log: Count = 10
    held_out: Count = 200
    probe: Count = 200
    save: Count = 200


@dataclasses.dataclass(frozen=True)
class Keep:
    """Which checkpoints stay on disk."""

    newest: Positive = 3  # how many of the newest
    every: Count = 0  # keep those at multiples of this many steps permanently; 0: none


@dataclasses.dataclass(frozen=True)
class ProbeSettings:
    """Held-out prompts answered greedily during training, to see whether and how well the model forks."""

    prompts: Annotated[int, Meta(ge=0, le=4096)] = 8
    rows: Annotated[int, Meta(ge=2, le=1024)] = 8
    max_tokens: Positive = 400


@dataclasses.dataclass(frozen=True)
class SftSettings:
    """A run of supervised training; the defaults are the paper's."""

    model: ModelSource = ModelSource()
    fresh: FreshSettings = FreshSettings()
    tag_rows: Literal["words", "apart"] = "words"  # where a new adapter's start: near words of their meaning, or apart
    defaults: Defaults = Defaults()  # how the trained model is meant to be sampled; written beside it
    strip_tags: bool = False  # True: train on plain answers, for the baseline
    tree: bool = False  # True: forks without topics, lengths and joins, as APAR has them (lang/tree.py)
    # Stored with the model, which then decodes with it: predicted, constant (main skips `constant` ids), oracle
    # (training only), shared_start. A trained model keeps its own.
    positions: Positions = Positions()
    data: DataSettings = DataSettings()
    adapter: AdapterSettings = AdapterSettings()
    train: SftTraining = SftTraining()
    weights: KindWeights = KindWeights()
    mesh: TrainingMeshSettings = TrainingMeshSettings()
    every: Intervals = Intervals()
    keep: Keep = Keep()
    probe: ProbeSettings = ProbeSettings()
    tensorboard: bool = False  # write TensorBoard events as well


@dataclasses.dataclass(frozen=True)
class DrafterSettings:
    """A drafter that learns a model's own answers (train/drafter.py)."""

    model: ModelSource = ModelSource("smollm2_135m", adapter="pasta")
    # A file of the model's answers that launch.decode --output wrote; to none of the prompts measured on.
    answers: str = ""
    width: Annotated[int, Meta(ge=32, le=2**16, multiple_of=32)] = 1024  # of its hidden layer
    ids: Positive = 8192  # that it can guess: the most frequent ones of the answers
    depth: Annotated[int, Meta(ge=1, le=7)] = 3  # tokens in a row that it learns to guess
    held_out: Share = 0.05  # of the answers, the last ones: to measure on
    longest: Length = 768  # tokens of a prompt and its answer; longer ones are left out
    rows: Rows = 256  # tokens of a batch
    epochs: Positive = 8
    train: OptimizerSettings = OptimizerSettings(
        learning_rate=1e-3, warmup=50, decay="cosine", weight_decay=0.01, products="bfloat16"
    )
