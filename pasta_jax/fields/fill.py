"""Fields of a schema, or questions about one context, each as a thread: in the time of the longest one."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pasta_jax.decode.generate import stream
from pasta_jax.decode.request import Event, Request, Result
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.errors import PastaError
from pasta_jax.fields.form import Field, Value, fields_of, nested, text_of, value_of, values_in, whole_of
from pasta_jax.fields.items import item_fields, list_of, with_names
from pasta_jax.fields.schema import Form
from pasta_jax.fields.settings import ROWS, WIDTHS, FillOptions
from pasta_jax.fields.threads import Ask, request_of
from pasta_jax.weights.model import Model
from pasta_jax.weights.rules import filled as rules_of

ALONE_STEPS, SEEN_STEPS = 256, 4  # between two looks at the device
Seen = Callable[[str, Event], None]  # takes the name of a field, and a token of its thread


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Filled:
    """The values of a schema's fields for one context."""

    index: int  # of the context
    value: Any  # plain data; without incomplete fields, so it may lack some that the schema requires
    text: str  # the same as JSON
    incomplete: tuple[str, ...]  # names of the fields that were cut off
    fields: tuple[Value, ...]
    tokens: int  # sampled
    steps: int
    prompt_tokens: int  # computed or copied
    prefill_ms: float
    decode_ms: float

    @property
    def complete(self) -> bool:
        """Whether all fields are, so that the text is valid."""
        return not self.incomplete

    def __repr__(self) -> str:
        return f"Filled({self.text}, incomplete={list(self.incomplete)})"


@dataclasses.dataclass(frozen=True)
class Reply:
    """The answer to one of several questions."""

    text: str
    finish_reason: str  # stop or length

    def __str__(self) -> str:
        return self.text


def prompt_for(form: Form, context: str, instruction: str) -> str:
    """What a model is asked: the context, then the fields with their types."""
    lines = [f"- {leaf.name}: {leaf.about}" for leaf in form.leaves]
    return "\n".join([context.rstrip(), "", instruction, *lines])


def template_of(model: Model, options: FillOptions) -> Request:
    """A request without prompts."""
    return Request((), options.max_tokens, sequential=True, rules=rules_of(options, model.defaults))


def config_of(options: FillOptions, threads: int, contexts: int = 1) -> DecodeConfig:
    """How requests of so many threads are decoded."""
    rows = min((rows for rows in (*ROWS, options.rows) if rows >= threads), default=options.rows)
    rows, lanes = min(rows, options.rows), min(options.lanes, contexts)
    return DecodeConfig(lanes=lanes, rows=rows, widths=tuple(width for width in WIDTHS if width < rows))


def fields_request(
    form: Form,
    model: Model,
    prompt_ids: Sequence[int],
    template: Request,
    known: Mapping[str, str],
    names: Sequence[int],
) -> Request:
    """The request for some fields, by their numbers, of which each reads the texts of those known."""
    fields = fields_of(form, model.tokenizer, model.config.vocab)
    return request_of([_ask(model, prompt_ids, fields[number], known) for number in names], template)


def _ask(model: Model, prompt_ids: Sequence[int], field: Field, known: Mapping[str, str]) -> Ask:
    ids = (*prompt_ids, *model.tokenizer.encode(field.before(known)))
    return Ask(ids, field.automaton, field.begun.encode())


def whole_request(form: Form, model: Model, prompt_ids: Sequence[int], template: Request) -> Request:
    """The request for all fields in one text, of as many tokens as all fields may have."""
    automaton = whole_of(form, model.tokenizer, model.config.vocab)
    room = model.config.context - len(prompt_ids)
    most = min(template.max_tokens * max(1, len(form.leaves)), room)
    if most < 1:
        raise PastaError(f"{len(prompt_ids)} tokens, but the context is {model.config.context}; shorten the prompt")
    return request_of([Ask(tuple(prompt_ids), automaton)], dataclasses.replace(template, max_tokens=most))


def read(form: Form, fields: Sequence[Field], result: Result) -> list[Value]:
    """The values of these fields in the result of their request."""
    return [
        value_of(field, written.text, written.complete) for field, written in zip(fields, result.guests, strict=True)
    ]


