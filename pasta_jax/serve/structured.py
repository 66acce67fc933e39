"""Answers of a given structure: `response_format` and `tools` as forms, and their text in the schema's order."""

import dataclasses
import json
import uuid
from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from pasta_jax.decode.request import Event, Request, Result
from pasta_jax.decode.settings import Room
from pasta_jax.errors import PastaError
from pasta_jax.fields.fill import fields_request, whole_request
from pasta_jax.fields.form import Field, Value, fields_of, states_of, value_of, values_in, whole_of
from pasta_jax.fields.schema import Form, anything, form_of
from pasta_jax.serve.choice import Choice, Delta
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
PICK_TOKENS = 64  # of the name of a function, at most


@dataclasses.dataclass(frozen=True)
class Structure:
    """The form of an answer."""

    form: Form
    forks: bool  # each field is a thread; False: one text
    function: Function | None = None  # whose arguments these are
    among: tuple[Function, ...] = ()  # of which it names one, or none

    def prompt(self, text: str) -> str:
        """A user's last message with what a function is asked for."""
        if self.among:
            lines = [f"- {one.name}: {one.description or one.name}" for one in self.among]
            return "\n".join([text, "", "Which of these functions is needed to answer?", *lines])
        if self.function is None:
            return text
        about = f": {self.function.description}" if self.function.description else ""
        lines = [f"- {leaf.name}: {leaf.about}" for leaf in self.form.leaves]
        return "\n".join([text, "", f"Call the function {self.function.name}{about}", *lines])

    def compile(self, model: Model, room: Room) -> None:
        """Compile what it needs for the model's ids, if there is room; takes up to seconds once, and is kept."""
        if (states := states_of(self.form, self.forks)) > room.states:
            raise PastaError(
                f"the schema: needs {states} states, but there is room for {room.states}; ask for less at a time"
            )
        if self.forks:
            fields_of_structure(self, model)
        else:
            whole_of(self.form, model.tokenizer, model.config.vocab)

    def request(self, model: Model, ids: Sequence[int], template: Request, slots: int) -> Request:
        """The request; of the pool's slots, each field gets the same share at most."""
        if not self.forks:
            request = whole_request(self.form, model, ids, template)
            most = min(template.max_tokens, request.max_tokens, slots - request.given - 1)
            return dataclasses.replace(request, max_tokens=most)
        numbers = range(len(self.form.leaves))
        request = fields_request(self.form, model, ids, template, {}, numbers)
        share = (slots - request.given) // len(numbers) - 1
        if share < 1:
            raise PastaError(f"{request.given} tokens of prompt and {len(numbers)} fields: the pool holds {slots}")
        return dataclasses.replace(request, max_tokens=min(template.max_tokens, share))


def structure_of(
    wanted: ResponseFormat | None, tools: Sequence[Tool], choice: ToolChoice | None, forks: bool
) -> Structure | None:
    """The structure that a body asks for; None: text."""
    if tools and choice != "none":
        if is_open(tools, choice):
            return None  # until `picking` has said which
        named = [one.function for one in tools if choice == "required" or one.function.name == choice.function.name]
        if not named:
            raise PastaError(f"tool_choice: {choice.function.name!r} is none of the tools; name one of them")
        schema = named[0].parameters or {"type": "object", "additionalProperties": False}
        return _structure(schema, forks, named[0])
    if isinstance(choice, NamedTool) or choice == "required":
        raise PastaError("tool_choice: without tools; add them")
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return Structure(anything(), forks=False)
    if wanted.json_schema is None:
        raise PastaError("response_format.json_schema: missing; add name and schema")
    return _structure(wanted.json_schema.schema, forks, None)


def is_open(tools: Sequence[Tool], choice: ToolChoice | None) -> bool:
    """Whether the model is to say which function is called, or that none is."""
    return bool(tools) and (choice in (None, "auto") or (choice == "required" and len(tools) > 1))


