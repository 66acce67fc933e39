"""A trace as Chrome trace events for ui.perfetto.dev: one track per thread, arrows from promise to chunk to sync."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from pasta_jax.decode.trace import Trace
from pasta_jax.view.spans import spans

PROCESS = 1
MICROSECONDS = 1000  # per millisecond

Event = dict[str, Any]


def to_perfetto(trace: Trace) -> dict[str, Any]:
    """The JSON object. Times are interpolated between readings of the device; without any, a step takes 1 ms."""
    steps = np.arange(trace.steps + 1)
    # Microseconds at which each step ends, step 0 first, rounded to nanoseconds so that neighbours share an edge.
    edges = np.round(MICROSECONDS * (trace.ms_at(steps) if trace.rounds else steps.astype(float)), 3)
    fed = np.round(spans(trace, edges), 3)
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "model": trace.model,
            "replayed": trace.replayed,
            "time": "milliseconds since the prefill began" if trace.rounds else "1 ms is one step",
        },
        "traceEvents": [*_names(trace), *_slices(trace, edges, fed), *_arrows(trace, fed), *_counters(trace, edges)],
    }


def _event(phase: str, thread: int, name: str, **fields: Any) -> Event:
    # Some viewers take track 0 for the idle task.
    return {"ph": phase, "pid": PROCESS, "tid": thread + 1, "name": name, "cat": "pasta"} | fields


def _slice(thread: int, name: str, start: float, end: float, **about: Any) -> Event:
    return _event("X", thread, name, ts=float(start), dur=float(np.round(end - start, 3)), args=about)


def _names(trace: Trace) -> Iterator[Event]:
    title = f"{trace.model}{' (replay)' if trace.replayed else ''}: {' '.join(trace.prompt.split())[:80]}"
    yield _event("M", 0, "process_name", args={"name": title})
    for thread in trace.threads():
        yield _event("M", thread.number, "thread_name", args={"name": thread.name})
        yield _event("M", thread.number, "thread_sort_index", args={"sort_index": thread.number})


def _slices(trace: Trace, edges: np.ndarray, fed: np.ndarray) -> Iterator[Event]:
    if trace.rounds:
        yield _slice(0, "prefill", 0.0, edges[0], tokens=len(trace.prompt_ids))
    for thread in trace.threads():
        if not thread.tokens:
            continue
        number, before = thread.number, thread.first_step - 1
        about = {"tokens": thread.tokens, "closed": thread.closed}
        if number:
            about |= {"topic": thread.topic, "promised": 10 * thread.tens, "length": thread.length}
        yield _slice(number, thread.topic or "main", edges[before], edges[thread.last_step], **about)
        for i in np.flatnonzero(trace.thread == number):
            step = int(trace.step[i])
            if step > before + 1:
                yield _slice(number, "waits", edges[before], edges[step - 1], steps=step - before - 1)
            before = step
            about = {
                "step": step,
                "id": int(trace.token[i]),
                "position": int(trace.position[i]),
                "slot": len(trace.prompt_ids) + int(i),
            }
            yield _slice(number, token_name(trace, i), *fed[:, i], **about)


def _arrows(trace: Trace, fed: np.ndarray) -> Iterator[Event]:
    """From a promise to the first token of its fork, and from the fork's last token to the sync that joined it."""
    closes = np.flatnonzero((trace.thread == 0) & trace.tags.is_close(trace.token))
    joins = trace.joins()

    def arrow(name: str, id: int, tail: int, head: int) -> Iterator[Event]:
        """Between two tokens, from the middle of each."""
        for phase, i, bind in (("s", tail, {}), ("f", head, {"bp": "e"})):
            middle = float(np.round(fed[:, i].sum() / 2, 3))
            yield _event(phase, int(trace.thread[i]), name, id=id, ts=middle, **bind)

    for thread in trace.threads()[1:]:
        number = thread.number
        if not thread.tokens:
            continue
        own = np.flatnonzero(trace.thread == number)
        yield from arrow("fork", 2 * number, closes[number - 1], own[0])
        if number in joins:
            yield from arrow("join", 2 * number + 1, own[-1], joins[number])


def _counters(trace: Trace, edges: np.ndarray) -> Iterator[Event]:
    steps, _ = np.unique([trace.step, trace.thread], axis=1)  # a thread may feed several tokens in one
    running = [0, *np.bincount(steps, minlength=trace.steps + 1)[1:].tolist(), 0]
    for step in range(1, len(running)):
        if running[step] != running[step - 1] or step > trace.steps:
            fed = {"threads": running[step]}
            yield _event("C", 0, "threads that feed", ts=float(edges[step - 1]), args=fed)


def token_name(trace: Trace, i: int) -> str:
    """The label of a token: the name of a tag, else its text."""
    token = int(trace.token[i])
    return trace.tags.name(token) if trace.tags.is_tag(token) else trace.text[i]
