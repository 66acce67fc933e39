"""What drafts could gain: recorded answers decoded again on paper, with drafts of which a given share is right.

A draft that is right saves a step of its thread, so answers stay the same, and a step costs what one of as many rows
is said to take. As in decode/drafts.py, the thread that gets drafts is main, or if it waits, the latest chunk, and
it gets as many as save most time.
"""

import dataclasses
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pasta_jax.decode.state import STOP
from pasta_jax.decode.trace import Trace
from pasta_jax.errors import PastaError
from pasta_jax.files.jsonl import read
from pasta_jax.files.validated import MIB, Count, typed
from pasta_jax.lang.tags import TagIds
from pasta_jax.view import trace_file


@dataclasses.dataclass(frozen=True)
class Recorded:
    """What each thread of an answer fed."""

    tags: TagIds
    threads: list[list[int]]  # main first; chunks begin with [ASYNC] and end before [/ASYNC]

    @staticmethod
    def of(trace: Trace) -> "Recorded":
        """The threads of an answer that ended by itself."""
        return Recorded.of_threads(trace.tags, [trace.thread_ids(number) for number in range(len(trace.closed))])

    @staticmethod
    def of_threads(tags: TagIds, threads: Sequence[list[int]]) -> "Recorded":
        """What they fed; a last [/ASYNC] may be missing."""
        chunks = [chunk or [tags.async_] for chunk in threads[1:]]
        chunks = [chunk[: -1 if chunk[-1] == tags.end_async else None] for chunk in chunks]
        return Recorded(tags, [threads[0], *chunks])


class _Fed(msgspec.Struct):
    ids: list[Count]
    threads: list[Count]


class _Answer(msgspec.Struct):
    """A line of launch.evaluate's answers."""

    finished: bool
    fed: _Fed
    chunks: list[Any]


def read_answers(path: Path) -> list[Recorded]:
    """The answers that ended by themselves, of the traces in a folder or of launch.evaluate's answers-model.jsonl."""
    if path.is_dir():
        traces = [trace_file.load(file) for file in sorted(path.glob("*.json"))]
        answers = [Recorded.of(trace) for trace in traces if trace.finish == STOP]
    else:
        answers = list(_of_evaluation(path))
    if not answers:
        raise PastaError(f"{path}: no answer that ended; write traces with launch.decode --trace")
    return answers


def _of_evaluation(path: Path) -> Iterator[Recorded]:
    fix, tags = "name answers-model.jsonl of launch.evaluate", None
    for place, line in read(path, dict, 64 * MIB, fix):
        if tags is None:
            tags = TagIds(typed(line.get("tags"), Count, place, fix))
            continue
        answer = typed(line, _Answer, place, fix)
        if answer.finished:
            fed = np.array([answer.fed.threads, answer.fed.ids])
            threads = [fed[1, fed[0] == number].tolist() for number in range(1 + len(answer.chunks))]
            yield Recorded.of_threads(tags, threads)


def rows_of_steps(
    answer: Recorded, rows: int, counts: Sequence[int], share: float, rng: random.Random
) -> Iterator[int]:
    """The rows of each step, with counts[n] drafts beside n rows, of which each is right with probability `share`."""
    tags, threads = answer.tags, answer.threads
    done, opened, ended = [0] * len(threads), 1, set()

    def is_over(thread: int) -> bool:
        return done[thread] >= len(threads[thread])

    while True:
        live = [number for number in range(1, opened) if not is_over(number)]
        if is_over(0) and not live:
            return
        next_token = None if is_over(0) else threads[0][done[0]]
        main = next_token is not None and not (next_token == tags.sync and live)
        opened += main and tags.is_close(next_token)
        chunks = [number for number in range(1, opened) if number not in ended][: rows - 1]
        feeds = [*([0] if main else []), *chunks]
        ended |= {number for number in feeds if is_over(number)}  # fed its [/ASYNC]
        running = [number for number in feeds if not is_over(number)]
        for number in running:
            done[number] += 1
        drafts = counts[len(feeds)] if running else 0
        yield len(feeds) + drafts
        thread = 0 if main else max(running, default=0)
        for _ in range(drafts):
            if is_over(thread) or tags.is_close(threads[thread][done[thread]]) or rng.random() >= share:
                break
            if threads[thread][done[thread]] == tags.sync:  # it may have to wait, and has a step of its own
                break
            done[thread] += 1


def sequential(answer: Recorded) -> Recorded:
    """The answer's text, written one token after another."""
    tags, in_topic, text = answer.tags, False, []
    for token in answer.threads[0]:
        in_topic = (in_topic or token == tags.promise) and not tags.is_close(token)
        if not in_topic and not tags.is_tag(token):
            text.append(token)
    return Recorded(tags, [text + [token for chunk in answer.threads[1:] for token in chunk if not tags.is_tag(token)]])


def prices(ms: Mapping[int, float], rows: Sequence[int]) -> np.ndarray:
    """Milliseconds of steps with so many rows: those of the next size that is measured, as decoding pads to it."""
    return np.array([*ms.values()])[np.minimum(np.searchsorted([*ms], rows), len(ms) - 1)]


def paying(ms: Mapping[int, float], rows: int, share: float) -> list[int]:
    """By the rows that a step has without drafts, from 0: how many drafts save most time beside them."""
    price = prices(ms, np.arange(rows + 1))

    def gain(own: int, count: int) -> float:
        kept = sum(share**n for n in range(1, count + 1))
        return kept * price[own] / own - price[own + count] + price[own]

    return [0, *(max(range(rows - own + 1), key=lambda count: gain(own, count)) for own in range(1, rows + 1))]


def gains(answers: Sequence[Recorded], ms: Mapping[int, float], rows: int, shares: Sequence[float]) -> dict[str, Any]:
    """How many times fewer steps and milliseconds than their text takes one token after another: with forks, and by the
    share of drafts that are right with drafts, with both, and with both over forks alone."""

    def decoded(answers: Sequence[Recorded], share: float = 0.0) -> np.ndarray:
        rng, counts = random.Random(0), paying(ms, rows, share) if share else [0] * (rows + 1)
        steps = [count for answer in answers for count in rows_of_steps(answer, rows, counts, share, rng)]
        return np.array([len(steps), np.sum(prices(ms, steps))])

    def times(more: np.ndarray, less: np.ndarray) -> dict[str, float]:
        return dict(zip(("steps", "ms"), np.round(more / less, 3).tolist(), strict=True))

    plain = [sequential(answer) for answer in answers]
    neither, forks, by_share = decoded(plain), decoded(answers), {}
    for share in shares:
        drafts, both = decoded(plain, share), decoded(answers, share)
        by_share[share] = {
            "most": paying(ms, rows, share)[1],
            "drafts": times(neither, drafts),
            "both": times(neither, both),
            "both_over_forks": times(forks, both),
        }
    return {"forks": times(neither, forks), "right": by_share}
