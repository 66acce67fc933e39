"""The line of each response: what a request took, and nothing of its content."""

import contextvars
import dataclasses
import datetime
import json
import time
import uuid
from collections.abc import Sequence

from pasta_jax.decode.trace import Trace
from pasta_jax.progress import say
from pasta_jax.serve.choice import Choice, usage


@dataclasses.dataclass
class Record:
    """One request, and what its answers have taken so far."""

    id: str = dataclasses.field(default_factory=lambda: f"req_{uuid.uuid4().hex}")
    began: float = dataclasses.field(default_factory=time.perf_counter)
    first_token_s: float | None = None  # from the request to the first token of its answers
    adapter: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    answer_tokens: int = 0
    forks: int = 0  # threads besides the main ones
    answers: list[tuple[float, Trace]] = dataclasses.field(default_factory=list)  # seconds until their end

    @property
    def seconds(self) -> float:
        """Since the request arrived."""
        return time.perf_counter() - self.began

    def see_token(self) -> None:
        """A token has come."""
        if self.first_token_s is None:
            self.first_token_s = self.seconds

    def see_answer(self, trace: Trace) -> None:
        """One has ended."""
        self.answers.append((self.seconds, trace))

    def count(self, choices: Sequence[Choice]) -> None:
        """Add answers to one prompt that have ended."""
        results = [choice.result for choice in choices if choice.result is not None]
        if not results:
            return
        counts = usage(choices)
        self.prompt_tokens += counts["prompt_tokens"]
        self.cached_tokens += counts["prompt_tokens_details"]["cached_tokens"]
        self.answer_tokens += counts["completion_tokens"]
        self.forks += sum(result.forks for result in results)


_current: contextvars.ContextVar[Record | None] = contextvars.ContextVar("record", default=None)


def begin() -> Record:
    """The record of the request that the running task answers."""
    record = Record()
    _current.set(record)
    return record


def record() -> Record:
    """What `begin` returned in this task or one that created it; outside of a request, one that nobody reads."""
    return _current.get() or Record()


def write(record: Record, path: str, status: int, as_json: bool) -> None:
    """Print the line."""
    seconds = record.seconds
    if not as_json:
        say(f"{path} {status} {seconds:.3f} s")
        return
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    fields = {"time": now, "id": record.id, "route": path, "status": status, "seconds": round(seconds, 3)}
    if record.answer_tokens:
        first = {"first_token_seconds": record.first_token_s and round(record.first_token_s, 3)}
        names = ("adapter", "prompt_tokens", "cached_tokens", "answer_tokens", "forks")
        fields |= first | {name: getattr(record, name) for name in names}
    say(json.dumps(fields))
