"""Benchmarks of decoding steps, asynchronous decoding, training steps and sampling. See configs/benchmark.py."""

import contextlib
import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pasta_jax.benchmark import drafts, peer_training, peers, programs, steps
from pasta_jax.benchmark.settings import BenchmarkSettings
from pasta_jax.benchmark.steps import Runner
from pasta_jax.data.pairs import Pair
from pasta_jax.data.sources import read
from pasta_jax.decode.request import Request
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.errors import PastaError
from pasta_jax.models.kernels.cpu.calls import path
from pasta_jax.models.parameters import is_stacked
from pasta_jax.models.sharding import decoding_mesh, devices_of
from pasta_jax.preference.candidates import Candidate, sample
from pasta_jax.progress import say, track
from pasta_jax.train import trainable
from pasta_jax.train.settings import TrainingSettings
from pasta_jax.train.speed import flops_per_token, peak_flops, peak_gb, step_runner
from pasta_jax.weights.model import Model
from pasta_jax.weights.rules import Rules
from pasta_jax.weights.settings import AdapterSettings
from pasta_jax.weights.source import load

Report = dict[str, Any]  # figures by name, as JSON has them

PEERS = ("torch", "transformers", "cyllama")  # packages


def decode(settings: BenchmarkSettings, with_peers: bool) -> Report:
    """Milliseconds of a decoding step by threads of one request."""
    if with_peers:
        peers.require(settings.model, PEERS)
    model, config = load_or_make(settings), settings.decode
    ours: dict[int, Runner] = {}
    for rows in config.widths:
        say(f"compiling the step of {rows} row(s)")
        ours[rows] = steps.decode_runner(model, rows, config.slots, config.prompt, config.steps)
    runners = {"ours": ours}
    if with_peers:
        for name, peer in peers.open_peers(model, config.slots).items():
            runners[name] = {r: peers.step_runner(peer, r, config.prompt, config.steps) for r in config.widths}
    # What is compared runs side by side: the memory of a shared host gets faster and slower within seconds.
    copy = steps.copy_gb_s()
    times = steps.side_by_side(runners, config.rounds)
    copy = max(copy, steps.copy_gb_s())

    def by_width(name: str, statistic: Callable[[Sequence[float]], float]) -> dict[int, float]:
        return {rows: round(statistic(ms), 2) for rows, ms in times[name].items()}

    step = by_width("ours", statistics.median)
    weights = steps.weight_bytes(model.params, model.config)
    weights_gb_s = weights / step[min(config.widths)] / 1e6
    theirs = {name: by_width(name, statistics.median) for name in runners if name != "ours"} or None
    return _about("decode", model) | {
        "slots": config.slots,
        "products": products(model),
        "prompt": config.prompt,
        "rounds": config.rounds,
        "ms_per_step": step,
        "ms_per_step_min": by_width("ours", min),
        "weights_gb": round(weights / 1e9, 3),
        "weights_gb_s": round(weights_gb_s, 1),
        "copy_gb_s": round(copy, 1),
        "share_of_bandwidth": round(weights_gb_s / copy, 2),
        "peers": theirs,
        "ours_over_peer": theirs and _ratios(step, theirs),
    }


def prefill(settings: BenchmarkSettings, with_peers: bool) -> Report:
    """Milliseconds to read prompts of several lengths."""
    if with_peers:
        peers.require(settings.model, PEERS)
    model, config = load_or_make(settings), settings.prefill
    if max(config.lengths) >= config.slots:
        raise PastaError(f"prefill.lengths: {max(config.lengths)} tokens don't fit {config.slots} slots; raise slots")
    runners = {"ours": {length: steps.prefill_runner(model, config.slots, length) for length in config.lengths}}
    if with_peers:
        for name, peer in peers.open_peers(model, config.slots).items():
            runners[name] = {length: peers.prefill_runner(peer, length) for length in config.lengths}
    times = steps.side_by_side(runners, config.rounds)
    medians = {name: {length: statistics.median(ms) for length, ms in of.items()} for name, of in times.items()}
    ours, theirs = medians.pop("ours"), medians
    return _about("prefill", model) | {
        "products": products(model),
        "slots": config.slots,
        "rounds": config.rounds,
        "ms": {length: round(ms, 1) for length, ms in ours.items()},
        "tokens_per_s": {length: round(1e3 * length / ms, 1) for length, ms in ours.items()},
        "peers": {name: {length: round(ms, 1) for length, ms in of.items()} for name, of in theirs.items()} or None,
        "ours_over_peer": _ratios(ours, theirs) or None,
    }


