"""Forks and drafts, each without and with the other: steps and seconds of the same prompts in turn, and equal answers.

A line is kept for each group of prompts that are asked at the same time, so that a stopped run goes on.
"""

import contextlib
import dataclasses
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from pasta_jax.benchmark import ways_peers
from pasta_jax.benchmark.serving import from_another
from pasta_jax.benchmark.settings import BenchmarkSettings, WaysBenchmark
from pasta_jax.benchmark.steps import refuse_cut
from pasta_jax.decode.device_loop import DeviceLoop
from pasta_jax.decode.generate import loop_spec
from pasta_jax.decode.request import Request, Result, template
from pasta_jax.decode.settings import DecodeConfig, RequestSettings
from pasta_jax.decode.topics import limits_topics
from pasta_jax.decode.trace import Trace
from pasta_jax.device import platform
from pasta_jax.device.compilation_cache import clock
from pasta_jax.errors import PastaError
from pasta_jax.evaluate.questions import question_sets
from pasta_jax.evaluate.settings import PromptCounts
from pasta_jax.evaluate.summary import geometric
from pasta_jax.files.validated import AtLeastZero, Count
from pasta_jax.models.kernels.cpu import library
from pasta_jax.progress import say
from pasta_jax.runs import records
from pasta_jax.runs.checkpoint import fingerprint_of_params
from pasta_jax.train.loss import KINDS
from pasta_jax.weights.model import Model
from pasta_jax.weights.rules import recorded
from pasta_jax.weights.source import load

WAYS = {"neither": (True, False), "drafts": (True, True), "forks": (False, False), "both": (False, True)}


@dataclasses.dataclass(frozen=True)
class Figures:
    """Of the answers to a group of prompts, in one way."""

    seconds: AtLeastZero  # until the last has ended
    prefill_s: AtLeastZero  # of these, summed over the prompts
    steps: Count
    tokens: Count  # of the answers, tags and kept drafts included
    text_tokens: Count
    chunks: Count
    drafts: Count
    kept: Count
    by_kind: dict[str, tuple[Count, Count]]  # kept drafts and tokens, by the kinds that a training loss tells apart


@dataclasses.dataclass(frozen=True)
class Group:
    """Prompts asked at the same time, and the figures of each way."""

    number: Count
    prompts: Count
    ways: dict[str, Figures]
    compared: Count  # answers that ended by themselves without drafts, sequential or forked
    equal: Count  # of these, answers that drafts leave as they are


def measure(settings: BenchmarkSettings, with_peers: bool = False) -> dict[str, Any]:
    """The ways take turns, each prompt beginning with another one; then the peers do."""
    config = settings.ways
    if config.draft == "drafter" and not config.model.drafter:
        raise PastaError("config.ways.draft=drafter: set --config.ways.model.drafter to an adapter's name, as pasta")
    model = load(config.model, only_decoding=True)
    base = template(RequestSettings(max_tokens=config.max_tokens), model.defaults, sequential=False)
    [chosen] = question_sets(PromptCounts(alpaca_eval=config.prompts, no_fork=0)).values()
    asked = [
        dataclasses.replace(base, prompt_ids=tuple(model.tokenizer.chat(question.messages))).with_seed(question.number)
        for question in chosen.chosen
    ]
    refuse_cut(model, asked, config.slots, "config.ways.slots")
    groups = [asked[at : at + config.clients] for at in range(0, len(asked), config.clients)]
    header = {
        **model.recorded(),
        "precision": model.precision,
        "rules": recorded(base.rules),
        "kernel": config.model.kernel,
        "machine": platform.machine(),
        "cores": library.cores(),
        "library": library.version(),
        **{name: getattr(config, name) for name in ("clients", "max_tokens", "rows", "widths", "packed", "slots")},
        "prompts": chosen.fingerprint,
    }
    if config.draft != "lookup":
        header |= {"draft": config.draft, "drafter": fingerprint_of_params(model.params["drafter"])}
    path = Path(config.log)
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        kept = records.opened(path, header, Group, lambda group: (group.number, group.prompts), ways_peers.FIX)
        kept, peers = stack.enter_context(kept), ways_peers.NOBODY
        if with_peers:
            prompts = [request.prompt_ids for request in asked]
            peers = stack.enter_context(ways_peers.opened(config, model, prompts, chosen.fingerprint))
        keys = [(number, len(group)) for number, group in enumerate(groups)]  # the last one may have grown since
        missing = kept.missing(keys)
        due = sorted({*missing, *peers.missing})
        loops = {name: _loop(model, base, config, *way) for name, way in WAYS.items()} if missing else {}
        for name, loop in loops.items():
            _answered(loop, asked[-config.clients :], name)  # compiles the prefill
        with records.progress("groups of prompts", len(groups), due) as progress:
            began = time.perf_counter()
            for number in due:
                if config.minutes and time.perf_counter() - began > 60 * config.minutes:
                    break
                if number in missing:
                    kept.add(_group(loops, groups[number], number))
                if number in peers.missing:
                    peers.answer(number)
                progress.add()
        both = [key for key in keys if key in kept.known and peers.has(key[0])]  # of equal prompts
        report = summary([kept.known[key] for key in both]) | peers.report()
    return {"benchmark": "ways", **header, **report}


