"""Rivals of PASTA on the same model and runtime: an answer by Skeleton-of-Thought, its points sharing a pool or not.

skeleton   the points are threads of one pool (evaluate/rivals/points.py): their common prompt is computed and kept once
unshared   the points are separate requests in lanes of their own: each computes and keeps its whole prompt
"""

import dataclasses
import time
from collections.abc import Sequence

import numpy as np

from pasta_jax.data.prompt_sets import asks_for_list
from pasta_jax.decode.generate import generate
from pasta_jax.decode.request import Request, Result
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.device import compilation_cache
from pasta_jax.evaluate.rivals.points import Points, decode_points
from pasta_jax.evaluate.rivals.skeleton import OPENING, Point, ask_point, ask_skeleton, assemble, parse_skeleton
from pasta_jax.evaluate.settings import SkeletonOptions
from pasta_jax.weights.model import Model

FEWEST_POINTS = 2  # a skeleton with fewer is no skeleton: the question is then answered sequentially
LONGEST_TITLE = 8  # words

Messages = Sequence[tuple[str, str]]  # (role, text); the last one is the question


@dataclasses.dataclass(frozen=True)
class Written:
    """A point as it was written. Steps count from the answer's first, skeleton included."""

    title: str
    tokens: int
    finished: bool
    first_step: int  # 0 if it has no token
    last_step: int


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """An answer. The arrays [N] hold every token that was fed: thread 0 wrote the skeleton, or the whole answer."""

    text: str
    finished: bool  # every thread ended itself
    critical_path: int  # steps with unlimited rows: the skeleton's, then the longest point's
    steps: int
    points: tuple[Written, ...]  # empty: answered sequentially
    token: np.ndarray
    thread: np.ndarray
    step: np.ndarray
    prefill_seconds: float  # until the skeleton's first token
    seconds: float  # compiling aside


def answer(
    model: Model,
    messages: Messages,
    sequential: Request,
    options: SkeletonOptions,
    config: DecodeConfig,
    shared: bool,
) -> Outcome:
    """Answer the last message. `sequential` answers it where there is no skeleton; its sampling is everyone's."""
    *history, (_, question) = messages
    started = _clock()
    if options.router == "lists" and not asks_for_list(question):
        return _sequentially(model, sequential, config, None, started)
    prompt = model.tokenizer.chat([*history, ("user", ask_skeleton(question, options.most_points))])
    request = dataclasses.replace(
        sequential,
        prompt_ids=(*prompt, *model.tokenizer.encode(OPENING)),
        max_tokens=options.skeleton_tokens,
        name=f"{sequential.name}: skeleton",
    )
    [skeleton] = generate(model, [request], _alone(config))
    points = parse_skeleton(OPENING + skeleton.text, options.most_points, LONGEST_TITLE)
    if len(points) < FEWEST_POINTS:
        return _sequentially(model, sequential, config, skeleton, started)
    prefix = model.tokenizer.chat([*history, ("user", ask_point(question, points))])
    beginnings = [model.tokenizer.encode(point.heading) for point in points]
    if shared:
        one_lane = dataclasses.replace(config, lanes=1, rows=options.most_points + 1)  # main's row is not used
        written = decode_points(model, prefix, beginnings, sequential.rules, options.point_tokens, one_lane)
    else:
        written = _decode_apart(model, prefix, beginnings, sequential, options.point_tokens, config)
    return _outcome(model, points, skeleton, written, started)


def _decode_apart(
    model: Model,
    prefix: Sequence[int],
    beginnings: Sequence[Sequence[int]],
    sequential: Request,
    max_tokens: int,
    config: DecodeConfig,
) -> Points:
    """Every point with its whole prompt in a lane of its own."""

    def request(number: int, ids: Sequence[int]) -> Request:
        request = dataclasses.replace(sequential, prompt_ids=(*prefix, *ids), max_tokens=max_tokens)
        return request.with_seed(number)

    requests = [request(number, ids) for number, ids in enumerate(beginnings, start=1)]
    # Steps with fewer rows skip the lanes of points that have ended.
    results = generate(model, requests, dataclasses.replace(_alone(config), lanes=len(requests), packed=(1, 4)))
    traces = [result.trace for result in results]
    order = np.argsort(np.concatenate([trace.step for trace in traces]), kind="stable")  # as one pool would have them
    thread = np.concatenate([np.full(len(trace.step), number) for number, trace in enumerate(traces, start=1)])
    return Points(
        token=np.concatenate([trace.token for trace in traces])[order],
        thread=thread[order],
        step=np.concatenate([trace.step for trace in traces])[order],
        finished=tuple(result.finish_reason == "stop" for result in results),
        steps=max(trace.steps for trace in traces),
    )


def _outcome(model: Model, points: Sequence[Point], skeleton: Result, written: Points, started: float) -> Outcome:
    trace = skeleton.trace
    before, texts, records = trace.critical_path, [], []
    for number, (point, finished) in enumerate(zip(points, written.finished, strict=True), start=1):
        own = written.thread == number
        texts.append(model.tokenizer.decode(written.token[own].tolist()))
        steps = written.step[own] + before
        first, last = (int(steps[0]), int(steps[-1])) if len(steps) else (0, 0)
        records.append(Written(point.title, len(steps), finished, first, last))
    return Outcome(
        text=assemble(points, texts),
        finished=all(written.finished),
        critical_path=before + max(record.tokens for record in records),
        steps=trace.steps + written.steps,
        points=tuple(records),
        token=np.concatenate([trace.token, written.token]),
        thread=np.concatenate([trace.thread, written.thread]),
        step=np.concatenate([trace.step, written.step + before]),
        prefill_seconds=trace.prefill_ms / 1000,
        seconds=_clock() - started,
    )


def _sequentially(
    model: Model, request: Request, config: DecodeConfig, skeleton: Result | None, started: float
) -> Outcome:
    """Answer without points. A skeleton that could not be used counts with its steps."""
    [result] = generate(model, [request], _alone(config))
    traces = [] if skeleton is None else [skeleton.trace]
    before = sum(trace.critical_path for trace in traces)
    trace = result.trace
    return Outcome(
        text=result.text,
        finished=result.finish_reason == "stop",
        critical_path=before + trace.critical_path,
        steps=before + trace.steps,
        points=(),
        token=np.concatenate([*(one.token for one in traces), trace.token]),
        thread=np.concatenate([*(one.thread for one in traces), trace.thread]),
        step=np.concatenate([*(one.step for one in traces), trace.step + before]),
        prefill_seconds=(traces or [trace])[0].prefill_ms / 1000,
        seconds=_clock() - started,
    )


def _alone(config: DecodeConfig) -> DecodeConfig:
    """For one sequential request."""
    return dataclasses.replace(config, lanes=1, rows=1, widths=(), packed=())


def _clock() -> float:
    """Seconds of a clock that stops while programs compile."""
    return time.perf_counter() - compilation_cache.seconds()
