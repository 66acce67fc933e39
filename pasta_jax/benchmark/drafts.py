"""What drafts could gain: recorded answers decoded again on paper, with drafts of which a given share is right.

A draft that is right saves a step of its thread, so answers stay the same, and a step costs what one of as many rows
is said to take. As in decode/drafts.py, the thread that gets drafts is main, or if it waits, the latest chunk.
"""

import dataclasses
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from pasta_jax.decode.state import STOP
from pasta_jax.decode.trace import Trace
from pasta_jax.errors import PastaError
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
        chunks = [trace.thread_ids(number) or [trace.tags.async_] for number in range(1, len(trace.closed))]
        chunks = [chunk[: -1 if chunk[-1] == trace.tags.end_async else None] for chunk in chunks]
        return Recorded(trace.tags, [trace.thread_ids(0), *chunks])


def read_answers(folder: Path) -> list[Recorded]:
    """The answers of the traces in a folder that ended by themselves."""
    traces = [trace_file.load(path) for path in sorted(folder.glob("*.json"))]
    answers = [Recorded.of(trace) for trace in traces if trace.finish == STOP]
    if not answers:
        raise PastaError(f"{folder}: no trace of an answer that ended; write some with launch.decode --trace")
    return answers


def rows_of_steps(answer: Recorded, rows: int, most: int, share: float, rng: random.Random) -> Iterator[int]:
    """The rows of each step, with at most `most` drafts of which each is right with probability `share`."""
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
        drafts = min(most, rows - len(feeds)) if running else 0
        yield len(feeds) + drafts
        thread = 0 if main else max(running, default=0)
        for _ in range(drafts):
            if is_over(thread) or tags.is_close(threads[thread][done[thread]]) or rng.random() >= share:
                break
            if threads[thread][done[thread]] == tags.sync:  # it may have to wait, and has a step of its own
                break
            done[thread] += 1


def gains(
    answers: Sequence[Recorded], ms: Mapping[int, float], rows: int, most: Sequence[int], shares: Sequence[float]
) -> dict[float, dict[int, dict[str, float]]]:
    """Steps and milliseconds without drafts over those with them, by the share that is right and the most in a step."""

    def decoded(most: int, share: float) -> tuple[int, float]:
        rng = random.Random(0)
        steps = [count for answer in answers for count in rows_of_steps(answer, rows, most, share, rng)]
        return len(steps), float(np.sum(np.interp(steps, [*ms], [*ms.values()])))

    steps, total = decoded(0, 0.0)

    def gain(most: int, share: float) -> dict[str, float]:
        fewer, less = decoded(most, share)
        return {"steps": round(steps / fewer, 3), "ms": round(total / less, 3)}

    return {share: {count: gain(count, share) for count in most} for share in shares}