def _loop(model: Model, base: Request, config: WaysBenchmark, sequential: bool, drafts: bool) -> DeviceLoop:
    draft = config.draft if drafts else "off"
    decoding = DecodeConfig(
        lanes=config.clients,
        rows=1 if sequential else config.rows,
        slots=config.slots,
        widths=config.widths,
        packed=config.packed if config.clients > 1 else (),
        draft=draft,
    )
    topics = not sequential and limits_topics(base.rules)
    spec = loop_spec(model, decoding, config.slots, sequential, topics=topics)
    say(f"{'sequential' if sequential else 'forked'}, drafts {draft}")
    return DeviceLoop(model, spec, config.clients, config.slots, shares_prompts=False)


def _group(loops: dict[str, DeviceLoop], asked: list[Request], number: int) -> Group:
    results, figures = {}, {}
    for name in from_another(WAYS, number):
        figures[name], results[name] = _answered(loops[name], asked, name)
    pairs = [
        (before, after)
        for plain, drafted in (("neither", "drafts"), ("forks", "both"))
        for before, after in zip(results[plain], results[drafted], strict=True)
        if before.finish_reason == "stop"
    ]
    equal = sum(before.trace.linear_ids() == after.trace.linear_ids() for before, after in pairs)
    return Group(number, len(asked), {name: figures[name] for name in WAYS}, len(pairs), equal)


def _answered(loop: DeviceLoop, asked: list[Request], name: str) -> tuple[Figures, list[Result]]:
    sequential = WAYS[name][0]
    began = clock()  # the length of a prompt may need a new program
    for number, request in enumerate(asked):
        loop.submit(number, dataclasses.replace(request, sequential=sequential), round_steps=16)
    results = []
    while loop.is_busy:
        results += [item for item in loop.round() if isinstance(item, Result)]
    seconds = clock() - began
    results.sort(key=lambda result: result.request)
    figures = Figures(
        seconds=round(seconds, 4),
        prefill_s=round(sum(result.trace.prefill_ms for result in results) / 1e3, 4),
        steps=sum(result.trace.steps for result in results),
        tokens=sum(len(result.trace.token) for result in results),
        text_tokens=sum(result.trace.text_tokens for result in results),
        chunks=sum(len(result.trace.closed) - 1 for result in results),
        drafts=sum(result.drafts_fed for result in results),
        kept=sum(result.drafts_kept for result in results),
        by_kind=added(by_kind(result.trace) for result in results),
    )
    return figures, results


def by_kind(trace: Trace) -> dict[str, tuple[int, int]]:
    """Kept drafts and tokens of an answer by kind: topics and lengths of promises; all of chunks is `chunk`."""
    is_main = trace.thread == 0
    token, tags = trace.token[is_main], trace.tags
    is_close, is_promise = tags.is_close(token), token == tags.promise
    in_topic = (np.cumsum(is_promise) > np.cumsum(is_close)) & ~is_promise
    kind = np.full(len(trace.token), "chunk", dtype="<U6")
    of_main = [is_close, token == tags.sync, in_topic]
    kind[is_main] = np.select(of_main, ["length", "sync", "topic"], "main")
    kept = kind[trace.is_kept_draft]
    return {name: (int(np.sum(kept == name)), int(np.sum(kind == name))) for name in KINDS}


def added(counts: Iterable[dict[str, tuple[int, int]]]) -> dict[str, tuple[int, int]]:
    """Their sums, by kind."""
    all_counts = list(counts)
    return {name: tuple(sum(of[name][i] for of in all_counts) for i in range(2)) for name in KINDS}


def summary(groups: list[Group]) -> dict[str, Any]:
    """Sums by way; how often drafts and forks save steps and seconds, over the sequential answers and over forks.

    `times_as_fast`, of seconds and of steps over sequential answers, are geometric means over the groups, which count
    a short answer as much as a long one. Ratios of sums count each token alike.
    """
    names = [field.name for field in dataclasses.fields(Figures) if field.name != "by_kind"]
    by_group = [group.ways for group in groups if group.ways["neither"].steps]
    sums = {way: {name: sum(getattr(group.ways[way], name) for group in groups) for name in names} for way in WAYS}
    for name, way in sums.items():
        way["by_kind"] = added(group.ways[name].by_kind for group in groups)
        way |= {field: round(way[field], 2) for field in ("seconds", "prefill_s")}
        way["tokens_per_step"] = round(way["tokens"] / max(1, way["steps"]), 3)
        way["ms_per_text_token"] = round(1e3 * way["seconds"] / max(1, way["text_tokens"]), 2)
        ratios = {
            field: [getattr(of["neither"], field) / max(getattr(of[name], field), 1e-9) for of in by_group]
            for field in ("seconds", "steps")
        }
        way["times_as_fast"] = {field: _interval(found) for field, found in ratios.items()}
    gains = {
        name: {
            f"drafts_over_{plain}": round(sums[plain][name] / max(sums[drafted][name], 1e-9), 3)
            for plain, drafted in (("neither", "drafts"), ("forks", "both"))
        }
        for name in ("steps", "seconds")
    }
    counts = {"compared": sum(group.compared for group in groups), "equal": sum(group.equal for group in groups)}
    return {"groups": len(groups), **counts, "gains": gains, "ways": sums}


def _interval(ratios: list[float]) -> list[float]:
    found = geometric(ratios)
    return [round(value, 3) for value in (found.value, found.low, found.high)] if found else []