def products(model: Model) -> str:
    """What multiplies: the instruction set of our own kernels, or XLA."""
    return "XLA" if is_stacked(model.params) else path(model.coded or model.params["layers"][0]["out"])


def _ratios(ours: dict[int, float], theirs: dict[str, dict[int, float]]) -> dict[str, dict[int, float]]:
    """Our times relative to each peer's, by the same numbers."""
    return {name: {number: round(ours[number] / ms, 2) for number, ms in of.items()} for name, of in theirs.items()}


def interpreter(settings: BenchmarkSettings) -> Report:
    """How much of the step clock's speedup asynchronous decoding of fixed programs realises."""
    config, decode_config = settings.interpreter, settings.decode
    items = programs.read_programs(Path(config.programs or programs.OWN))
    model = load_or_make(settings)
    programs.refuse_longer(items, model.tokenizer, config.slots, config.prompt)
    widths = {
        rows: steps.decode_runner(model, rows, config.slots, config.prompt, decode_config.steps)
        for rows in sorted({1, *config.widths})
    }
    step = steps.interleaved(widths, decode_config.rounds)
    events = steps.interleaved(steps.event_runners(model, config.slots, config.prompt), config.event_rounds)

    # A step of one row reads at least this, half-way through the measured steps.
    cached = config.prompt + decode_config.steps // 2
    least_gb = (steps.weight_bytes(model.params, model.config) + steps.kv_bytes(model, cached)) / 1e9
    copy = steps.copy_gb_s()
    one_row = statistics.median(step[1])
    decoding = DecodeConfig(lanes=1, rows=config.rows, slots=config.slots, widths=config.widths)
    replays = programs.measure(model, items, decoding, config.prompt, config.rounds)
    return _about("interpreter", model) | {
        "rows": config.rows,
        **programs.summary(replays),
        "ms_per_step": {rows: round(statistics.median(ms), 2) for rows, ms in step.items()},
        "in_one_row_steps": {rows: round(statistics.median(ms) / one_row, 3) for rows, ms in step.items()},
        "step_reads_gb": round(least_gb, 3),
        "copy_gb_s": round(copy, 1),
        "step_over_reading": round(one_row / (1e3 * least_gb / copy), 2),
        "ms_of_a_plain_step_of_2_rows": round(statistics.median(events["plain"]), 2),
        "fork_ms": round(steps.difference(events, "fork", "plain"), 2),
        "join_ms": round(steps.difference(events, "join", "plain"), 2),
        "host_overhead_ms": round(steps.difference(events, "in many calls", "in one call"), 2),
    }


def draft(settings: BenchmarkSettings) -> Report:
    """What drafts would gain on recorded answers, by the share of them that is right."""
    config = settings.drafts
    if len(config.widths) != len(config.ms) or list(config.widths) != sorted(config.widths):
        raise PastaError("config.drafts.ms: state the milliseconds of each of config.drafts.widths, which ascend")
    if config.rows > config.widths[-1]:
        raise PastaError(
            f"config.drafts.rows={config.rows}: no step of as many has a price; add it to config.drafts.widths"
        )
    answers, ms = drafts.read_answers(Path(config.answers)), dict(zip(config.widths, config.ms, strict=True))
    return {
        "benchmark": "drafts",
        "answers": len(answers),
        "rows": config.rows,
        "ms_per_step": ms,
        "times_fewer": drafts.gains(answers, ms, config.rows, config.shares),
    }


