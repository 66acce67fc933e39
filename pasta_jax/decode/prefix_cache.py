"""Prompts that lanes hold, also after their requests have ended: which lane a new prompt gets, and what it copies."""

import dataclasses
from collections.abc import Collection, Sequence

Ids = tuple[int, ...]

LEAST = 8  # tokens of a longer prompt that are worth a copy, which takes as long as computing a few


@dataclasses.dataclass(frozen=True)
class Admission:
    """The lane of a new prompt, and how many of its tokens lane `source` holds already; the others are computed."""

    lane: int
    source: int = -1
    copied: int = 0


@dataclasses.dataclass(frozen=True)
class Held:
    """What a lane's first slots hold: a prompt, and after it what main wrote in their order."""

    ids: Ids = ()
    prompt: int = 0  # tokens of it
    adapter: int = 0  # with which it was computed


def shared(prompt: Ids, held: Held, unit: int) -> int:
    """How many of a prompt's tokens are copied from a lane: all, if it was asked there, or else whole units.

    Keys and values of a chunk depend on the chunk and those before it, and on its shape: a chunk of the same tokens
    at the same place has the same bits. So a unit is a prefill chunk, or a token where shapes change no bit. Of a
    longer prompt, a token has to be computed for the next one's logits.
    """
    if prompt == held.ids[: held.prompt]:
        return len(prompt)
    end = 0
    while end + unit < len(prompt) and prompt[end : end + unit] == held.ids[end : end + unit]:
        end += unit
    return end if end >= LEAST else 0


class PrefixCache:
    """The tokens in each lane's first slots; none while a prompt is written."""

    def __init__(self, lanes: int, unit: int):
        self._unit = unit
        self._held = [Held()] * lanes
        self._last_use = [0] * lanes  # the number of the admission
        self._admissions = 0

    def admit(self, prompt: Ids, free: Sequence[int], may_copy: bool, adapter: int = 0) -> Admission:
        """Choose one of the free lanes, which then holds nothing until `hold`.

        A prompt that goes on where a free lane's prompt ends takes over that lane. Any other gets the lane that was not
        used for the longest time, so that conversations which alternate keep their lanes.
        """
        lengths = [
            shared(prompt, held, self._unit) if may_copy and held.adapter == adapter else 0 for held in self._held
        ]
        most = max(lengths)
        sources = [lane for lane, length in enumerate(lengths) if length == most] if most else []
        continued = [lane for lane in sources if lane in free and self._held[lane].prompt - most < self._unit]
        lane = continued[0] if continued else min(free, key=self._last_use.__getitem__)
        source = lane if lane in sources else (sources or [-1])[0]
        self._admissions += 1
        self._last_use[lane] = self._admissions
        self._held[lane] = Held()
        return Admission(lane, source, most)

    def hold(self, lane: int, prompt: Ids, adapter: int, answer: Ids = ()) -> None:
        """The prompt is written, and after it these tokens of main."""
        self._held[lane] = Held(prompt + answer, len(prompt), adapter)

    def forget(self, adapters: Collection[int]) -> None:
        """What was computed with these adapters counts no more."""
        self._held = [Held() if held.adapter in adapters else held for held in self._held]
