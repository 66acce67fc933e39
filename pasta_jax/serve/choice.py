"""One answer in the making: text in reading order up to a stop text, or what each thread adds."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from pasta_jax.decode.request import Event, Result
from pasta_jax.decode.state import OPEN
from pasta_jax.decode.stop_texts import Reading
from pasta_jax.decode.transcript import ThreadText
from pasta_jax.lang.tags import TagIds
from pasta_jax.serve import logprobs
from pasta_jax.tokenizers.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Delta:
    """What one piece of a stream adds: text in reading order, or of one thread with what `pasta` carries."""

    text: str
    pasta: dict[str, Any] | None = None
    part: int = 0  # of an answer that calls several functions


class Choice:
    """The state of one answer; `push` its events, then `finish`."""

    def __init__(self, tags: TagIds, stops: Sequence[str], threads: bool):
        self._tags, self.threads = tags, threads  # threads: what each adds, not text in reading order
        self._reading = Reading(tags, stops)
        self.result: Result | None = None
        self.expired = False  # True: it had no token yet when the time for answers was over

    @property
    def stopped(self) -> bool:
        """Whether a stop text was found: nothing more is returned."""
        return self._reading.stopped

    @property
    def text(self) -> str:
        """What was returned so far, in reading order."""
        return self._reading.text

    @property
    def ended(self) -> bool:
        """Whether it has a result, or will have none."""
        return self.result is not None or self.expired

    def push(self, event: Event) -> list[Delta]:
        """What an event adds."""
        transcript = self._reading.transcript
        threads, main = len(transcript.threads), len(transcript.threads[0].text)
        certain = self._reading.push(event)
        if not self.threads:
            return [Delta(certain)] if certain else []
        if len(transcript.threads) > threads:
            return [Delta("", self._about(transcript.threads[-1], event.step))]
        thread = transcript.threads[event.thread]
        about = self._about(thread, event.step)
        if event.thread:
            about |= {"ended": True} if thread.ended else {}
            return [Delta(event.text, about)]
        if event.token == self._tags.sync:
            about |= {"sync": True}
        elif len(thread.text) == main:
            return []  # within a topic
        return [Delta(thread.text[main:], about)]

    @staticmethod
    def _about(thread: ThreadText, step: int) -> dict[str, Any]:
        """What `pasta` carries of a thread in a stream."""
        chunk = {"topic": thread.topic, "promised": 10 * thread.tens} if thread.number else {}
        return {"thread": thread.number, "step": step} | chunk

    def finish(self, result: Result) -> list[Delta]:
        """What is left when the answer has ended: of each thread, a character that was cut off with it, or its end."""
        self.result = result
        rest = self._reading.finish(result.text)
        if not self.threads:
            return [Delta(rest)] if rest else []
        deltas = []
        for one in self._reading.transcript.threads:
            rest = result.trace.text_of(one.number)[len(one.text) :]
            # By a tag that isn't fed, as the answer's last ones.
            ends = one.number > 0 and not one.ended and result.trace.closed[one.number] != OPEN
            if rest or ends:
                deltas.append(Delta(rest, self._about(one, one.step) | ({"ended": True} if ends else {})))
        return deltas

    def drawn(self, tokenizer: Tokenizer) -> list[logprobs.Drawn]:
        """The scores of an answer that has ended and was scored."""
        return logprobs.drawn(self.result, tokenizer, self.text)

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
            "critical_path": self.result.critical_path,
            "text_tokens": self.result.text_tokens,
            "chunks": len(trace.closed) - 1,
            "prefill_ms": trace.prefill_ms,
            "decode_ms": round(trace.decode_ms, 3),
        }
        if self.result.drafts_fed:
            about |= {"drafts": self.result.drafts_fed, "drafts_kept": self.result.drafts_kept}
        if self.threads:
            about["text"] = self.text
            about["threads"] = [
                {"thread": one.number, "topic": one.topic, "promised": 10 * one.tens}
                | {name: getattr(one, name) for name in ("tokens", "first_step", "last_step")}
                for one in trace.threads()
            ]
        return about


def usage(*answers: Sequence[Choice]) -> dict[str, Any]:
    """OpenAI's counts of all answers to each of some prompts; steps and critical path are ours, also summed."""
    of_prompts = [[choice.result for choice in choices if choice.result is not None] for choices in answers]
    firsts, results = [several[0] for several in of_prompts], [result for several in of_prompts for result in several]
    traces = [result.trace for result in results]
    prompt = sum(first.given or len(first.trace.prompt_ids) for first in firsts)
    completion = sum(result.text_tokens if result.guests else len(result.trace.token) for result in results)
    fed, kept = (sum(getattr(result, name) for result in results) for name in ("drafts_fed", "drafts_kept"))
    drafts = {"accepted_prediction_tokens": kept, "rejected_prediction_tokens": fed - kept}
    return {
        "prompt_tokens": prompt,
        "prompt_tokens_details": {"cached_tokens": sum(first.copied for first in firsts)},
        "completion_tokens": completion,
        **({"completion_tokens_details": drafts} if fed else {}),
        "total_tokens": prompt + completion,
        "steps": sum(trace.steps for trace in traces),
        "critical_path": sum(result.critical_path for result in results),
    }