def train(settings: BenchmarkSettings, with_peers: bool) -> Report:
    """Milliseconds of a training step over all parameters or an adapter's."""
    config = settings.train
    if with_peers:
        peers.require(settings.model, ("torch", "transformers", *["peft"] * bool(config.rank)))
        if config.rank and settings.model.dtype != "bfloat16":
            raise PastaError("train --peers: the base that peft gets is in bfloat16; set --config.model.dtype=bfloat16")
        if not config.rank and config.products != "float32":
            raise PastaError(
                "train --peers: torch trains all parameters in float32; set --config.train.products=float32"
            )
    adapter = AdapterSettings(rank=config.rank, alpha=2 * config.rank)
    # What is trained has float32 master weights; the model computes in the platform's type.
    mesh = decoding_mesh(settings.mesh)
    start = trainable.load(settings.model, adapter, 0, mesh)
    about = {name: getattr(config, name) for name in ("clip", "slice", "block", "remat", "keep_products", "products")}
    model, optimizer = start.model, TrainingSettings(learning_rate=1e-5, weight_decay=0.01, **about)
    shape, peers_gb = (config.rows, config.length, config.steps), {}
    runners = {"ours": step_runner(start, *shape, trainable.scoring(optimizer, model), optimizer)}
    with contextlib.ExitStack() as stack:
        if with_peers:
            peer = peer_training.step_runner(model, *shape, config.clip, config.rank, peers_gb)
            runners["transformers"] = stack.enter_context(peer)
        times = {name: statistics.median(ms) for name, ms in steps.interleaved(runners, config.rounds).items()}
    tokens = config.rows * config.length
    per_s = {name: 1e3 * tokens / ms for name, ms in times.items()}
    operations = flops_per_token(model.params, model.config, config.length, bool(config.rank)) * per_s["ours"]
    peak = peak_flops(devices_of(mesh))
    return _about("train", model) | {
        "dtype": model.precision,
        **dataclasses.asdict(config),
        "ms_per_step": {name: round(ms) for name, ms in times.items()},
        "tokens_per_s": {name: round(tokens, 1) for name, tokens in per_s.items()},
        "peak_gb": {"ours": round(peak_gb(), 2), **peers_gb},
        "tflops": round(operations / 1e12, 4),
        "mfu": "unknown" if peak is None else round(operations / peak, 4),
        "ours_over_peer": round(times["ours"] / times["transformers"], 2) if with_peers else None,
    }


def sampling(settings: BenchmarkSettings) -> Report:
    """Tokens per second of several answers to each of many prompts, by lanes; a preference round starts with these."""
    config = settings.sampling
    prompts = [pair for pair in read(config.source) if isinstance(pair, Pair)]
    if not prompts:
        raise PastaError(f"config.sampling.source: {config.source} has no usable record; name another")
    model = load_or_make(settings)
    request = Request((), config.max_tokens, sequential=False, rules=Rules(temperature=1.0, seed=config.seed))
    by_lanes = {}
    for lanes in config.lanes:
        decoding = DecodeConfig(lanes, config.rows, config.slots, ())
        chosen = prompts[: max(1, round(config.waves * lanes / config.count))]
        short = dataclasses.replace(request, max_tokens=2)
        list(sample(model, dict(enumerate(chosen)), config.count, decoding, short))  # compiles
        began = time.perf_counter()
        samples = sample(model, dict(enumerate(chosen)), config.count, decoding, request)
        by_prompt = [answers for _, answers in track(samples, "prompts", len(chosen))]
        seconds = time.perf_counter() - began
        by_lanes[lanes] = of_lanes([answer for answers in by_prompt for answer in answers], seconds, config.count)
        say(f"{lanes} lane(s): {as_json(by_lanes[lanes])}")
    return _about("sampling", model) | {
        "seed": config.seed,
        "answers_a_prompt": config.count,
        "max_tokens": config.max_tokens,
        "rows": config.rows,
        "slots": config.slots,
        "lanes": by_lanes,
    }


def of_lanes(answers: Sequence[Candidate], seconds: float, count: int) -> Report:
    """The figures of answers that were sampled together, `count` per prompt."""
    tokens = sum(len(answer.ids) for answer in answers)
    return {
        "answers": len(answers),
        "cut_off": sum(not answer.whole for answer in answers),
        "tokens": tokens,
        "s": round(seconds, 1),
        "tokens_per_s": round(tokens / seconds, 1),
        "hours_of_2000_prompts": round(2000 * count * seconds / len(answers) / 3600, 2),
    }


def load_or_make(settings: BenchmarkSettings) -> Model:
    """The model to measure; with random weights of its shape where the settings say so."""
    mesh = decoding_mesh(settings.mesh)
    if settings.random_weights:
        return steps.random_model(settings.model.preset, seed=0, mesh=mesh)
    return load(settings.model, only_decoding=True, mesh=mesh)


def _about(benchmark: str, model: Model) -> Report:
    return {"benchmark": benchmark, "model": model.name, "dtype": model.precision}


def as_json(report: Report) -> str:
    """One line of JSON; figures that were not measured, None, are left out."""
    return json.dumps({name: value for name, value in report.items() if value is not None})