def levels_of(form: Form, after: Mapping[str, Sequence[str]]) -> list[tuple[list[int], list[str]]]:
    """The fields' numbers in the order of decoding, those that wait for nothing first, and the names that each reads.

    Fields that wait for the same others are decoded together.
    """
    numbers = {leaf.name: number for number, leaf in enumerate(form.leaves) if len(leaf.path) == 1}
    for name, others in after.items():
        if unknown := [one for one in (name, *others) if one not in numbers]:
            raise PastaError(
                f"after: {unknown[0]!r}: no field of the schema's first level; use one of {', '.join(numbers)}"
            )
    levels: list[tuple[list[int], list[str]]] = []
    done: set[str] = set()
    waiting = [leaf.name for leaf in form.leaves]
    while waiting:
        ready = [name for name in waiting if set(after.get(name, ())) <= done]
        if not ready:
            raise PastaError(f"after: {', '.join(waiting)}: wait for each other; break the circle")
        groups: dict[tuple[str, ...], list[int]] = {}
        for number, leaf in enumerate(form.leaves):
            if leaf.name in ready:
                groups.setdefault(tuple(after.get(leaf.name, ())), []).append(number)
        levels += [(group, list(reads)) for reads, group in groups.items()]
        done |= set(ready)
        waiting = [name for name in waiting if name not in done]
    return levels


def fill_all(
    model: Model,
    contexts: Sequence[str],
    form: Form,
    options: FillOptions,
    after: Mapping[str, Sequence[str]],
    seen: Seen | None = None,
) -> Iterator[Filled]:
    """Fill in a form for each context; yields them as they are finished. `seen` gets every token before."""
    if not form.leaves:
        raise PastaError("the schema: has no field; name at least one")
    if not options.fork and (after or options.fork_items):
        name = "after" if after else "fork_items"
        raise PastaError(f"{name}: orders threads, but fork=False writes one text; leave it out")
    if options.fork and options.fork_items and any(leaf.items for leaf in form.leaves):
        yield from _with_items(model, contexts, form, options, after, seen)
        return
    template = template_of(model, options)
    prompts = [prompt_ids(model, form, context, options) for context in contexts]
    if not options.fork:
        requests = [whole_request(form, model, ids, template) for ids in prompts]
        for result in _results(model, requests, config_of(options, 1, len(contexts)), ["JSON"], seen):
            values = values_in(form, result.guests[0].text)
            if not result.guests[0].complete:
                values[-1] = dataclasses.replace(values[-1], complete=False)
            yield _filled(form, values, [result])
        return
    levels = levels_of(form, after)
    if len(levels) == 1:
        fields = fields_of(form, model.tokenizer, model.config.vocab)
        requests = [fields_request(form, model, ids, template, {}, levels[0][0]) for ids in prompts]
        names = [field.leaf.name for field in fields]
        for result in _results(model, requests, config_of(options, len(fields), len(contexts)), names, seen):
            yield _filled(form, read(form, fields, result), [result])
        return
    yield from _in_levels(model, prompts, form, options, levels, seen)


def _in_levels(
    model: Model,
    prompts: Sequence[Sequence[int]],
    form: Form,
    options: FillOptions,
    levels: Sequence[tuple[list[int], list[str]]],
    seen: Seen | None,
) -> Iterator[Filled]:
    """Fill in fields of which some wait for others."""
    fields, template = fields_of(form, model.tokenizer, model.config.vocab), template_of(model, options)
    written: list[dict[int, Value]] = [{} for _ in prompts]
    results: list[list[Result]] = [[] for _ in prompts]
    names = [leaf.name for leaf in form.leaves]
    for group, reads in levels:
        requests = []
        for ids, values in zip(prompts, written, strict=True):
            known = {name: values[names.index(name)] for name in reads}
            texts = {name: value.text for name, value in known.items() if value.complete}
            requests.append(fields_request(form, model, ids, template, texts, group))
        config, own = config_of(options, len(group), len(prompts)), [names[number] for number in group]
        for result in _results(model, requests, config, own, seen):
            results[result.request].append(result)
            found = read(form, [fields[number] for number in group], result)
            written[result.request] |= dict(zip(group, found, strict=True))
    for values, parts in zip(written, results, strict=True):
        yield _filled(form, [values[number] for number in range(len(names))], parts)


