"""Benchmarks of servers, ours sequential and in threads, and llama.cpp's: as many clients as lanes, or by chance."""

import contextlib
import dataclasses
import multiprocessing
import socket
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import numpy as np

from pasta_jax.benchmark import peers
from pasta_jax.benchmark.clients import Together, ask, ask_together, wait_until_ready
from pasta_jax.benchmark.run import Report
from pasta_jax.benchmark.settings import LoadBenchmark, ServeBenchmark
from pasta_jax.data.pairs import Pair
from pasta_jax.data.sources import read
from pasta_jax.errors import PastaError
from pasta_jax.files import packages
from pasta_jax.progress import doing, say, track
from pasta_jax.serve import run as serve
from pasta_jax.serve.settings import ServeSettings
from pasta_jax.weights.load import load_model
from pasta_jax.weights.settings import ModelSource

READY_S = 1800.0  # compiling may take minutes the first time

Target = tuple[Callable[..., None], tuple]  # what a server's process runs, but for the port, which comes last


def measure(model: ModelSource, settings: ServeBenchmark, with_peers: bool) -> Report:
    """Time to first token and tokens per second by lanes; the servers answer the same questions in turn."""
    _require(model, with_peers)
    questions = questions_of(settings, max(settings.lanes) * settings.rounds)
    by_lanes = {}
    for lanes in settings.lanes:
        with started(targets_of(model, settings, lanes, with_peers)) as ports:
            times: dict[str, list[Together]] = {name: [] for name in ports}
            for round in track(range(settings.rounds), f"rounds of {lanes} client(s)", settings.rounds):
                for name, port in ports.items():
                    chosen = questions[round * lanes : (round + 1) * lanes]
                    times[name].append(ask_together(port, chosen, settings.max_tokens))
        by_lanes[lanes] = {name: figures_of(mine) for name, mine in times.items()}
        for name, figures in by_lanes[lanes].items():
            say(f"{lanes} lane(s), {name}: {figures['first_token_ms']} ms, {figures['tokens_per_s']} tokens/s")
    return {"benchmark": "serve", **_about(model, settings), "rounds": settings.rounds, "lanes": by_lanes}


def measure_load(model: ModelSource, settings: ServeBenchmark, load: LoadBenchmark, with_peers: bool) -> Report:
    """What clients see that arrive by chance (Poisson), by rate; the servers get the same requests in turn."""
    _require(model, with_peers)
    questions = questions_of(settings, load.requests)
    by_rate = {}
    with started(targets_of(model, settings, load.lanes, with_peers)) as ports:
        for rate in load.rates:
            gaps = np.random.default_rng(load.seed).exponential(1 / rate, load.requests)
            times, by_rate[rate] = np.cumsum(gaps).tolist(), {}
            for name, port in ports.items():
                with doing(f"{load.requests} requests, {rate:g} a second, to {name}"):
                    together = ask_together(port, questions, settings.max_tokens, times)
                figures = by_rate[rate][name] = loaded_figures(together, load.target_s)
                say(f"{rate:g} a second, {name}: {as_line(figures)}")
    about = _about(model, settings) | {"lanes": load.lanes, "requests": load.requests, "target_s": load.target_s}
    return {"benchmark": "load", **about, "rates": by_rate}


def _require(model: ModelSource, with_peers: bool) -> None:
    if with_peers:
        peers.require(model, ("xllamacpp",))
    if jax.default_backend() != "cpu":
        raise PastaError("serve: compares servers that run beside each other, on a CPU; set JAX_PLATFORMS=cpu")


def _about(model: ModelSource, settings: ServeBenchmark) -> Report:
    decoding = settings.server.decoding
    return {
        "model": model.preset or model.path,
        "threads": settings.threads.adapter or settings.threads.path,
        "rows": decoding.rows,
        "widths": decoding.widths,
        "packed": decoding.packed,
        "max_tokens": settings.max_tokens,
    }


