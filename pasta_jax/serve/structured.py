"""Answers of a given structure: `response_format` and `tools` as forms, and their text in the schema's order."""

import dataclasses
import functools
import json
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from pasta_jax.automata.automaton import texts
from pasta_jax.decode.request import Event, Request, Result
from pasta_jax.decode.settings import Room
from pasta_jax.errors import PastaError
from pasta_jax.fields.fill import fields_request, whole_request
from pasta_jax.fields.form import Field, Value, fields_of, states_of, value_of, values_in, whole_of
from pasta_jax.fields.schema import Form, Leaf, anything, form_of
from pasta_jax.fields.threads import Ask, request_of
from pasta_jax.serve import logprobs
from pasta_jax.serve.choice import Choice, Delta
from pasta_jax.tokenizers.tokenizer import Tokenizer
from pasta_jax.weights.model import Model


class JsonSchema(Struct, forbid_unknown_fields=True):
    """A schema by name."""

    name: str
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None  # it always is


class ResponseFormat(Struct, forbid_unknown_fields=True):
    """What an answer's text is."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Function(Struct, forbid_unknown_fields=True):
    """A function that the client runs."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct, forbid_unknown_fields=True):
    """A tool."""

    type: Literal["function"]
    function: Function


class FunctionName(Struct):
    """Which function."""

    name: str


class NamedTool(Struct):
    """Which tool is called."""

    type: Literal["function"]
    function: FunctionName


ToolChoice = Literal["none", "auto", "required"] | NamedTool
NONE = "none"  # where no function is called
PICK_TOKENS = 64  # of the names of functions, at most
CHECK_S = 1.0  # to read schemas of functions before one is chosen; what is left is read once it is
SEVERAL = ("functions",)  # the field of several names


@dataclasses.dataclass(frozen=True)
class Part:
    """A JSON text of an answer: all of it, or the arguments of a function that it calls."""

    form: Form
    function: Function | None = None


@dataclasses.dataclass(frozen=True)
class Structure:
    """The form of an answer."""

    parts: tuple[Part, ...]  # several: calls, whose arguments are decoded at a time
    forks: bool  # each field is a thread; False: each part
    among: tuple[Function, ...] = ()  # of which it names some, or none

    @functools.cached_property
    def form(self) -> Form:
        """The fields of all parts."""
        if len(self.parts) == 1:
            return self.parts[0].form
        return together({part.function.name: part.form for part in self.parts})

    @property
    def question(self) -> str:
        """What a user is taken to ask of functions, after what the conversation says; empty: nothing."""
        if self.among:
            lines = [f"- {one.name}: {one.description or one.name}" for one in self.among]
            verb = "are" if self.form.leaves[0].path == SEVERAL else "is"
            return "\n".join([f"Which of these functions {verb} needed to answer?", *lines])
        calls = []
        for part in self.parts:
            if part.function is not None:
                about = f": {part.function.description}" if part.function.description else ""
                lines = [f"- {leaf.name}: {leaf.about}" for leaf in part.form.leaves if leaf.path]
                calls.append("\n".join([f"Call the function {part.function.name}{about}", *lines]))
        return "\n\n".join(calls)

    def compile(self, model: Model, room: Room) -> None:
        """Compile what it needs for the model's ids, if there is room; takes up to seconds once, and is kept."""
        forms = [self.form] if self.forks else [part.form for part in self.parts]
        if (states := sum(states_of(form, self.forks) for form in forms)) > room.states:
            raise PastaError(
                f"the schema: needs {states} states, but there is room for {room.states}; ask for less at a time"
            )
        if self.forks:
            for field in fields_of_structure(self, model):
                model.tokenizer.encode(field.before({}))  # names of properties without ids are the schema's fault
        for form in () if self.forks else forms:
            whole_of(form, model.tokenizer, model.config.vocab)

    def request(self, model: Model, ids: Sequence[int], template: Request, slots: int) -> Request:
        """The request; of the pool's slots, each thread gets the same share at most."""
        if self.forks:
            numbers = range(len(self.form.leaves))
            request = fields_request(self.form, model, ids, template, {}, numbers)
        elif len(self.parts) == 1:
            request = whole_request(self.form, model, ids, template)
        else:
            asks = []
            for part in self.parts:
                begun = model.tokenizer.encode(f"{{{json.dumps(part.function.name)}:")
                automaton = whole_of(part.form, model.tokenizer, model.config.vocab)
                asks.append(Ask((*ids, *begun), automaton))
            request = request_of(asks, template)
        threads = len(request.guests)
        share = (slots - request.given) // threads - 1
        longest = len(request.prompt_ids) + max(len(guest.ids) for guest in request.guests)
        if (room := model.config.context - longest) < 1:
            raise PastaError(f"{longest} tokens, but the context is {model.config.context}; shorten the prompt")
        if share < 1:
            of = f"{threads} threads" if threads > 1 else "the answer"
            raise PastaError(f"{request.given} tokens, but the pool of {slots} must also hold {of}; shorten the prompt")
        return dataclasses.replace(request, max_tokens=min(template.max_tokens, request.max_tokens, share, room))


