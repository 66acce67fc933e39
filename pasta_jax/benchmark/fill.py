"""Benchmark of filling in fields: forked, as one JSON text, and with a request for each field, also by llama.cpp."""

import contextlib
import dataclasses
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pasta_jax.benchmark import fill_peer, peers
from pasta_jax.benchmark.facts import Extraction, extraction
from pasta_jax.benchmark.run import Report, load_or_make
from pasta_jax.benchmark.serving import from_another, started
from pasta_jax.benchmark.settings import BenchmarkSettings, FillBenchmark
from pasta_jax.decode.generate import generate
from pasta_jax.device import platform
from pasta_jax.device.compilation_cache import clock
from pasta_jax.errors import PastaError
from pasta_jax.fields.fill import config_of, fields_request, fill_all, prompt_ids, template_of
from pasta_jax.fields.form import fields_of, nested, value_of, whole_of
from pasta_jax.fields.schema import form_of
from pasta_jax.fields.settings import FillOptions
from pasta_jax.models.kernels.cpu import library
from pasta_jax.progress import doing, say, track
from pasta_jax.runs import records
from pasta_jax.weights.model import Model


@dataclasses.dataclass(frozen=True)
class Took:
    """What one text took in one way."""

    seconds: float  # from the text to the values, without compilation
    prefill_s: float
    steps: int
    computed: int  # prompt tokens
    right: float  # share of the fields whose value is the answer
    incomplete: int
    values: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Turns:
    """What one text took in each way."""

    facts: int
    number: int  # of the text
    took: dict[str, Took]


Way = Callable[[Extraction], Took]


def measure(settings: BenchmarkSettings, with_peers: bool) -> Report:
    """Seconds and exact matches by number of facts; the ways take turns on each text."""
    if with_peers:
        peers.require(settings.model, ("xllamacpp",))
    model, config = load_or_make(settings), settings.fill
    if model.positions is not None:
        raise PastaError(f"{model.name}: was trained on the tags; measure a model without an adapter")
    about = {"benchmark": "fill", "model": f"{model.identity}", "seed": config.seed}
    about |= {"rows": config.options.rows, "max_tokens": config.options.max_tokens}
    by_facts = {}
    with contextlib.ExitStack() as stack:
        ways = {"forked": forked(model, config.options), "sequential": sequential(model, config.options)}
        ways["separate"] = separate(model, config.options)
        if with_peers:
            ways |= stack.enter_context(llama_cpp(model, config))
        path = Path(config.records) if config.records else None
        header = about | {"ways": list(ways), "machine": platform.machine(), "slots": config.slots}
        header |= {"cores": library.cores(), "library": library.version()}
        header |= {"precision": model.precision, "kernel": settings.model.kernel}
        header |= {f"options.{name}": value for name, value in dataclasses.asdict(config.options).items()}
        fix = "choose another config.fill.records"
        done = stack.enter_context(records.opened(path, header, Turns, lambda one: (one.facts, one.number), fix))
        for facts in config.facts:
            take_turns(ways, facts, config, done)
            turns = [done.known[facts, number] for number in range(config.texts)]
            took = {name: [one.took[name] for one in turns] for name in ways}
            by_facts[facts] = {name: figures(mine, took["forked"]) for name, mine in took.items()}
            for name, mine in by_facts[facts].items():
                say(f"{facts} facts, {name}: {json.dumps(mine)}")
    return about | {"texts": config.texts, "facts": by_facts}


def take_turns(ways: Mapping[str, Way], facts: int, config: FillBenchmark, done: records.Records[Turns]) -> None:
    """Measure the texts of so many facts that have no record."""
    missing = done.missing([(facts, number) for number in range(config.texts)])
    if not missing:
        return
    with doing(f"{facts} facts: compiling"):
        for way in ways.values():
            way(extraction(facts, config.seed + config.texts))
    for number in track(missing, f"texts with {facts} facts", len(missing)):
        text = extraction(facts, config.seed + number)
        took = {name: ways[name](text) for name in from_another(ways, number)}
        done.add(Turns(facts, number, {name: took[name] for name in ways}))


