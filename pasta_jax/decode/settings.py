"""What configs state about decoding, without JAX: how requests are decoded together, and how each is answered."""

import dataclasses
from typing import Literal

from pasta_jax.errors import PastaError
from pasta_jax.files.validated import Lanes, Positive, SlotsOrNone, Threads, Widths
from pasta_jax.weights.rules import Given

PrefillChunk = Literal[0, 16, 32, 64, 128, 256, 512]  # prefill.py::PREFILL_CHUNKS
Draft = Literal["off", "lookup", "drafter"]


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    """How requests are decoded together. Another value compiles another program."""

    lanes: Lanes  # requests decoded at a time
    rows: Threads  # threads of a request decoded at a time, main included
    slots: SlotsOrNone = 0  # tokens a request can hold, its prompt included; 0: as many as the requests need
    # A step computes 1 row, all, or the fewest of these that hold its running threads; each adds a compiled loop.
    widths: Widths = ()
    # Instead, with several lanes: row counts of all lanes together, besides lanes * rows.
    packed: Widths = ()
    # Tokens of a prompt computed at once, and without our CPU kernels the unit that prompts share; 0: the platform's.
    prefill_chunk: PrefillChunk = 0
    # When chunks begin. eager: once a row of their lane is free; admitted: once a step of all lanes has room for them.
    # It has as many rows as pay on this machine (measured at the first start), the greatest of `packed` at most.
    forks: Literal["eager", "admitted"] = "eager"
    # Guesses of next tokens in free rows (decode/drafts.py). They change no token of an answer that is not cut off.
    # lookup: what followed the same tokens before; drafter: or what config.model.drafter guesses.
    draft: Draft = "off"
    kernel: bool = True  # on a TPU, attention by our own kernel, which reads only slots in use; False: by XLA


@dataclasses.dataclass(frozen=True)
class Room:
    """The sizes of a loop's automata for each lane: another value compiles another program."""

    states: int  # S
    masks: int  # K


@dataclasses.dataclass(frozen=True)
class AnswerSettings(Given):
    """How every system answers; None: the first one's own rule."""

    max_tokens: Positive = 512  # of the answer, tags included


def refuse_idle_drafter(drafter: str, decoding: DecodeConfig) -> None:
    """Raise for a drafter that decoding would not use."""
    if drafter and decoding.draft != "drafter":
        raise PastaError(
            f"config.model.drafter={drafter}: is not used; set --config.decoding.draft=drafter, or drop it"
        )


@dataclasses.dataclass(frozen=True)
class RequestSettings(AnswerSettings):
    """How one model answers."""

    sequential: bool | None = None  # True: without tags, one token after another; None: as the model was trained