def structure_of(
    wanted: ResponseFormat | None, tools: Sequence[Tool], choice: ToolChoice | tuple[str, ...] | None, forks: bool
) -> Structure | None:
    """The structure that a body asks for; None: text."""
    if tools and choice != "none":
        by_name = {one.function.name: one.function for one in tools}
        if len(by_name) < len(tools):
            raise PastaError("tools: two functions have the same name; rename one")
        if NONE in by_name:
            raise PastaError(f"tools: {NONE!r} says that no function is called; rename that one")
        if is_open(tools, choice):
            began = time.perf_counter()
            for one in by_name.values():  # so that what is refused doesn't depend on which one the model names
                if time.perf_counter() - began < CHECK_S:
                    _call(one)
            return None  # until `picking` has said which
        names = [choice.function.name] if isinstance(choice, NamedTool) else choice
        if choice == "required":
            names = list(by_name)
        return Structure(tuple(_call(by_name[name]) for name in names), forks)
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return Structure((Part(anything()),), forks=False)
    if wanted.json_schema is None:
        raise PastaError("response_format.json_schema: missing; add name and schema")
    form = form_of(wanted.json_schema.schema)
    if not form.leaves:
        raise PastaError("the schema: has no field; name at least one")
    return Structure((Part(form),), forks)


def _call(function: Function) -> Part:
    parameters = {"type": "object"} | (function.parameters or {})
    if not parameters.get("properties"):
        parameters = {"additionalProperties": False} | parameters
    try:
        form = form_of(parameters)
    except PastaError as error:
        raise PastaError(f"function {function.name}: {error}") from None
    if not form.leaves:  # one text
        form = Form((Leaf((), texts([form.around[0].encode()]), "object"),), ("", ""))
    return Part(form, function)


def is_open(tools: Sequence[Tool], choice: ToolChoice | None) -> bool:
    """Whether the model is to say which function is called, or that none is."""
    return bool(tools) and (choice in (None, "auto") or (choice == "required" and len(tools) > 1))


def picking(tools: Sequence[Tool], choice: ToolChoice | None, several: bool) -> Structure:
    """The structure of an answer before the answer: a field that names functions, one or several, or none of them."""
    among = tuple(one.function for one in tools)
    if several:
        items = {"enum": [one.name for one in among]}
        least = 1 if choice == "required" else 0
        properties = {SEVERAL[0]: {"type": "array", "items": items, "minItems": least}}
    else:
        among += () if choice == "required" else (Function(NONE, "no function is needed"),)
        properties = {"function": {"enum": [one.name for one in among]}}
    return Structure((Part(form_of({"type": "object", "properties": properties})),), forks=True, among=among)


def picked(text: str) -> tuple[str, ...]:
    """The functions that such an answer names, which may be cut off; one that it names again is called once."""
    names = [json.loads(name) for name in re.findall(r'"(?:[^"\\]|\\.)*"', text.partition(":")[2])]
    return tuple(name for name in dict.fromkeys(names) if name != NONE)