def figures(mine: Sequence[Took], forked: Sequence[Took]) -> Report:
    """Medians over texts, and how much longer than forked fields it took: the median of the ratios."""

    def median(name: str) -> float:
        return statistics.median(getattr(one, name) for one in mine)

    return {
        "s": round(median("seconds"), 2),
        "prefill_s": round(median("prefill_s"), 2),
        "rest_s": round(statistics.median(one.seconds - one.prefill_s for one in mine), 2),
        "steps": median("steps"),
        "prompt_tokens": median("computed"),
        "exact": round(statistics.mean(one.right for one in mine), 3),
        "incomplete": sum(one.incomplete for one in mine),
        "times_forked": round(statistics.median(a.seconds / b.seconds for a, b in zip(mine, forked, strict=True)), 2),
    }


def share_right(text: Extraction, value: Mapping[str, Any]) -> float:
    """The share of the fields whose value is the answer."""
    return statistics.mean(value.get(name) == answer for name, answer in text.answers.items())


def forked(model: Model, options: FillOptions) -> Way:
    """All fields as threads of one request."""
    return lambda text: _filled(model, options, text)


def sequential(model: Model, options: FillOptions) -> Way:
    """One JSON text under the automaton of all fields."""
    return lambda text: _filled(model, dataclasses.replace(options, fork=False), text)


def _filled(model: Model, options: FillOptions, text: Extraction) -> Took:
    form = form_of(text.schema)
    (fields_of if options.fork else whole_of)(form, model.tokenizer, model.config.vocab)  # kept, as programs are
    began = clock()
    [filled] = fill_all(model, [text.text], form, options, {})
    seconds = clock() - began
    right, cut = share_right(text, filled.value), len(filled.incomplete)
    return Took(seconds, filled.prefill_ms / 1e3, filled.steps, filled.prompt_tokens, right, cut, filled.value)


def separate(model: Model, options: FillOptions) -> Way:
    """A request for each field, one after another; each copies what its prompt shares with the one before."""

    def way(text: Extraction) -> Took:
        form, own = form_of(text.schema), template_of(model, options)
        fields = fields_of(form, model.tokenizer, model.config.vocab)
        began = clock()
        ids = prompt_ids(model, form, text.text, options)
        requests = [fields_request(form, model, ids, own, {}, [number]) for number in range(len(fields))]
        results = generate(model, requests, dataclasses.replace(config_of(options, 1), lanes=1))
        guests = [result.guests[0] for result in results]
        values = nested([value_of(field, one.text, one.complete) for field, one in zip(fields, guests, strict=True)])
        return Took(
            seconds=clock() - began,
            prefill_s=sum(result.trace.prefill_ms for result in results) / 1e3,
            steps=sum(result.trace.steps for result in results),
            computed=sum(result.given - result.copied for result in results),
            right=share_right(text, values),
            incomplete=sum(not one.complete for one in guests),
            values=values,
        )

    return way


@contextlib.contextmanager
def llama_cpp(model: Model, config: FillBenchmark) -> Iterator[dict[str, Way]]:
    """A request for each field to llama.cpp's server, of the same ids: one after another, and in all its slots."""
    room = min(model.config.context, 2048)
    target = peers.llama_cpp_server, (str(peers.files(model)["llama_cpp"]), config.slots, room)

    def by(port: int, slots: int) -> Way:
        def way(text: Extraction) -> Took:
            fill_peer.complete(port, fill_peer.FORGET * config.slots, config.slots)
            form = form_of(text.schema)
            fields = fields_of(form, model.tokenizer, model.config.vocab)
            began = clock()
            ids = prompt_ids(model, form, text.text, config.options)
            bodies = [
                fill_peer.body_of(
                    text.schema["properties"][field.leaf.name],
                    [*ids, *model.tokenizer.encode(field.before({}))],
                    bool(field.begun),
                    config.options.max_tokens,
                )
                for field in fields
            ]
            replies = fill_peer.complete(port, bodies, slots)
            pairs = zip(fields, replies, strict=True)
            found = {field.leaf.name: fill_peer.value_in(reply, bool(field.begun)) for field, reply in pairs}
            values = {name: json.loads(value) for name, value in found.items() if value}
            return Took(
                seconds=clock() - began,
                prefill_s=max(total("prompt_ms", replies[slot::slots]) for slot in range(slots)) / 1e3,
                steps=total("predicted_n", replies),
                computed=total("prompt_n", replies),
                right=share_right(text, values),
                incomplete=sum(value is None for value in found.values()),
                values=values,
            )

        return way

    def total(name: str, replies: Sequence[Report]) -> Any:
        return sum(reply["timings"][name] for reply in replies)

    with started({"llama_cpp": target}) as ports:
        port = ports["llama_cpp"]
        yield {"llama_cpp": by(port, 1), f"llama_cpp_{config.slots}_slots": by(port, config.slots)}
