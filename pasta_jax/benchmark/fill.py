"""Benchmark of filling in fields: forked, as one JSON text, and with a request for each field."""

import dataclasses
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pasta_jax.benchmark.facts import Extraction, extraction
from pasta_jax.benchmark.run import Report, load_or_make
from pasta_jax.benchmark.settings import BenchmarkSettings
from pasta_jax.decode.generate import generate
from pasta_jax.errors import PastaError
from pasta_jax.fields.fill import config_of, fields_request, fill_all, prompt_ids, template_of
from pasta_jax.fields.form import fields_of, nested, value_of
from pasta_jax.fields.schema import form_of
from pasta_jax.fields.settings import FillOptions
from pasta_jax.progress import doing, say
from pasta_jax.weights.model import Model


@dataclasses.dataclass(frozen=True)
class Took:
    """What one text took in one way."""

    seconds: float  # from the admission of its first request to the end of the last
    prefill_s: float
    steps: int
    computed: int  # prompt tokens
    right: float  # share of the fields whose value is the answer
    incomplete: int


Way = Callable[[Extraction], Took]


def measure(settings: BenchmarkSettings) -> Report:
    """Seconds and exact matches by number of facts; the ways take turns on each text."""
    model, config = load_or_make(settings), settings.fill
    if model.positions is not None:
        raise PastaError(f"{model.name}: was trained on the tags; measure a model without an adapter")
    ways = {"forked": forked(model, config.options), "sequential": sequential(model, config.options)}
    ways["separate"] = separate(model, config.options)
    by_facts = {}
    for facts in config.facts:
        texts = [extraction(facts, config.seed + number) for number in range(config.texts + 1)]
        with doing(f"{facts} facts: compiling"):
            for way in ways.values():
                way(texts[-1])
        took: dict[str, list[Took]] = {name: [] for name in ways}
        for number, text in enumerate(texts[:-1]):
            order = list(ways) if number % 2 == 0 else list(ways)[::-1]
            for name in order:
                took[name].append(ways[name](text))
        by_facts[facts] = {name: figures(mine, took["forked"]) for name, mine in took.items()}
        for name, mine in by_facts[facts].items():
            say(f"{facts} facts, {name}: {json.dumps(mine)}")
    about = {"benchmark": "fill", "model": model.name, "dtype": model.precision, "rows": config.options.rows}
    return about | {"texts": config.texts, "max_tokens": config.options.max_tokens, "facts": by_facts}


def figures(mine: Sequence[Took], forked: Sequence[Took]) -> Report:
    """Medians over texts, and how much longer than forked fields it took: the median of the ratios."""

    def median(name: str) -> float:
        return statistics.median(getattr(one, name) for one in mine)

    return {
        "s": round(median("seconds"), 2),
        "prefill_s": round(median("prefill_s"), 2),
        "decode_s": round(statistics.median(one.seconds - one.prefill_s for one in mine), 2),
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
    [filled] = fill_all(model, [text.text], form_of(text.schema), options, {})
    seconds = (filled.prefill_ms + filled.decode_ms) / 1e3
    right, cut = share_right(text, filled.value), len(filled.incomplete)
    return Took(seconds, filled.prefill_ms / 1e3, filled.steps, filled.prompt_tokens, right, cut)


def separate(model: Model, options: FillOptions) -> Way:
    """A request for each field, one after another; each copies what its prompt shares with the one before."""

    def way(text: Extraction) -> Took:
        form, own = form_of(text.schema), template_of(model, options)
        fields = fields_of(form, model.tokenizer, model.config.vocab)
        ids = prompt_ids(model, form, text.text, options)
        requests = [fields_request(form, model, ids, own, {}, [number]) for number in range(len(fields))]
        results = generate(model, requests, dataclasses.replace(config_of(options, 1), lanes=1))
        guests = [result.guests[0] for result in results]
        values = [value_of(field, one.text, one.complete) for field, one in zip(fields, guests, strict=True)]
        prefill = sum(result.trace.prefill_ms for result in results) / 1e3
        return Took(
            seconds=prefill + sum(result.trace.decode_ms for result in results) / 1e3,
            prefill_s=prefill,
            steps=sum(result.trace.steps for result in results),
            computed=sum(result.given - result.copied for result in results),
            right=share_right(text, nested(values)),
            incomplete=sum(not value.complete for value in values),
        )

    return way