def together(forms: Mapping[str, Form]) -> Form:
    """An object of some forms."""
    leaves: list[Leaf] = []
    around = [""]
    for name, form in forms.items():
        before, *others = form.around
        around[-1] += f"{', ' if leaves else '{'}{json.dumps(name, ensure_ascii=False)}: {before}"
        around += others
        leaves += [dataclasses.replace(leaf, path=(name, *leaf.path)) for leaf in form.leaves]
    around[-1] += "}"
    return Form(tuple(leaves), tuple(around))


class FieldsChoice(Choice):
    """An answer of fields: its text is that of the fields that have ended, then of the next one as it grows."""

    def __init__(self, structure: Structure, model: Model, threads: bool):
        super().__init__(model.tokenizer.tags, (), threads)  # stop texts don't apply
        self.structure = structure
        self.call_ids = [f"call_{uuid.uuid4().hex[:24]}" for _ in structure.parts]
        self.texts = [""] * len(structure.parts)  # of each part, what was returned so far
        self._fields: Sequence[Field | None] = fields_of_structure(structure, model)
        self._arounds = [part.form.around if structure.forks else ("", "") for part in structure.parts]
        self._written = [""] * len(self._fields)
        self._ended: list[str | None] = [None] * len(self._fields)  # a value's whole text

    @property
    def text(self) -> str:
        """What was returned so far."""
        return "\n".join(self.texts)

    def push(self, event: Event) -> list[Delta]:
        """What an event adds."""
        number = event.thread - 1
        self._written[number] += event.text
        if event.ended:
            self._ended[number] = self._value(number, complete=True).text
        new = self._certain()
        if not self.threads:
            return new
        leaf = self.structure.form.leaves[number] if self.structure.forks else None
        about = {"thread": event.thread, "step": event.step, "topic": leaf.name if leaf else "", "promised": 0}
        return [Delta(event.text, about | ({"ended": True} if event.ended else {}))]

    def finish(self, result: Result) -> list[Delta]:
        """What is left when the answer has ended."""
        self.result = result
        new = self._certain()
        return [] if self.threads else new

    def drawn(self, tokenizer: Tokenizer) -> list[logprobs.Drawn]:
        """The scores of its fields."""
        return logprobs.of_fields(self.result, len(self.text))

    def _value(self, number: int, complete: bool) -> Value:
        field = self._fields[number]
        if field is not None:
            return value_of(field, self._written[number], complete)
        text = self._written[number]
        return Value((), text[: json.JSONDecoder().raw_decode(text)[1]] if complete else text, complete)

    def _certain(self) -> list[Delta]:
        """The text of each part beyond what was returned whose place is certain; a part waits for those before it."""
        number, deltas, known = 0, [], True
        for part, (before, *around) in enumerate(self._arounds):
            text = before
            for after in around:
                if known := self._ended[number] is not None:
                    text, number = text + self._ended[number] + after, number + 1
                else:
                    text += self._value(number, complete=False).text
                    break
            if len(text) > len(self.texts[part]):
                deltas.append(Delta(text[len(self.texts[part]) :], part=part))
                self.texts[part] = text
            if not known:
                break
        return deltas

    @property
    def finish_reason(self) -> str:
        """`length` if a field was cut off; `choice`, in metrics alone: it names the function of another answer."""
        if any(ended is None for ended in self._ended):
            return "length"
        if self.structure.among:
            return "choice"
        return "tool_calls" if self.structure.parts[0].function else "stop"

    def about(self) -> dict[str, Any]:
        """What `pasta` carries of an answer that has ended: also which fields were cut off."""
        about = super().about()
        about.pop("threads", None)
        if self.structure.forks:
            done = [ended is not None for ended in self._ended]
        else:
            pairs = zip(self.structure.parts, self.texts, strict=True)
            done = [value.complete for part, text in pairs for value in values_in(part.form, text)]
            if self.structure.form.around == ("", "") and self._ended[0] is None:  # a number may go on
                done = [False]
        names = [leaf.name for leaf in self.structure.form.leaves]
        about["incomplete"] = [name for name, whole in zip(names, done, strict=True) if not whole]
        about["fields"] = len(names)
        return about


def fields_of_structure(structure: Structure, model: Model) -> Sequence[Field | None]:
    """The fields of the threads; None: of all in one text."""
    if not structure.forks:
        return [None] * len(structure.parts)
    return fields_of(structure.form, model.tokenizer, model.config.vocab)
