"""Forks off, eager and admitted, in one process and without HTTP: what clients would see that ask at the same time."""

import dataclasses
from collections.abc import Sequence

from pasta_jax.benchmark.clients import Streamed, Together
from pasta_jax.benchmark.run import Report
from pasta_jax.benchmark.serving import as_line, figures_of, from_another, names_threads, questions_of
from pasta_jax.benchmark.settings import BenchmarkSettings
from pasta_jax.benchmark.steps import refuse_cut
from pasta_jax.decode.admission import no_prices
from pasta_jax.decode.device_loop import DeviceLoop
from pasta_jax.decode.generate import loop_spec
from pasta_jax.decode.request import Request, Result, template
from pasta_jax.decode.settings import DecodeConfig, RequestSettings
from pasta_jax.decode.stop_texts import Reading
from pasta_jax.device.compilation_cache import clock
from pasta_jax.errors import PastaError
from pasta_jax.lang.tags import TagIds
from pasta_jax.progress import say, track
from pasta_jax.weights.model import Model
from pasta_jax.weights.source import load

WAYS = ("off", "eager", "admitted")


def measure(settings: BenchmarkSettings) -> Report:
    """By clients and way; all ways answer the same questions in turn. `eager` has the program of `admitted`: chunks
    begin at once, as long as a step has no more rows than the greatest of `packed`."""
    config, forking = settings.forks, settings.serve.threads
    if not names_threads(settings.serve):
        raise PastaError("config.serve.threads: names no model that forks; set its preset or path, and its adapter")
    questions = questions_of(settings.serve, max(config.clients) * config.rounds)
    model = load(forking, only_decoding=True)
    refuse_cut(model, requests_for(model, questions, config.max_tokens, "off"), config.slots, "config.forks.slots")
    loops = {}
    for name in WAYS:
        loops[name] = _loop(model, settings, name)
        say(f"{name}: compiled")
    for name, loop in loops.items():
        together(loop, requests_for(model, questions[-1:], config.max_tokens, name), config.steps, model.tokenizer.tags)
    by_clients = {}
    for clients in config.clients:
        rounds: dict[str, list[Together]] = {name: [] for name in WAYS}
        for round in track(range(config.rounds), f"rounds of {clients} client(s)", config.rounds):
            for name in from_another(WAYS, round):
                chosen = questions[round * clients : (round + 1) * clients]
                asked = requests_for(model, chosen, config.max_tokens, name)
                rounds[name].append(together(loops[name], asked, config.steps, model.tokenizer.tags))
        by_clients[clients] = {name: figures_of(mine) for name, mine in rounds.items()}
        for name, figures in by_clients[clients].items():
            say(f"{clients} client(s), {name}: {as_line(figures)}")
    about = {"model": forking.adapter or model.name, "precision": model.precision}
    return {"benchmark": "forks", **about, **dataclasses.asdict(config), "clients": by_clients}


def _loop(model: Model, settings: BenchmarkSettings, name: str) -> DeviceLoop:
    config, sequential = settings.forks, name == "off"
    decoding = DecodeConfig(
        lanes=config.lanes, rows=1 if sequential else config.rows, slots=config.slots, packed=config.packed,
        forks="eager" if sequential else "admitted",
    )  # fmt: skip
    spec = loop_spec(model, decoding, config.slots, sequential, topics=not sequential)
    prices = no_prices(spec.priced_rows) if name == "eager" else None
    return DeviceLoop(model, spec, config.lanes, config.slots, shares_prompts=False, prices=prices)


def requests_for(model: Model, questions: Sequence[str], max_tokens: int, name: str) -> list[Request]:
    """The questions as clients ask them, by the model's own rules; the n-th has seed n."""
    base = template(RequestSettings(max_tokens=max_tokens), model.defaults, sequential=name == "off")
    prompts = [tuple(model.tokenizer.chat([("user", question)])) for question in questions]
    return [dataclasses.replace(base, prompt_ids=ids).with_seed(seed) for seed, ids in enumerate(prompts)]


def together(loop: DeviceLoop, requests: Sequence[Request], steps: int, tags: TagIds) -> Together:
    """Answers to requests that come at the same time, read every so many steps."""
    readings = [Reading(tags, ()) for _ in requests]
    began = clock()  # the length of a prompt may need a new program
    for number, request in enumerate(requests):
        loop.submit(number, request, steps)
    first, answers = {}, []
    while loop.is_busy:
        items = list(loop.round())
        now = clock() - began
        for item in items:
            if isinstance(item, Result) or readings[item.request].push(item):  # text that can be shown, not a tag
                first.setdefault(item.request, now)
            if isinstance(item, Result):
                answers.append(Streamed(first[item.request], now, item.trace.text_tokens))
    return Together(tuple(answers), clock() - began)
