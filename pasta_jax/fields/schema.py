"""Schemas of what is filled in: from Python types or JSON Schema to the fields that are decoded, each an automaton.

An object's properties are fields of their own, also in objects within it; a list is one field. All properties are
written, in the schema's order. What a finite automaton can't check, such as recursion, is refused by name.
"""

import dataclasses
import functools
import json
import re
import typing
from collections.abc import Mapping
from typing import Any

import msgspec

from pasta_jax.automata import values
from pasta_jax.automata.automaton import Automaton, either, listed, sequence, texts
from pasta_jax.errors import PastaError

Schema = Mapping[str, Any]

MOST_BYTES = 1 << 16  # of a schema as JSON
MOST_FIELDS = 256
DEEPEST = 16  # objects and lists within each other
MOST_NESTED = 3  # levels of an object without a schema
MOST_ITEMS = 64  # maxItems and minItems

# Keywords without an effect on what is valid, or on what is written: all properties are, and no others.
_IGNORED = {
    "$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples", "deprecated",
    "readOnly", "writeOnly", "required", "additionalProperties", "discriminator",
}  # fmt: skip
_KEYWORDS = {
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "number": set(),
    "boolean": set(),
    "null": set(),
    "array": {"items", "minItems", "maxItems"},
    "object": {"properties"},
}
# What formats look like, for a prompt: a model that copies "10 May 1815" can't go on after "10".
SHAPES = {"date": "YYYY-MM-DD", "time": "HH:MM:SSZ", "date-time": "YYYY-MM-DDTHH:MM:SSZ", "uuid": "UUID"}
_MARKS = {"type", "properties", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"}


@dataclasses.dataclass(frozen=True, eq=False)
class Leaf:
    """A field: one value of a schema."""

    path: tuple[str, ...]
    automaton: Automaton  # of its JSON text
    about: str  # its type and description, for a prompt

    @property
    def name(self) -> str:
        """The path as users write it."""
        return ".".join(self.path) or "the value"


@dataclasses.dataclass(frozen=True, eq=False)
class Form:
    """The fields of a schema, and the JSON text around them."""

    leaves: tuple[Leaf, ...]
    around: tuple[str, ...]  # before each field, and after the last one

    @functools.cached_property
    def whole(self) -> Automaton:
        """The automaton of the whole JSON text."""
        parts = [texts([self.around[0].encode()])]
        for leaf, text in zip(self.leaves, self.around[1:], strict=True):
            parts += [leaf.automaton, texts([text.encode()])]
        return sequence(*parts)


def schema_of(fields: Any) -> Schema:
    """JSON Schema of what `fill` accepts: a type, a pydantic model, a mapping of names to types, or a schema."""
    if isinstance(fields, Mapping):
        if _MARKS & fields.keys() and all(not isinstance(value, type) for value in fields.values()):
            return fields
        return {"type": "object", "properties": {name: schema_of(field) for name, field in fields.items()}}
    if isinstance(fields, str):
        return {"type": "string", "description": fields}
    if isinstance(fields, re.Pattern):
        return {"type": "string", "pattern": fields.pattern}
    if hasattr(fields, "model_json_schema"):  # pydantic's, which this package doesn't import
        return fields.model_json_schema()
    if typing.is_typeddict(fields):  # msgspec doesn't keep their order
        return schema_of(typing.get_type_hints(fields, include_extras=True))
    try:
        return msgspec.json.schema(fields)
    except (TypeError, RecursionError) as error:
        raise PastaError(f"fields: {fields!r}: no type with a JSON schema ({error}); use another one") from None


def form_of(schema: Schema) -> Form:
    """The fields of a schema; a schema is refused within a second, whatever it holds."""
    try:
        text = json.dumps(schema, ensure_ascii=False)
        too_large = len(text.encode()) > MOST_BYTES
    except (TypeError, ValueError, RecursionError) as error:
        reason = "not valid Unicode" if isinstance(error, UnicodeEncodeError) else "no JSON"
        raise PastaError(f"the schema: {reason}; correct it") from None
    if too_large:
        raise PastaError(f"the schema: has more than {MOST_BYTES:,} bytes; shorten it")
    return _form(text)


@functools.lru_cache(maxsize=64)
def _form(text: str) -> Form:
    return _Reader(json.loads(text)).form()


@functools.cache
def anything() -> Form:
    """Any JSON object, of MOST_NESTED objects and lists within each other at most."""
    plain = (values.string(), values.number(), values.choice([True, False, None]))
    value, found = either(*plain), texts([b"{}"])
    for _ in range(MOST_NESTED):
        found = listed(sequence(values.string(), texts([b":", b": "]), value), 0, None, b"{}")
        value = either(*plain, listed(value, 0, None), found)
    return Form((Leaf((), found, "object"),), ("", ""))


class _Reader:
    """Reads one schema."""

    def __init__(self, root: Any):
        self._root = root
        self._leaves: list[Leaf] = []
        self._around = [""]

    def form(self) -> Form:
        """All of it."""
        self._read(self._root, (), 0, frozenset())
        return Form(tuple(self._leaves), tuple(self._around))

    def _read(self, schema: Any, path: tuple[str, ...], depth: int, refs: frozenset[str]) -> None:
        place = _place(path)
        schema, refs = self._resolved(schema, place, refs)
        _check_depth(depth, place)
        if schema.get("type") == "object" and not {"enum", "const"} & schema.keys():
            self._around[-1] += "{"
            for number, (name, one) in enumerate(_properties(schema, place).items()):
                self._around[-1] += f"{', ' if number else ''}{json.dumps(name, ensure_ascii=False)}: "
                self._read(one, (*path, name), depth + 1, refs)
            self._around[-1] += "}"
            return
        if len(self._leaves) == MOST_FIELDS:
            raise PastaError(f"{place}: the schema has more than {MOST_FIELDS} fields; ask for fewer at a time")
        automaton = self._value(schema, place, depth, refs)  # checks what `_about` reads
        self._leaves.append(Leaf(path, automaton, _about(schema)))
        self._around.append("")

    def _resolved(self, schema: Any, place: str, refs: frozenset[str]) -> tuple[dict[str, Any], frozenset[str]]:
        """The schema that a reference names."""
        while True:
            if not isinstance(schema, dict):
                raise PastaError(f"{place}: {_shown(schema)} is no schema of a value; state its type")
            parts = schema.get("allOf")
            if isinstance(parts, list) and len(parts) == 1:
                schema = {key: value for key, value in schema.items() if key != "allOf"} | _object(parts[0], place)
                continue
            if "$ref" not in schema:
                return schema, refs
            name = str(schema["$ref"])
            if name in refs:
                raise PastaError(f"{place}: $ref {_shown(name)}: refers to itself; no finite automaton accepts that")
            refs |= {name}
            found: Any = self._root
            for key in name.removeprefix("#").split("/")[1:] if name.startswith("#") else [None]:
                found = (
                    found.get(key.replace("~1", "/").replace("~0", "~")) if key and isinstance(found, dict) else None
                )
            if not isinstance(found, dict):
                raise PastaError(f"{place}: $ref {_shown(name)}: not in the schema; write #/$defs/NAME")
            schema = found | {key: value for key, value in schema.items() if key != "$ref"}

    def _value(self, schema: Any, place: str, depth: int, refs: frozenset[str]) -> Automaton:
        """The automaton of a value's JSON text."""
        schema, refs = self._resolved(schema, place, refs)
        _check_depth(depth, place)
        try:
            return self._checked(schema, place, depth, refs)
        except PastaError as error:
            message = str(error)
            raise PastaError(message if message.startswith(place) else f"{place}: {message}") from None

    def _checked(self, schema: dict[str, Any], place: str, depth: int, refs: frozenset[str]) -> Automaton:
        if choices := _choices(schema):
            _refuse_others(schema, {"enum", "const", "type"})
            return values.choice(choices)
        for name in ("anyOf", "oneOf"):
            if name in schema:
                _refuse_others(schema, {name})
                options = schema[name]
                if not isinstance(options, list) or not 0 < len(options) <= 64:
                    raise PastaError(f"{name}: must be a list of 1 to 64 schemas")
                return either(*(self._value(one, place, depth + 1, refs) for one in options))
        kinds = schema.get("type")
        if isinstance(kinds, list) and kinds and all(isinstance(kind, str) for kind in kinds):
            one_of = [
                {**{k: v for k, v in schema.items() if k in _KEYWORDS.get(kind, ())}, "type": kind} for kind in kinds
            ]
            _refuse_others(schema, {"type"}.union(*(_KEYWORDS.get(kind, ()) for kind in kinds)))
            return either(*(self._value(one, place, depth + 1, refs) for one in one_of))
        if not isinstance(kinds, str) or kinds not in _KEYWORDS:
            raise PastaError(f"type: {_shown(kinds)}; use one of {', '.join(_KEYWORDS)}")
        _refuse_others(schema, {"type"} | _KEYWORDS[kinds])
        match kinds:
            case "string":
                return _string(schema)
            case "integer":
                return values.integer(*_bounds(schema))
            case "number":
                return values.number()
            case "boolean":
                return values.choice([True, False])
            case "null":
                return values.choice([None])
            case "array":
                least, most = _count(schema, "minItems") or 0, _count(schema, "maxItems")
                if max(least, most or 0) > MOST_ITEMS:
                    raise PastaError(f"minItems and maxItems: at most {MOST_ITEMS}")
                if most is not None and least > most:
                    raise PastaError(f"minItems {least} is above maxItems {most}")
                return listed(self._value(schema.get("items"), f"{place}[]", depth + 1, refs), least, most)
        parts = []
        for number, (name, one) in enumerate(_properties(schema, place).items()):
            before = f"{', ' if number else '{'}{json.dumps(name, ensure_ascii=False)}: "
            parts += [texts([before.encode()]), self._value(one, f"{place}.{name}", depth + 1, refs)]
        return sequence(*parts, texts([b"}" if parts else b"{}"]))


def _about(schema: dict[str, Any]) -> str:
    """The type and description of a field, for a prompt."""
    kinds, shape, description = schema.get("type", "value"), schema.get("format"), schema.get("description")
    if "enum" in schema:
        kinds = "one of " + ", ".join(map(str, schema["enum"][:20]))
    parts = [kinds if isinstance(kinds, str) else " or ".join(kinds), SHAPES.get(shape) if shape else None]
    return ", ".join(part for part in [*parts, description] if part and isinstance(part, str))


def _string(schema: dict[str, Any]) -> Automaton:
    lengths = {"minLength", "maxLength"} & schema.keys()
    chosen = [name for name in ("pattern", "format") if name in schema]
    if len(chosen) + bool(lengths) > 1:
        raise PastaError(f"{chosen[0]}: not beside {', '.join([*chosen[1:], *sorted(lengths)])}; state all in pattern")
    if "pattern" in schema:
        if not isinstance(schema["pattern"], str):
            raise PastaError("pattern: must be text")
        return values.matching(schema["pattern"])
    if "format" in schema:
        if schema["format"] not in list(values.FORMATS):
            raise PastaError(
                f"format: {_shown(schema['format'])}; use one of {', '.join(values.FORMATS)}, or a pattern"
            )
        return values.formatted(schema["format"])
    return values.string(_count(schema, "minLength") or 0, _count(schema, "maxLength"))


def _bounds(schema: dict[str, Any]) -> tuple[int | None, int | None]:
    found: list[int | None] = []
    for plain, exclusive, inward in (("minimum", "exclusiveMinimum", 1), ("maximum", "exclusiveMaximum", -1)):
        bounds = []
        for name, step in ((plain, 0), (exclusive, inward)):
            if name in schema:
                bound = schema[name]
                if (
                    isinstance(bound, bool)
                    or not isinstance(bound, int | float)
                    or bound != bound
                    or abs(bound) > 10**18
                ):
                    raise PastaError(f"{name}: {_shown(bound)}; must be a number of at most 18 digits")
                if bound != int(bound):
                    raise PastaError(f"{name}: {_shown(bound)}; must be whole")
                bounds.append(int(bound) + step)
        found.append((max(bounds) if inward == 1 else min(bounds)) if bounds else None)
    return found[0], found[1]


def _choices(schema: dict[str, Any]) -> list[Any]:
    if "const" in schema:
        return [schema["const"]]
    if "enum" not in schema:
        return []
    if not isinstance(schema["enum"], list) or not schema["enum"]:
        raise PastaError("enum: must be a list of values")
    return schema["enum"]


def _count(schema: dict[str, Any], name: str) -> int | None:
    value = schema.get(name)
    if value is not None and (type(value) is not int or not 0 <= value <= 1 << 20):
        raise PastaError(f"{name}: {_shown(value)}; must be a whole number from 0 to {1 << 20:,}")
    return value


def _properties(schema: dict[str, Any], place: str) -> dict[str, Any]:
    found = schema.get("properties", {})
    if not isinstance(found, dict):
        raise PastaError(f"{place}: properties: must be an object")
    _refuse_others(schema, {"type", "properties"}, place)
    if not found and schema.get("additionalProperties") is not False:
        raise PastaError(f"{place}: an object without properties; name them")
    if isinstance(required := schema.get("required"), list) and (
        missing := [one for one in required if one not in list(found)]
    ):
        raise PastaError(f"{place}: required {_shown(missing[0])}: not among the properties; describe it there")
    return found


def _refuse_others(schema: dict[str, Any], known: set[str], place: str = "") -> None:
    if others := [name for name in schema if name not in known and name not in _IGNORED]:
        raise PastaError(f"{f'{place}: ' if place else ''}{others[0]}: is not supported here; leave it out")


def _object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PastaError(f"{place}: {_shown(value)} is no schema; write an object")
    return value


def _check_depth(depth: int, place: str) -> None:
    if depth > DEEPEST:
        raise PastaError(f"{place}: more than {DEEPEST} levels deep; flatten it")


def _place(path: tuple[str, ...]) -> str:
    return ".".join(("schema", *path))


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= 60 else f"{text[:60]}…"
