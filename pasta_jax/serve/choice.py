"""One answer in the making: text in reading order up to a stop text, or what each thread adds."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from pasta_jax.decode.request import Event, Result
from pasta_jax.decode.transcript import Transcript
from pasta_jax.lang.tags import TagIds


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


@dataclasses.dataclass(frozen=True)
class Delta:
    """What one piece of a stream adds: text in reading order, or of one thread with what `pasta` carries."""

    text: str
    pasta: dict[str, Any] | None = None


class Choice:
    """The state of one answer; `push` its events, then `finish`."""

    def __init__(self, tags: TagIds, stops: Sequence[str], threads: bool):
        self._tags, self._threads = tags, threads
        self._transcript = Transcript(tags)
        self._cut = Cut(stops)
        self.text = ""  # what was returned so far, in reading order
        self.result: Result | None = None
        self.expired = False  # True: it had no token yet when the time for answers was over

    @property
    def stopped(self) -> bool:
        """Whether a stop text was found: nothing more is returned."""
        return self._cut.ended

    @property
    def ended(self) -> bool:
        """Whether it has a result, or will have none."""
        return self.result is not None or self.expired

    def push(self, event: Event) -> list[Delta]:
        """What an event adds."""
        threads = len(self._transcript.threads)
        main = len(self._transcript.threads[0].text)
        certain = self._cut.push(self._transcript.push(event.thread, event.token, event.step, event.text))
        self.text += certain
        if not self._threads:
            return [Delta(certain)] if certain else []
        if len(self._transcript.threads) > threads:
            new = self._transcript.threads[-1]
            return [
                Delta("", {"thread": new.number, "topic": new.topic, "promised": 10 * new.tens, "step": event.step})
            ]
        thread = self._transcript.threads[event.thread]
        about = {"thread": event.thread, "step": event.step}
        if event.thread:
            about |= {"topic": thread.topic, "promised": 10 * thread.tens}
            about |= {"ended": True} if thread.ended else {}
            return [Delta(event.text, about)]
        if event.token == self._tags.sync:
            about |= {"sync": True}
        elif len(thread.text) == main:
            return []  # within a topic
        return [Delta(thread.text[main:], about)]

    def finish(self, result: Result) -> list[Delta]:
        """What is left when the answer has ended."""
        self.result = result
        if self.stopped:
            return []
        rest = self._cut.push(self._transcript.rest(result.text))
        rest += self._cut.flush()
        self.text += rest
        return [Delta(rest)] if rest and not self._threads else []

    @property
    def finish_reason(self) -> str:
        """`stop` or `length`."""
        if self.result is None:
            return "length"
        return "stop" if self.stopped else self.result.finish_reason

    def about(self) -> dict[str, Any]:
        """What `pasta` carries of an answer that has ended."""
        if self.result is None:
            return {}
        trace = self.result.trace
        about: dict[str, Any] = {
            "steps": trace.steps,
            "critical_path": trace.critical_path,
            "text_tokens": trace.text_tokens,
            "chunks": len(trace.closed) - 1,
            "prefill_ms": trace.prefill_ms,
            "decode_ms": round(trace.decode_ms, 3),
        }
        if self._threads:
            about["text"] = self.text
            about["threads"] = [
                {
                    "thread": thread.number,
                    "topic": thread.topic,
                    "promised": 10 * thread.tens,
                    "tokens": thread.tokens,
                    "first_step": thread.first_step,
                    "last_step": thread.last_step,
                }
                for thread in trace.threads()
            ]
        return about


def usage(choices: Sequence[Choice]) -> dict[str, Any]:
    """OpenAI's counts of all answers to one prompt; steps and critical path are ours, also summed."""
    results = [choice.result for choice in choices if choice.result is not None]
    traces = [result.trace for result in results]
    prompt, completion = len(traces[0].prompt_ids), sum(len(trace.token) for trace in traces)
    return {
        "prompt_tokens": prompt,
        "prompt_tokens_details": {"cached_tokens": results[0].copied},
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "steps": sum(trace.steps for trace in traces),
        "critical_path": sum(trace.critical_path for trace in traces),
    }
