"""What decoding is asked for and what it returns: requests, events, results, and how they are decoded together."""

import dataclasses
from typing import Literal

from pasta_jax.decode.sampling import Sampling
from pasta_jax.decode.trace import Trace
from pasta_jax.errors import PastaError
from pasta_jax.files.validated import Lanes, SlotsOrNone, Threads, Widths

Piece = Literal[0, 16, 32, 64, 128, 256, 512]  # prefill.py::PIECES


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    """How requests are decoded together. Another value compiles another program."""

    lanes: Lanes  # requests decoded at a time
    rows: Threads  # threads of a request decoded at a time, main included
    slots: SlotsOrNone  # tokens a request can hold, its prompt included; 0: as many as the requests need
    widths: Widths = ()  # a step computes 1 row, all, or the fewest of these that hold its running threads
    packed: Widths = ()  # the same of several lanes together, whose rows are then packed; empty: of the fullest lane
    piece: Piece = 0  # tokens of a prompt written at once, and the unit of what prompts share; 0: the platform's own
    kernel: bool = True  # on a TPU, attention by our own kernel, which reads only slots in use; False: by XLA

    def __post_init__(self):
        for name in ("widths", "packed"):
            if any(count < 1 for count in getattr(self, name)):
                raise PastaError(f"{name} {getattr(self, name)}: each must be at least 1")
        for name in ("lanes", "rows"):
            if getattr(self, name) < 1:
                raise PastaError(f"{name} {getattr(self, name)}: must be at least 1")
        if self.slots < 0:
            raise PastaError(f"slots {self.slots}: must be at least 1, or 0 for as many as the requests need")


@dataclasses.dataclass(frozen=True)
class Request:
    """One prompt, as ids, and how to answer it."""

    prompt_ids: tuple[int, ...]
    max_tokens: int  # tokens of the answer that may be fed, tags included
    sampling: Sampling
    sequential: bool  # no tags: the baseline
    max_topic_tokens: int
    max_chunk_tokens: int
    text: str | None = None  # the prompt as traces show it; None: its ids decoded
    name: str = ""  # of the prompt in errors; empty: "prompt N", N counted from 0
    max_topic_words: int = 0  # 0: no limit
    distinct_topics: bool = False  # True: no topic spells an earlier one (topics.py)
    end_stray_chunks: bool = False  # True: a chunk that would write what only main may ends instead (grammar.py)
    syncs: bool = True  # False: main never waits for its chunks (evaluate's ablation)


@dataclasses.dataclass(frozen=True)
class Event:
    """One token of a request, reported when it is fed; `text` is what it adds to its thread (trace.spell_next)."""

    request: int
    thread: int
    token: int
    step: int
    text: str


@dataclasses.dataclass(frozen=True)
class Result:
    """A finished request."""

    request: int
    text: str
    finish_reason: str
    trace: Trace
    copied: int = 0  # tokens of its prompt that were copied from a lane instead of computed
