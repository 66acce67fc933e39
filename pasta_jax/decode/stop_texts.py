"""Texts that end an answer: what is read is its text in reading order, up to the first of them."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from pasta_jax.decode.request import Event
from pasta_jax.decode.transcript import Transcript
from pasta_jax.lang.tags import TagIds

Stop = Annotated[str, Meta(min_length=1, max_length=256)]
Stops = Stop | Annotated[list[Stop], Meta(max_length=4)] | None  # OpenAI's limit


def stop_texts(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """The texts that end an answer."""
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


class Cut:
    """Text up to the first of some stop texts, in pieces: what may be the beginning of one is held back."""

    def __init__(self, stops: Sequence[str]):
        self._stops = stops
        self._held = ""
        self.ended = False

    def push(self, text: str) -> str:
        """The text that is certain to precede a stop text."""
        if self.ended or not self._stops:
            return "" if self.ended else text
        text = self._held + text
        # The stop text that is complete first ends the answer, so that its division into pieces doesn't matter.
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.ended, self._held = True, ""
            return text[: min(found)[1]]
        longest = max(len(stop) for stop in self._stops) - 1
        held = next(
            (n for n in range(min(longest, len(text)), 0, -1) if any(s.startswith(text[-n:]) for s in self._stops)), 0
        )
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        """What was held back, at the answer's end."""
        text, self._held = self._held, ""
        return text


class Reading:
    """An answer as it is read; `push` its events, then `finish`. Both return the text that has become certain."""

    def __init__(self, tags: TagIds, stops: Sequence[str]):
        self.transcript = Transcript(tags)
        self._cut = Cut(stops)
        self.text = ""  # what was returned so far

    @property
    def stopped(self) -> bool:
        """Whether a stop text was found: nothing more is returned."""
        return self._cut.ended

    def push(self, event: Event) -> str:
        """What an event adds."""
        return self._add(self._cut.push(self.transcript.push(event.thread, event.token, event.step, event.text)))

    def finish(self, answer: str) -> str:
        """What is left of the whole answer when it has ended."""
        if self.stopped:
            return ""
        return self._add(self._cut.push(self.transcript.rest(answer)) + self._cut.flush())

    def _add(self, text: str) -> str:
        self.text += text
        return text
