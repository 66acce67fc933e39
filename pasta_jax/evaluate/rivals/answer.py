"""Rivals of PASTA on the same model and runtime: an answer by Skeleton-of-Thought, its points sharing a pool or not.

skeleton   the points are threads of one pool (evaluate/rivals/points.py): their common prompt is computed and kept once
unshared   the points are separate requests in lanes of their own: each computes and keeps its whole prompt
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from pasta_jax.data.prompt_sets import asks_for_list
from pasta_jax.decode.generate import generate
from pasta_jax.decode.request import Request, Result
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.decode.trace import Trace
from pasta_jax.device.compilation_cache import clock
from pasta_jax.evaluate.answers import ChunkFigures, Fed, SystemAnswer
from pasta_jax.evaluate.questions import Question
from pasta_jax.evaluate.rivals.points import Points, decode_points
from pasta_jax.evaluate.rivals.skeleton import OPENING, Point, ask_point, ask_skeleton, assemble, parse_skeleton
from pasta_jax.evaluate.settings import SkeletonOptions
from pasta_jax.lang.tags import escape
from pasta_jax.weights.model import Model

FEWEST_POINTS = 2  # a skeleton with fewer is no skeleton: the question is then answered sequentially
LONGEST_TITLE = 8  # words


def answer(
    model: Model, asked: Question, sequential: Request, options: SkeletonOptions, config: DecodeConfig, shared: bool
) -> SystemAnswer:
    """Answer a question. `sequential` answers it where there is no skeleton; its sampling is everyone's."""
    *history, (_, question) = asked.messages
    started = clock()
    if options.router == "lists" and not asks_for_list(question):
        return _sequentially(model, asked, sequential, config, None, started)
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
        return _sequentially(model, asked, sequential, config, skeleton, started)
    prefix = model.tokenizer.chat([*history, ("user", ask_point(question, points))])
    beginnings = [model.tokenizer.encode(point.heading) for point in points]
    if shared:
        # Main's row is not used. Points begin at once: a pool of them has no prices to admit them by.
        one_lane = dataclasses.replace(config, lanes=1, rows=options.most_points + 1, forks="eager")
        written = decode_points(model, prefix, beginnings, sequential.rules, options.point_tokens, one_lane)
    else:
        written = _decode_apart(model, prefix, beginnings, sequential, options.point_tokens, config)
    return _in_points(model, asked, sequential.rules.seed, points, skeleton, written, started)


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


def _in_points(
    model: Model, asked: Question, seed: int, points: Sequence[Point], skeleton: Result, written: Points, started: float
) -> SystemAnswer:
    """The record of points that were written after a skeleton."""
    before, texts, chunks = skeleton.trace.critical_path, [], []
    for number, (point, finished) in enumerate(zip(points, written.finished, strict=True), start=1):
        own = written.thread == number
        texts.append(model.tokenizer.decode(written.token[own].tolist()))
        steps = written.step[own] + before
        first, last = (int(steps[0]), int(steps[-1])) if len(steps) else (0, 0)
        chunks.append(ChunkFigures(point.title, 0, len(steps), "own" if finished else "budget", first, last))
    longest = max(chunk.length for chunk in chunks)
    text, finished = assemble(points, texts), all(written.finished)
    tokens = len(model.tokenizer.encode(text))
    return _record(asked, seed, skeleton, written, longest, tokens, text, finished, chunks, started)


def _sequentially(
    model: Model, asked: Question, request: Request, config: DecodeConfig, skeleton: Result | None, started: float
) -> SystemAnswer:
    """Answer without points. A skeleton that could not be used counts with its steps."""
    [result] = generate(model, [request], _alone(config))
    trace, finished = result.trace, result.finish_reason == "stop"
    seed = request.rules.seed
    of_text = trace.text_tokens
    return _record(asked, seed, skeleton, trace, trace.critical_path, of_text, result.text, finished, (), started)


def _record(
    asked: Question,
    seed: int,
    skeleton: Result | None,
    written: Trace | Points,
    longest: int,
    text_tokens: int,
    text: str,
    finished: bool,
    chunks: Sequence[ChunkFigures],
    started: float,
) -> SystemAnswer:
    """The record of an answer. Its text tokens are those of its text: with headings, without what was cut off.

    `longest`: the steps, with unlimited rows, of what was `written` after the skeleton.
    """
    parts = [written] if skeleton is None else [skeleton.trace, written]
    before = 0 if skeleton is None else skeleton.trace.critical_path
    token, thread = (np.concatenate([getattr(part, name) for part in parts]) for name in ("token", "thread"))
    prefill_seconds = parts[0].prefill_ms / 1000  # until the skeleton's first token
    return SystemAnswer(
        prompts=asked.prompts,
        number=asked.number,
        prompt=asked.text,
        text=text,
        program=escape(text),
        malformed=False,
        malformed_unmasked=None,
        finished=finished,
        tokens=len(token),
        text_tokens=text_tokens,
        critical_path=before + longest,
        steps=before + written.steps,
        chunks=tuple(chunks),
        seed=seed,
        prefill_seconds=round(prefill_seconds, 4),
        decode_seconds=round(clock() - started - prefill_seconds, 4),  # compiling aside
        fed=Fed.of(token, thread, np.concatenate([*(part.step for part in parts[:-1]), written.step + before])),
    )


def _alone(config: DecodeConfig) -> DecodeConfig:
    """For one sequential request."""
    return dataclasses.replace(config, lanes=1, rows=1, widths=(), packed=())
