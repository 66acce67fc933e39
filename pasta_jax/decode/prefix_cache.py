"""Prompts that lanes hold, also after their requests have ended: which lane a new prompt gets, and what it copies."""

import dataclasses
from collections.abc import Collection, Sequence

Prompt = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Admission:
    """The lane of a new prompt, and how many of its tokens lane `source` holds already; the others are computed."""

    lane: int
    source: int = -1
    copied: int = 0


def shared(prompt: Prompt, held: Prompt, chunk: int) -> int:
    """How many of a prompt's tokens are copied from a held one: all, or whole prefill chunks before the last one.

    Keys and values of a chunk depend on the chunk and those before it, and on its shape: a chunk of the same tokens
    at the same place has the same bits. Of a longer prompt, a token has to be computed for the next one's logits.
    """
    if prompt == held:
        return len(prompt)
    end = 0
    while end + chunk < len(prompt) and prompt[end : end + chunk] == held[end : end + chunk]:
        end += chunk
    return end


class PrefixCache:
    """The prompt in each lane's first slots; empty while one is written."""

    def __init__(self, lanes: int, chunk: int):
        self._chunk = chunk
        self._prompts: list[Prompt] = [()] * lanes
        self._adapters = [0] * lanes  # with which it was computed
        self._last_use = [0] * lanes  # the number of the admission
        self._admissions = 0

    def admit(self, prompt: Prompt, free: Sequence[int], may_copy: bool, adapter: int = 0) -> Admission:
        """Choose one of the free lanes, which then holds nothing until `hold`.

        A prompt that goes on where a free lane's ends takes over that lane. Any other gets the lane that was not used
        for the longest time, so that conversations which alternate keep their lanes.
        """
        lengths = [
            shared(prompt, held, self._chunk) if may_copy and other == adapter else 0
            for held, other in zip(self._prompts, self._adapters, strict=True)
        ]
        most = max(lengths)
        sources = [lane for lane, length in enumerate(lengths) if length == most] if most else []
        continued = [lane for lane in sources if lane in free and len(self._prompts[lane]) - most < self._chunk]
        lane = continued[0] if continued else min(free, key=self._last_use.__getitem__)
        source = lane if lane in sources else (sources or [-1])[0]
        self._admissions += 1
        self._last_use[lane] = self._admissions
        self._prompts[lane], self._adapters[lane] = (), adapter
        return Admission(lane, source, most)

    def hold(self, lane: int, prompt: Prompt) -> None:
        """The prompt is written."""
        self._prompts[lane] = prompt

    def forget(self, adapters: Collection[int]) -> None:
        """What was computed with these adapters counts no more."""
        for lane, adapter in enumerate(self._adapters):
            if adapter in adapters:
                self._prompts[lane] = ()
