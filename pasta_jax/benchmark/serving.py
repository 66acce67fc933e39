"""Benchmarks of servers, ours without forks and with them, and llama.cpp's: some clients at a time, or by chance."""

import contextlib
import dataclasses
import itertools
import multiprocessing
import signal
import socket
import statistics
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import jax
import numpy as np

from pasta_jax.benchmark import peers
from pasta_jax.benchmark.clients import ANSWER_S, Streamed, Together, ask, ask_together, wait_until_ready
from pasta_jax.benchmark.run import Report
from pasta_jax.benchmark.settings import BenchmarkSettings, ServeBenchmark
from pasta_jax.data.pairs import Pair
from pasta_jax.data.sources import read
from pasta_jax.errors import PastaError
from pasta_jax.files import packages
from pasta_jax.progress import doing, say, track
from pasta_jax.runs.settings import changed
from pasta_jax.serve import run as serve
from pasta_jax.serve.settings import ServeSettings
from pasta_jax.weights.settings import ModelSource

# Our servers: all with the model that forks, if there is one. `off` forbids tags, and needs one row for each lane.
FORKS = {
    "off": dict(decoding=dict(rows=1), request=dict(sequential=True)),
    "eager": dict(decoding=dict(forks="eager")),
    "admitted": dict(decoding=dict(forks="admitted")),
}
READY_S = 1800.0  # compiling may take minutes the first time

Target = tuple[Callable[..., None], tuple]  # what a server's process runs, but for the port, which comes last


def measure(whole: BenchmarkSettings, with_peers: bool) -> Report:
    """What clients see that ask at the same time, by their number; the servers answer the same questions in turn.

    No question comes twice, since servers keep prompts.
    """
    model, settings = whole.model, whole.serve
    _require(model, settings, with_peers)
    questions = iter(questions_of(settings, sum(settings.clients) * settings.rounds))
    by_clients = {}
    with started(targets_of(model, settings, settings.lanes, with_peers)) as ports:
        for clients in settings.clients:
            times: dict[str, list[Together]] = {name: [] for name in ports}
            for round in track(range(settings.rounds), f"rounds of {clients} client(s)", settings.rounds):
                chosen = [*itertools.islice(questions, clients)]
                for name in from_another(ports, round):
                    times[name].append(ask_together(ports[name], chosen, settings.max_tokens))
            by_clients[clients] = {name: figures_of(mine) for name, mine in times.items()}
            for name, figures in by_clients[clients].items():
                say(f"{clients} client(s), {name}: {as_line(figures)}")
    about = _about(model, settings) | {"lanes": settings.lanes, "rounds": settings.rounds}
    return {"benchmark": "serve", **about, "clients": by_clients}


def measure_load(whole: BenchmarkSettings, with_peers: bool) -> Report:
    """What clients see that arrive by chance (Poisson), by rate; the servers get the same requests in turn."""
    model, settings, load = whole.model, whole.serve, whole.load
    _require(model, settings, with_peers)
    # As peers have it: who comes too early waits.
    settings = changed(settings, server=dict(limits=dict(queue=load.requests, answer_s=ANSWER_S)))
    questions = iter(questions_of(settings, len(load.rates) * load.requests))
    by_rate = {}
    with started(targets_of(model, settings, load.lanes, with_peers)) as ports:
        for number, rate in enumerate(load.rates):
            gaps = np.random.default_rng((load.seed, number)).exponential(1 / rate, load.requests)
            times, found = np.cumsum(gaps).tolist(), {}
            chosen = [*itertools.islice(questions, load.requests)]
            for name in from_another(ports, number):
                with doing(f"{load.requests} requests, {rate:g} a second, to {name}"):
                    together = ask_together(ports[name], chosen, settings.max_tokens, times)
                found[name] = loaded_figures(together, load.target_s)
                say(f"{rate:g} a second, {name}: {as_line(found[name])}")
            by_rate[rate] = {name: found[name] for name in ports}
    of_load = {name: getattr(load, name) for name in ("lanes", "requests", "target_s", "seed")}
    return {"benchmark": "load", **_about(model, settings), **of_load, "rates": by_rate}


def from_another(names: Iterable[str], turn: int) -> list[str]:
    """The names in their order, beginning with another one in each turn: a machine's speed drifts within a round."""
    names = list(names)
    first = turn % len(names)
    return [*names[first:], *names[:first]]


def _require(model: ModelSource, settings: ServeBenchmark, with_peers: bool) -> None:
    if not settings.threads.path and settings.threads.preset not in ("", model.preset):
        raise PastaError("config.serve.threads.preset: is another model than config.model.preset; set both alike")
    if with_peers:
        peers.require(model, ("xllamacpp",))
    if jax.default_backend() != "cpu":
        raise PastaError("serve: compares servers that run beside each other, on a CPU; set JAX_PLATFORMS=cpu")


