"""A language model's answers on disk, with their token counts, and the cost of one run or of all."""

import dataclasses
import threading
from pathlib import Path

from pasta_jax.errors import PastaError
from pasta_jax.files.jsonl import JsonLines, parsed, whole_lines
from pasta_jax.files.validated import AtLeastZero, Count
from pasta_jax.runs import processes


@dataclasses.dataclass(frozen=True)
class Prices:
    """A provider's prices; both 0: not set."""

    dollars_per_million_in: AtLeastZero = 0.0  # your provider's price; both 0: not set, and no cost is stated
    dollars_per_million_out: AtLeastZero = 0.0

    def dollars(self, tokens_in: int, tokens_out: int) -> float | None:
        """The cost of tokens; None if no price is set."""
        if not self.dollars_per_million_in and not self.dollars_per_million_out:
            return None
        return (tokens_in * self.dollars_per_million_in + tokens_out * self.dollars_per_million_out) / 1e6


@dataclasses.dataclass(frozen=True)
class Cost:
    """What answers cost."""

    requests: int
    tokens_in: int
    tokens_out: int
    dollars: float | None  # None: no price is set

    def text(self) -> str:
        """On one line."""
        return f"{self.requests:,} requests, {_price(self.tokens_in, self.tokens_out, self.dollars)}"


@dataclasses.dataclass
class Usage:
    """Requests and tokens so far; answers from the cache cost nothing."""

    requests: int = 0
    cache_hits: int = 0
    retries: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    dollars: float | None = None  # None: no price is set

    def add(self, cost: Cost, prices: Prices) -> None:
        """Count what answers took."""
        self.requests += cost.requests
        self.tokens_in += cost.tokens_in
        self.tokens_out += cost.tokens_out
        self.dollars = prices.dollars(self.tokens_in, self.tokens_out)

    def text(self) -> str:
        """On one line."""
        return (
            f"{self.requests:,} requests, {self.cache_hits:,} answers cached, {self.retries:,} retries; "
            f"{_price(self.tokens_in, self.tokens_out, self.dollars)}"
        )


@dataclasses.dataclass(frozen=True)
class CachedAnswer:
    """A line of the cache."""

    key: str
    text: str
    tokens_in: Count
    tokens_out: Count
    complete: bool = True  # False: empty or cut off; it was paid for, but is no answer


class Cache:
    """Answers on disk, one JSON line each. Of several writers each reads all answers and has a file of its own.

    Writers are processes, and runs that share a folder by different `run`s (0: it has none). On NFS, lines that two
    append to one file would be mixed.
    """

    def __init__(self, path: Path, run: int = 0):
        self.path, self._lock = path, threading.Lock()
        numbers = [f"-{number}" for number in (run, processes.number()) if number]
        own = path.with_name(path.stem + "".join(numbers) + path.suffix)
        self._file = JsonLines(own)
        try:
            earlier = _parse(self._file.lines, own)
            for other in _files(path):
                earlier += [] if other == own else _parse(whole_lines(other), other)
        except PastaError:
            self._file.close()
            raise
        self._answers = {answer.key: answer.text for answer in earlier if answer.complete}

    def get(self, key: str) -> str | None:
        """The answer, or None."""
        with self._lock:
            return self._answers.get(key)

    def put(self, answer: CachedAnswer) -> None:
        """Store an answer."""
        with self._lock:
            self._file.append(dataclasses.asdict(answer))
            if answer.complete:
                self._answers[answer.key] = answer.text

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def total_cost(path: Path, prices: Prices) -> Cost:
    """The cost of all answers in a cache: those of every run that used it, in all processes."""
    return cost_of([answer for file in _files(path) for answer in _parse(whole_lines(file), file)], prices)


def _files(path: Path) -> list[Path]:
    """The cache files of all writers."""
    return [path, *sorted(path.parent.glob(f"{path.stem}-[0-9]*{path.suffix}"))]


def cost_of(answers: list[CachedAnswer], prices: Prices) -> Cost:
    """The cost of answers together."""
    tokens_in, tokens_out = sum(a.tokens_in for a in answers), sum(a.tokens_out for a in answers)
    return Cost(len(answers), tokens_in, tokens_out, prices.dollars(tokens_in, tokens_out))


def _price(tokens_in: int, tokens_out: int, dollars: float | None) -> str:
    cost = "price not set" if dollars is None else f"${dollars:.2f}"
    return f"{tokens_in:,} tokens in, {tokens_out:,} out; {cost}"


def _parse(lines: list[bytes], path: Path) -> list[CachedAnswer]:
    """The answers in a cache file."""
    return list(parsed(lines, CachedAnswer, path, "delete that line, or name another folder"))
