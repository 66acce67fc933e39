"""The settings of launch.compile_tpu: models, programs and their shapes."""

import dataclasses
from typing import Annotated, Literal

from msgspec import Meta

from pasta_jax.decode.settings import Draft
from pasta_jax.files.validated import Lanes, Length, Positive, Rows, Slots, Threads

Name = Literal["run", "prefill", "sft", "preference"]
Preset = Annotated[str, Meta(min_length=1)]


@dataclasses.dataclass(frozen=True)
class TrainShape:
    """A training step over all parameters, as in configs/sft.py."""

    data: Positive = 1  # devices that divide the rows; the rest of the topology divides each layer
    fsdp: bool = False  # divide parameters and moments over `data` too
    rows: Rows = 16
    tokens: Length = 2048
    block: Slots = 256
    slice: Slots = 256


@dataclasses.dataclass(frozen=True)
class CompileSettings:
    """Shapes of one model, or several, in bfloat16 with scanned layers, as on a TPU."""

    presets: Annotated[tuple[Preset, ...], Meta(min_length=1, max_length=9)] = ("gemma_7b",)
    data: Positive = 1  # devices that divide the lanes; the rest of the topology divides each lane's heads
    lanes: Lanes = 8
    rows: Threads = 8
    slots: Slots = 4096
    used: Slots = 2048  # slots in use in each lane, for the bytes that a step moves
    draft: Draft = "off"  # a loop with drafts (decode/settings.py)
    prefill: Literal[16, 32, 64, 128, 256, 512] = 512  # tokens of a prompt computed at once (decode/settings.py)
    train: TrainShape = TrainShape()
    programs: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=4)] = ("run", "prefill")  # and sft, preference
    search: bool = False  # look for the most lanes that fit