def _about(model: ModelSource, settings: ServeBenchmark) -> Report:
    decoding = settings.server.decoding
    return {
        "model": model.preset or model.path,
        "threads": settings.threads.adapter or settings.threads.path,
        "dtype": (settings.threads if names_threads(settings) else model).dtype,
        "rows": decoding.rows,
        "widths": decoding.widths,
        "packed": decoding.packed,
        "max_tokens": settings.max_tokens,
    }


@contextlib.contextmanager
def started(targets: Mapping[str, Target]) -> Iterator[dict[str, int]]:
    """The servers, once each has answered: the port of each.

    One after another: ours measure what steps cost, which decides what they admit, and keep it for later starts.
    """
    with contextlib.ExitStack() as stack:
        ports = {}
        with doing(f"starting {len(targets)} server(s)"):
            for name, target in targets.items():
                ports[name], process = stack.enter_context(server(*target))
                wait_until_ready(ports[name], process.is_alive, READY_S)
                ask(ports[name], "Hello", 8)
        yield ports


def questions_of(settings: ServeBenchmark, needed: int) -> list[str]:
    """Different questions for all clients, whose answers in the source are long."""
    pairs = (pair for pair in read(settings.source) if isinstance(pair, Pair))
    found = [pair.instruction for pair in pairs if len(pair.response) >= settings.least_characters][:needed]
    if len(found) < needed:
        raise PastaError(f"{settings.source}: {len(found)} questions with long answers, but {needed} are needed")
    return found


def targets_of(model: ModelSource, settings: ServeBenchmark, lanes: int, with_peers: bool) -> dict[str, Target]:
    """The servers to compare, by name."""
    forks = names_threads(settings)
    server = changed(settings.server, decoding=dict(lanes=lanes), model=settings.threads if forks else model)
    ways = FORKS if forks else {"off": FORKS["off"]}
    targets: dict[str, Target] = {name: (_serve, (changed(server, **how),)) for name, how in ways.items()}
    if with_peers:
        slots = settings.server.decoding.slots
        float32 = peers.float32_gguf(model.preset)
        for name, path in (("llama_cpp_float32", float32), ("llama_cpp_default", packages.path(model.preset))):
            targets[name] = (peers.llama_cpp_server, (str(path), lanes, slots))
    return targets


def names_threads(settings: ServeBenchmark) -> bool:
    """Whether there is a model that answers in threads."""
    return bool(settings.threads.preset or settings.threads.path)


def _serve(settings: ServeSettings, port: int) -> None:
    try:
        serve.run(dataclasses.replace(settings, port=port))
    except PastaError as error:
        say(str(error))
        sys.exit(2)


@contextlib.contextmanager
def server(run: Callable[..., None], arguments: tuple) -> Iterator[tuple[int, multiprocessing.Process]]:
    """A server in a process of its own: its port, and the process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = multiprocessing.get_context("spawn").Process(target=run, args=(*arguments, port), daemon=True)
    is_main = threading.current_thread() is threading.main_thread()  # others have no handlers
    before = signal.getsignal(signal.SIGTERM)
    if is_main:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # else a server outlives what it was started for
    try:
        process.start()
        yield port, process
    finally:
        if process.pid is not None:
            process.terminate()
            process.join()
        if is_main:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def figures_of(rounds: Sequence[Together]) -> Report:
    """What the clients of a server saw: the median of all answers, and of the rounds."""
    answers = [answer for together in rounds for answer in together.answers]
    return seconds_of(answers) | {
        "tokens_per_s": round(statistics.median(together.tokens_per_s for together in rounds), 1),  # of all clients
        "tokens": sum(answer.tokens for answer in answers),  # of text
    }


def loaded_figures(together: Together, target_s: float) -> Report:
    """What clients saw that arrived by chance."""
    in_time = sum(one.tokens for one in together.answers if one.seconds <= target_s)
    return seconds_of(together.answers) | {
        "tokens_per_s": round(together.tokens_per_s, 1),
        "goodput": round(in_time / together.seconds, 1),  # tokens a second of answers within the target
    }


def seconds_of(answers: Sequence[Streamed]) -> Report:
    """How long clients waited for the first text and the end: medians, and 95 of 100."""
    first, whole = ([getattr(one, name) for one in answers] for name in ("first_s", "seconds"))
    return {
        "first_token_ms": round(1e3 * statistics.median(first)),
        "first_token_ms_p95": round(1e3 * float(np.percentile(first, 95))),
        "answer_s": round(statistics.median(whole), 2),
        "answer_s_p95": round(float(np.percentile(whole, 95)), 2),
    }


def as_line(figures: Report) -> str:
    """Figures in a line."""
    return ", ".join(f"{name} {value}" for name, value in figures.items())
