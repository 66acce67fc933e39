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
from pasta_jax.fields.settings import ROWS, WIDTHS, AskOptions, FillOptions
from pasta_jax.fields.threads import Ask, request_of
from pasta_jax.weights.model import Model
from pasta_jax.weights.rules import filled as rules_of

ALONE_STEPS, SEEN_STEPS = 256, 4  # between two looks at the device
APART = 2**16  # from the seeds of one context to those of the next: more than it has fields and items
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


def template_of(model: Model, options: AskOptions) -> Request:
    """A request without prompts."""
    return Request((), options.max_tokens, sequential=True, rules=rules_of(options, model.defaults))


def config_of(options: AskOptions, threads: int, contexts: int = 1) -> DecodeConfig:
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


def read(fields: Sequence[Field], result: Result) -> list[Value]:
    """The values of these fields in the result of their request."""
    return [
        value_of(field, written.text, written.complete) for field, written in zip(fields, result.guests, strict=True)
    ]


def levels_of(form: Form, after: Mapping[str, Sequence[str]]) -> list[tuple[list[int], list[str]]]:
    """The fields' numbers in the order of decoding, those that wait for nothing first, and the names that each reads.

    Fields that wait for the same others are decoded together.
    """
    numbers = {leaf.name: number for number, leaf in enumerate(form.leaves) if len(leaf.path) == 1}
    if not isinstance(after, Mapping) or not all(isinstance(others, list | tuple) for others in after.values()):
        raise PastaError(f"after: {after!r}: write the names that each field reads, as {{'summary': ['name', 'year']}}")
    for name, others in after.items():
        if unknown := [one for one in (name, *others) if one not in [*numbers]]:
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
    numbers: Sequence[int] | None = None,
) -> Iterator[Filled]:
    """Fill in a form for each context; yields them as they are finished. `seen` gets every token before.

    `numbers`: of the contexts, if these are some of more; each draws for itself.
    """
    if not form.leaves:
        raise PastaError("the schema: has no field; name at least one")
    if not options.fork and (after or options.fork_items):
        name = "after" if after else "fork_items"
        raise PastaError(f"{name}: orders threads, but fork=False writes one text; leave it out")
    named = with_names(form) if options.fork_items else form
    template = template_of(model, options)
    templates = (template.with_seed(APART * number) for number in numbers or range(len(contexts)))
    asked = [
        (prompt_ids(model, named, context, options), own) for context, own in zip(contexts, templates, strict=True)
    ]
    if not options.fork:
        requests = [whole_request(form, model, *one) for one in asked]
        for result in _results(model, requests, config_of(options, 1, len(contexts)), ["JSON"], seen):
            values = values_in(form, result.guests[0].text)
            if not result.guests[0].complete:
                values[-1] = dataclasses.replace(values[-1], complete=False)
            yield _filled(form, result.request, values, [result])
        return
    levels = levels_of(form, after)
    if len(levels) == 1 and not (options.fork_items and any(leaf.items for leaf in form.leaves)):
        fields = fields_of(form, model.tokenizer, model.config.vocab)
        group = levels[0][0]
        requests = [fields_request(form, model, *one, {}, group) for one in asked]
        names = [field.leaf.name for field in fields]
        for result in _results(model, requests, config_of(options, len(fields), len(contexts)), names, seen):
            yield _filled(form, result.request, read(fields, result), [result])
        return
    for first in range(0, len(contexts), options.lanes):  # as many as go on together, so that few are lost to a stop
        some = [_Begun(*one) for one in asked[first : first + options.lanes]]
        for one in _by_levels(model, some, form, options, levels, seen):
            yield dataclasses.replace(one, index=first + one.index)


@dataclasses.dataclass
class _Begun:
    """What one context has so far."""

    prompt_ids: list[int]
    template: Request
    values: dict[int, Value] = dataclasses.field(default_factory=dict)  # by the fields' numbers
    results: list[Result] = dataclasses.field(default_factory=list)
    items: int = 0  # threads of items

    def known(self, form: Form, names: Sequence[str]) -> dict[str, str]:
        """The texts of complete fields by their names."""
        found = {form.leaves[number].name: value.text for number, value in self.values.items() if value.complete}
        return {name: found[name] for name in names if name in found}


def _by_levels(
    model: Model,
    begun: Sequence[_Begun],
    form: Form,
    options: FillOptions,
    levels: Sequence[tuple[list[int], list[str]]],
    seen: Seen | None,
) -> Iterator[Filled]:
    """Fill in fields after those that they read, and items of lists after their names."""
    named = with_names(form) if options.fork_items else form
    fields, decoded = fields_of(named, model.tokenizer, model.config.vocab), 0
    for group, reads in levels:
        own = [fields[number] for number in group]
        requests = [
            fields_request(named, model, one.prompt_ids, one.template.with_seed(decoded), one.known(form, reads), group)
            for one in begun
        ]
        config, names = config_of(options, len(group), len(begun)), [field.leaf.name for field in own]
        for result in _results(model, requests, config, names, seen):
            one = begun[result.request]
            one.results.append(result)
            one.values |= dict(zip(group, read(own, result), strict=True))
        lists = [number for number in group if form.leaves[number].items] if options.fork_items else []
        if lists:
            _add_items(model, begun, form, options, lists, reads, seen)
        decoded += len(group)
    for index, one in enumerate(begun):
        yield _filled(form, index, [one.values[number] for number in range(len(fields))], one.results)


def _add_items(
    model: Model,
    begun: Sequence[_Begun],
    form: Form,
    options: FillOptions,
    lists: Sequence[int],
    reads: Sequence[str],
    seen: Seen | None,
) -> None:
    """Fill in the objects of lists, of which the names are known."""
    requests, owners = [], []
    for one in begun:
        known = one.known(form, reads)
        own = {
            number: item_fields(form.leaves[number], one.values[number], model, known)
            for number in lists
            if one.values[number].complete
        }
        if asks := [_ask(model, one.prompt_ids, field, read) for pairs in own.values() for field, read in pairs]:
            requests.append(request_of(asks, one.template.with_seed(len(form.leaves) + one.items)))
            owners.append((one, own))
    most = max((len(request.guests) for request in requests), default=1)
    labels = [f"item {number}" for number in range(1, most + 1)]
    for result in _results(model, requests, config_of(options, most, max(1, len(requests))), labels, seen):
        one, own = owners[result.request]
        one.results.append(result)
        one.items += len(result.guests)
        items = iter(read([field for pairs in own.values() for field, _ in pairs], result))
        for number, pairs in own.items():
            one.values[number] = list_of(one.values[number], [next(items) for _ in pairs])


def ask_all(model: Model, context: str, questions: Sequence[str], options: AskOptions) -> list[Reply]:
    """Answer questions about one context, which is computed once."""
    if not questions:
        raise PastaError("questions: pass a list of at least one")
    asks = [Ask(tuple(_chat(model, f"{context.rstrip()}\n\n{question}", options))) for question in questions]
    request = request_of(asks, template_of(model, options))
    [result] = _results(model, [request], config_of(options, len(asks)))
    return [Reply(one.text.strip(), "stop" if one.complete else "length") for one in result.guests]


def _chat(model: Model, text: str, options: AskOptions) -> list[int]:
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


def _filled(form: Form, index: int, values: Sequence[Value], results: Sequence[Result]) -> Filled:
    incomplete = tuple(one.name for one in values if not one.complete)
    text = json.dumps(nested(values), ensure_ascii=False) if incomplete else text_of(form, values)
    traces = [result.trace for result in results]
    return Filled(
        index=index,
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
