"""A trace as Chrome trace events for ui.perfetto.dev: one track per thread, arrows from promise to chunk to sync."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from pasta_jax.decode.trace import Trace

PROCESS = 1
MICROSECONDS = 1000  # per millisecond


def to_perfetto(trace: Trace) -> dict[str, Any]:
    """The JSON object. Times are interpolated between readings of the device; without any, a step takes 1 ms."""
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "model": trace.model,
            "replayed": trace.replayed,
            "time": "milliseconds since the prefill began" if trace.rounds else "1 ms is one step",
        },
        "traceEvents": [*_names(trace), *_slices(trace), *_arrows(trace), *_counters(trace)],
    }


def _edges(trace: Trace) -> np.ndarray:
    """Microseconds at which each step ends, step 0 first, rounded to nanoseconds so that neighbours share an edge."""
    steps = np.arange(trace.steps + 1)
    return np.round(MICROSECONDS * (trace.ms_at(steps) if trace.rounds else steps.astype(float)), 3)


def _event(phase: str, thread: int, name: str, **fields: Any) -> dict[str, Any]:
    # Some viewers take track 0 for the idle task.
    return {"ph": phase, "pid": PROCESS, "tid": thread + 1, "name": name, "cat": "pasta"} | fields


def _names(trace: Trace) -> Iterator[dict[str, Any]]:
    title = f"{trace.model}{' (replay)' if trace.replayed else ''}: {' '.join(trace.prompt.split())[:80]}"
    yield _event("M", 0, "process_name", args={"name": title})
    for thread in trace.threads():
        name = f"{thread.number} {thread.topic}" if thread.number else "main"
        yield _event("M", thread.number, "thread_name", args={"name": name})
        yield _event("M", thread.number, "thread_sort_index", args={"sort_index": thread.number})


def _slices(trace: Trace) -> Iterator[dict[str, Any]]:
    edges = _edges(trace)
    if trace.rounds:
        yield _event("X", 0, "prefill", ts=0.0, dur=float(edges[0]), args={"tokens": len(trace.prompt_ids)})
    for thread in trace.threads():
        if not thread.tokens:
            continue
        number = thread.number
        start, end = edges[thread.first_step - 1], edges[thread.last_step]
        about = {"tokens": thread.tokens, "closed": thread.closed}
        if number:
            about |= {"topic": thread.topic, "promised": 10 * thread.tens, "length": thread.length}
        yield _event("X", number, thread.topic or "main", ts=float(start), dur=_gap(start, end), args=about)
        before = thread.first_step - 1
        for i in np.flatnonzero(trace.thread == number):
            step = int(trace.step[i])
            if step > before + 1:
                ts, dur = float(edges[before]), _gap(edges[before], edges[step - 1])
                yield _event("X", number, "waits", ts=ts, dur=dur, args={"steps": step - before - 1})
            before = step
            about = {
                "step": step,
                "id": int(trace.token[i]),
                "position": int(trace.position[i]),
                "slot": len(trace.prompt_ids) + int(i),
            }
            ts, dur = float(edges[step - 1]), _gap(edges[step - 1], edges[step])
            yield _event("X", number, token_name(trace, i), ts=ts, dur=dur, args=about)


def _arrows(trace: Trace) -> Iterator[dict[str, Any]]:
    """From a promise to the first token of its fork, and from the fork's last token to the sync that joined it."""
    edges, tags = _edges(trace), trace.tags
    closes = [int(trace.step[i]) for i in np.flatnonzero((trace.thread == 0) & tags.is_close(trace.token))]
    joins = trace.joins()

    def middle(step: int) -> float:
        return float(np.round((edges[step - 1] + edges[step]) / 2, 3))

    def arrow(name: str, id: int, tail: tuple[int, int], head: tuple[int, int]) -> Iterator[dict[str, Any]]:
        yield _event("s", tail[0], name, id=id, ts=middle(tail[1]))
        yield _event("f", head[0], name, id=id, ts=middle(head[1]), bp="e")

    for thread in trace.threads()[1:]:
        if not thread.tokens:
            continue
        promised = closes[thread.number - 1]
        yield from arrow("fork", 2 * thread.number, (0, promised), (thread.number, thread.first_step))
        if thread.number in joins:
            joined = int(trace.step[joins[thread.number]])
            yield from arrow("join", 2 * thread.number + 1, (thread.number, thread.last_step), (0, joined))


def _counters(trace: Trace) -> Iterator[dict[str, Any]]:
    edges = _edges(trace)
    running = np.bincount(trace.step, minlength=trace.steps + 1)
    running[0] = 0
    for step in range(1, trace.steps + 1):
        if running[step] != running[step - 1]:
            yield _event("C", 0, "threads that feed", ts=float(edges[step - 1]), args={"threads": int(running[step])})
    yield _event("C", 0, "threads that feed", ts=float(edges[trace.steps]), args={"threads": 0})


def token_name(trace: Trace, i: int) -> str:
    """The label of a token: the name of a tag, else its text."""
    token = int(trace.token[i])
    return trace.tags.name(token) if trace.tags.is_tag(token) else trace.text[i]


def _gap(start: float, end: float) -> float:
    return float(np.round(end - start, 3))