@contextlib.contextmanager
def started(targets: Mapping[str, Target]) -> Iterator[dict[str, int]]:
    """The servers, once each has answered: the port of each."""
    with contextlib.ExitStack() as stack:
        with doing(f"starting {len(targets)} server(s)"):
            servers = {name: stack.enter_context(server(*target)) for name, target in targets.items()}
            for port, process in servers.values():
                wait_until_ready(port, process.is_alive, READY_S)
                ask(port, "Hello", 8)
        yield {name: port for name, (port, _) in servers.items()}


def questions_of(settings: ServeBenchmark, needed: int) -> list[str]:
    """Different questions for all clients, whose answers in the source are long."""
    pairs = (pair for pair in read(settings.source) if isinstance(pair, Pair))
    found = [pair.instruction for pair in pairs if len(pair.response) >= settings.least_characters][:needed]
    if len(found) < needed:
        raise PastaError(f"{settings.source}: {len(found)} questions with long answers, but {needed} are needed")
    return found


def targets_of(model: ModelSource, settings: ServeBenchmark, lanes: int, with_peers: bool) -> dict[str, Target]:
    """The servers to compare, by name."""
    targets: dict[str, Target] = {"sequential": (_serve, (with_lanes(settings.server, model, lanes, rows=1),))}
    if settings.threads.preset or settings.threads.path:
        rows = settings.server.decoding.rows
        targets["threads"] = (_serve, (with_lanes(settings.server, settings.threads, lanes, rows),))
    if with_peers:
        slots = settings.server.decoding.slots
        float32 = peers.float32_gguf(load_model(model.preset, ""))
        for name, path in (("llama_cpp_float32", float32), ("llama_cpp_default", packages.path(model.preset))):
            targets[name] = (peers.llama_cpp_server, (str(path), lanes, slots))
    return targets


def with_lanes(settings: ServeSettings, model: ModelSource, lanes: int, rows: int) -> ServeSettings:
    """The settings of one of our servers."""
    decoding = dataclasses.replace(settings.decoding, lanes=lanes, rows=rows)
    return dataclasses.replace(settings, model=model, decoding=decoding)


def _serve(settings: ServeSettings, port: int) -> None:
    serve.run(dataclasses.replace(settings, port=port))


@contextlib.contextmanager
def server(run: Callable[..., None], arguments: tuple) -> Iterator[tuple[int, multiprocessing.Process]]:
    """A server in a process of its own: its port, and the process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = multiprocessing.get_context("spawn").Process(target=run, args=(*arguments, port), daemon=True)
    process.start()
    try:
        yield port, process
    finally:
        process.terminate()
        process.join()


def figures_of(rounds: Sequence[Together]) -> Report:
    """What the clients of a server saw: the median of all answers, and of the rounds."""
    answers = [answer for together in rounds for answer in together.answers]
    return {
        "first_token_ms": round(1e3 * statistics.median(answer.first_s for answer in answers)),
        "tokens_per_s": round(statistics.median(together.tokens_per_s for together in rounds), 1),  # of all clients
        "tokens": sum(answer.tokens for answer in answers),  # of text
    }


def loaded_figures(together: Together, target_s: float) -> Report:
    """What clients saw that arrived by chance."""
    first, whole = ([getattr(one, name) for one in together.answers] for name in ("first_s", "seconds"))
    in_time = sum(one.tokens for one in together.answers if one.seconds <= target_s)
    return {
        "first_token_ms": round(1e3 * statistics.median(first)),
        "first_token_ms_p95": round(1e3 * float(np.percentile(first, 95))),
        "answer_s": round(statistics.median(whole), 2),
        "answer_s_p95": round(float(np.percentile(whole, 95)), 2),
        "tokens_per_s": round(together.tokens_per_s, 1),
        "goodput": round(in_time / together.seconds, 1),  # tokens a second of answers within the target
    }


def as_line(figures: Report) -> str:
    """Figures in a line."""
    return ", ".join(f"{name} {value}" for name, value in figures.items())