def picking(tools: Sequence[Tool], choice: ToolChoice | None) -> Structure:
    """The structure of an answer before the answer: a field that names one function, or none if none is required."""
    among = tuple(one.function for one in tools)
    names = [one.name for one in among] + ([] if choice == "required" else [NONE])
    form = form_of({"type": "object", "properties": {"function": {"enum": names}}, "required": ["function"]})
    return Structure(form, forks=True, among=among)


def picked(text: str) -> ToolChoice:
    """What such an answer says."""
    name = json.loads(text)["function"]
    return "none" if name == NONE else NamedTool("function", FunctionName(name))


def _structure(schema: dict[str, Any], forks: bool, function: Function | None) -> Structure:
    form = form_of(schema)
    if not form.leaves:
        raise PastaError("the schema: has no field; name at least one")
    return Structure(form, forks, function)


class FieldsChoice(Choice):
    """An answer of fields: its text is that of the fields that have ended, then of the next one as it grows."""

    def __init__(self, structure: Structure, model: Model, stops: Sequence[str], threads: bool):
        super().__init__(model.tokenizer.tags, stops, threads)
        self.structure = structure
        self.call_id = f"call_{uuid.uuid4().hex[:24]}"
        form = structure.form
        self._fields: Sequence[Field | None] = fields_of_structure(structure, model)
        self._around = form.around if structure.forks else ("", "")
        self._written = [""] * len(self._fields)
        self._ended: list[str | None] = [None] * len(self._fields)  # a value's whole text
        self._text, self._threads_too = "", threads

    @property
    def text(self) -> str:
        """What was returned so far."""
        return self._text

    @property
    def stopped(self) -> bool:
        """Stop texts don't apply."""
        return False

    def push(self, event: Event) -> list[Delta]:
        """What an event adds."""
        number = event.thread - 1
        self._written[number] += event.text
        if event.ended:
            self._ended[number] = self._value(number, complete=True).text
        new = self._certain()
        if not self._threads_too:
            return [Delta(new)] if new else []
        leaf = self.structure.form.leaves[number] if self.structure.forks else None
        about = {"thread": event.thread, "step": event.step, "topic": leaf.name if leaf else "", "promised": 0}
        return [Delta(event.text, about | ({"ended": True} if event.ended else {}))]

    def finish(self, result: Result) -> list[Delta]:
        """What is left when the answer has ended."""
        self.result = result
        new = self._certain()
        return [Delta(new)] if new and not self._threads_too else []

    def _value(self, number: int, complete: bool) -> Value:
        field = self._fields[number]
        if field is not None:
            return value_of(field, self._written[number], complete)
        text = self._written[number]
        return Value((), text[: json.JSONDecoder().raw_decode(text)[1]] if complete else text, complete)

    def _certain(self) -> str:
        """The text beyond what was returned whose place is certain."""
        text = self._around[0]
        for number, ended in enumerate(self._ended):
            if ended is None:
                text += self._value(number, complete=False).text
                break
            text += ended + self._around[number + 1]
        new, self._text = text[len(self._text) :], text
        return new

    @property
    def finish_reason(self) -> str:
        """`length` if a field was cut off; `choice`, in metrics alone: it names the function of another answer."""
        if any(ended is None for ended in self._ended):
            return "length"
        if self.structure.among:
            return "choice"
        return "tool_calls" if self.structure.function else "stop"

    def about(self) -> dict[str, Any]:
        """What `pasta` carries of an answer that has ended: also which fields were cut off."""
        about = super().about()
        about.pop("threads", None)
        if self.structure.forks:
            done = [ended is not None for ended in self._ended]
        else:
            done = [value.complete for value in values_in(self.structure.form, self._text)]
        names = [leaf.name for leaf in self.structure.form.leaves]
        about["incomplete"] = [name for name, whole in zip(names, done, strict=True) if not whole]
        about["fields"] = len(names)
        return about


def fields_of_structure(structure: Structure, model: Model) -> Sequence[Field | None]:
    """The fields of the threads; None: of all in one text."""
    if not structure.forks:
        return [None]
    return fields_of(structure.form, model.tokenizer, model.config.vocab)