def _with_items(
    model: Model,
    contexts: Sequence[str],
    form: Form,
    options: FillOptions,
    after: Mapping[str, Sequence[str]],
    seen: Seen | None,
) -> Iterator[Filled]:
    """Fill in a form whose lists of objects are first filled in with names."""
    named, template = with_names(form), template_of(model, options)
    found = {one.index: one for one in fill_all(model, contexts, named, options, after, seen)}
    lists = [(number, leaf) for number, leaf in enumerate(form.leaves) if leaf.items]
    requests, owners = [], []
    for index, one in sorted(found.items()):
        ids, own = prompt_ids(model, named, contexts[index], options), {}
        for number, leaf in lists:
            names = one.fields[number]
            own[number] = item_fields(leaf, leaf.items, names, model) if names.complete else []
        if asks := [_ask(model, ids, field, read) for pairs in own.values() for field, read in pairs]:
            requests.append(request_of(asks, template))
            owners.append((one, own))
        else:
            yield one
    if not requests:
        return
    most = max(len(request.guests) for request in requests)
    labels = [f"item {number}" for number in range(1, most + 1)]
    for result in _results(model, requests, config_of(options, most, len(requests)), labels, seen):
        one, own = owners[result.request]
        values, fields = list(one.fields), [field for pairs in own.values() for field, _ in pairs]
        items = iter(read(form, fields, result))
        for number, pairs in own.items():
            if values[number].complete:
                values[number] = list_of(values[number], [next(items) for _ in pairs])
        both = _filled(form, values, [result])
        sums = ("tokens", "steps", "prompt_tokens", "prefill_ms", "decode_ms")
        added = {name: getattr(one, name) + getattr(both, name) for name in sums}
        yield dataclasses.replace(both, index=one.index, **added)


def ask_all(model: Model, context: str, questions: Sequence[str], options: FillOptions) -> list[Reply]:
    """Answer questions about one context, which is computed once."""
    if isinstance(questions, str) or not questions:
        raise PastaError("questions: pass a list of at least one")
    asks = [Ask(tuple(_chat(model, f"{context.rstrip()}\n\n{question}", options))) for question in questions]
    request = request_of(asks, template_of(model, options))
    [result] = _results(model, [request], config_of(options, len(asks)))
    return [Reply(one.text.strip(), "stop" if one.complete else "length") for one in result.guests]


def _chat(model: Model, text: str, options: FillOptions) -> list[int]:
    return model.tokenizer.chat([*([("system", options.system)] if options.system else []), ("user", text)])


def prompt_ids(model: Model, form: Form, context: str, options: FillOptions) -> list[int]:
    """What a model reads before any field."""
    return _chat(model, prompt_for(form, context, options.instruction), options)


def _results(
    model: Model, requests: Sequence[Request], config: DecodeConfig, names: Sequence[str] = (), seen: Seen | None = None
) -> Iterator[Result]:
    """The results of requests; `seen` gets the events of their threads, which have these names, as they come."""
    for item in stream(model, requests, config, ALONE_STEPS if seen is None else SEEN_STEPS):
        if isinstance(item, Result):
            yield item
        elif seen is not None:
            seen(names[item.thread - 1], item)


def _filled(form: Form, values: Sequence[Value], results: Sequence[Result]) -> Filled:
    incomplete = tuple(one.name for one in values if not one.complete)
    text = json.dumps(nested(values), ensure_ascii=False) if incomplete else text_of(form, values)
    traces = [result.trace for result in results]
    return Filled(
        index=results[0].request,
        value=json.loads(text),
        text=text,
        incomplete=incomplete,
        fields=tuple(values),
        tokens=sum(len(written.ids) for result in results for written in result.guests),
        steps=sum(trace.steps for trace in traces),
        prompt_tokens=sum(result.given for result in results),
        prefill_ms=sum(trace.prefill_ms for trace in traces),
        decode_ms=sum(trace.decode_ms for trace in traces),
    )
