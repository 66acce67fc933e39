"""Schemas of what is filled in: from JSON Schema to the fields that are decoded, each an automaton.

An object's properties are fields of their own, also in objects within it; a list is one field. All properties are
written, in the schema's order. What a finite automaton can't check, such as recursion, is refused by name.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from pasta_jax.automata import values
from pasta_jax.automata.automaton import Automaton, either, listed, sequence, texts
from pasta_jax.errors import PastaError
from pasta_jax.fields.keywords import (
    IGNORED,
    KEYWORDS,
    about_of,
    both,
    bounds_of,
    choices_of,
    count_of,
    described,
    description_of,
    shown,
)

Schema = Mapping[str, Any]

MOST_BYTES = 1 << 16  # of a schema as JSON
MOST_FIELDS = 256
MOST_OBJECTS = 1024  # references to one count each time
DEEPEST = 16  # objects and lists within each other
MOST_NESTED = 3  # levels of an object without a schema
MOST_ITEMS = 64  # maxItems and minItems
MOST_STATES = 1 << 15  # of the automata of all values; equal schemas of values count once
MOST_PATTERNS = 32  # each is compiled in a process of its own
PATTERNS_S = 2  # of the CPU, to compile all of them
NAME = 60  # characters of an item's name, at most


@dataclasses.dataclass(frozen=True, eq=False)
class Leaf:
    """A field: one value of a schema."""

    path: tuple[str, ...]
    automaton: Automaton  # of its JSON text
    about: str  # its type and description, for a prompt
    items: "Items | None" = None  # of a list of objects

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


@dataclasses.dataclass(frozen=True, eq=False)
class Items:
    """How threads share a list of objects: one names the items, then each has its own."""

    names: Automaton  # of a list of names
    form: Form  # of an item
    about: str  # for a prompt


def form_of(schema: Schema) -> Form:
    """The fields of a schema; a schema is refused within a second, but for its patterns (PATTERNS_S)."""
    try:
        text = json.dumps(schema, ensure_ascii=False)  # where a value is not a number, choices_of and others refuse it
        too_large = len(text.encode()) > MOST_BYTES
    except (TypeError, ValueError, RecursionError) as error:
        reason = "not valid Unicode" if isinstance(error, UnicodeEncodeError) else "no JSON"
        raise PastaError(f"the schema: {reason}; correct it") from None
    if too_large:
        raise PastaError(f"the schema: has more than {MOST_BYTES:,} bytes; shorten it")
    return _form(text)


@functools.lru_cache(maxsize=8)  # up to 32 MB each
def _form(text: str) -> Form:
    root = json.loads(text)
    form = _Reader(root).form(root)
    names = [leaf.name for leaf in form.leaves]
    if len(names) > len(set(names)):
        twice = next(name for name in names if names.count(name) > 1)
        raise PastaError(f"schema.{twice}: is the name of two fields; rename one")
    return form


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

    def __init__(self, root: Any, built: dict[str, Automaton] | None = None):
        """`built`: the automata of a schema of which this reads a list's items."""
        self._root, self._items_too, self._objects = root, built is None, 0
        self._built: dict[str, Automaton] = {} if built is None else built  # by the schema of the value
        self._patterns: list[float] = []  # seconds that each took
        self._leaves: list[Leaf] = []
        self._around = [""]

    def form(self, schema: Any, depth: int = 0, refs: frozenset[str] = frozenset()) -> Form:
        """All of it, or of a part."""
        self._read(schema, (), depth, refs)
        return Form(tuple(self._leaves), tuple(self._around))

    def _read(self, schema: Any, path: tuple[str, ...], depth: int, refs: frozenset[str], around: str = "") -> None:
        """`around`: what describes the objects around it. The root's own would be the same in every line."""
        place = ".".join(("schema", *path))
        schema, refs = self._resolved(schema, place, refs)
        _check_depth(depth, place)
        if schema.get("type") == "object" and not {"enum", "const"} & schema.keys():
            self._around[-1] += "{"
            self._objects += 1
            if path and (description := description_of(schema)):
                around += f" ({path[-1]}: {description})"
            for number, (name, one) in enumerate(_properties(schema, place).items()):
                self._around[-1] += f"{', ' if number else ''}{json.dumps(name, ensure_ascii=False)}: "
                if self._objects > MOST_OBJECTS or len(self._around[-1]) > MOST_BYTES:
                    raise PastaError(f"{place}: the schema has too many objects; ask for fewer at a time")
                self._read(one, (*path, name), depth + 1, refs, around)
            self._around[-1] += "}"
            return
        if len(self._leaves) == MOST_FIELDS:
            raise PastaError(f"{place}: the schema has more than {MOST_FIELDS} fields; ask for fewer at a time")
        automaton = self._value(schema, place, depth, refs)  # checks what `about_of` reads
        items = self._items(schema, depth, refs) if self._items_too else None
        about = about_of(schema, lambda one: self._resolved(one, place, frozenset())[0])
        self._leaves.append(Leaf(path, automaton, about + around, items))
        self._around.append("")

    def _items(self, schema: dict[str, Any], depth: int, refs: frozenset[str]) -> Items | None:
        """How a list of objects can be shared by threads; the list is known to be a valid schema."""
        if schema.get("type") != "array" or {"enum", "const"} & schema.keys():
            return None
        item = _Reader(self._root, self._built).form(schema["items"], depth + 1, refs)
        if len(item.leaves) < 2:
            return None
        names = listed(values.string(1, NAME), schema.get("minItems") or 0, schema.get("maxItems"))
        about = ", ".join(f"{leaf.name} ({leaf.about})" for leaf in item.leaves)
        return Items(names, item, described(f"array, first a short name of each item, then its {about}", schema))

    def _resolved(self, schema: Any, place: str, refs: frozenset[str]) -> tuple[dict[str, Any], frozenset[str]]:
        """The schema that a reference names."""
        while True:
            if not isinstance(schema, dict):
                raise PastaError(f"{place}: {shown(schema)} is no schema of a value; state its type")
            parts = schema.get("allOf")
            if isinstance(parts, list) and len(parts) == 1:
                schema = both(_object(parts[0], place), schema, "allOf", place)
                continue
            if "$ref" not in schema:
                return schema, refs
            name = str(schema["$ref"])
            if name in refs:
                raise PastaError(f"{place}: $ref {shown(name)}: refers to itself; no finite automaton accepts that")
            refs |= {name}
            found: Any = self._root
            for key in name.removeprefix("#").split("/")[1:] if name.startswith("#") else [None]:
                key = None if key is None else unquote(key).replace("~1", "/").replace("~0", "~")
                if isinstance(found, list) and key and key.isdecimal() and len(key) < 9 and int(key) < len(found):
                    found = found[int(key)]
                else:
                    found = found.get(key) if key and isinstance(found, dict) else None
            if not isinstance(found, dict):
                raise PastaError(f"{place}: $ref {shown(name)}: not in the schema; write #/$defs/NAME")
            schema = both(found, schema, "$ref", place)

    def _value(self, schema: Any, place: str, depth: int, refs: frozenset[str]) -> Automaton:
        """The automaton of a value's JSON text."""
        key = json.dumps(schema)
        if key in self._built:
            return self._built[key]
        schema, refs = self._resolved(schema, place, refs)
        _check_depth(depth, place)
        try:
            built = self._checked(schema, place, depth, refs)
        except PastaError as error:
            message = str(error)
            raise PastaError(message if message.startswith(place) else f"{place}: {message}") from None
        self._built[key] = built
        if sum(one.states for one in self._built.values()) > MOST_STATES:
            raise PastaError(f"{place}: the schema needs more than {MOST_STATES:,} states; ask for less at a time")
        return built

    def _checked(self, schema: dict[str, Any], place: str, depth: int, refs: frozenset[str]) -> Automaton:
        if choices := choices_of(schema):
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
                {**{k: v for k, v in schema.items() if k in KEYWORDS.get(kind, ())}, "type": kind} for kind in kinds
            ]
            _refuse_others(schema, {"type"}.union(*(KEYWORDS.get(kind, ()) for kind in kinds)))
            return either(*(self._value(one, place, depth + 1, refs) for one in one_of))
        if kinds is None:
            _refuse_others(schema, set().union(*KEYWORDS.values()))
        if not isinstance(kinds, str) or kinds not in KEYWORDS:
            raise PastaError(f"type: {shown(kinds)}; use one of {', '.join(KEYWORDS)}")
        _refuse_others(schema, {"type"} | KEYWORDS[kinds])
        match kinds:
            case "string":
                return self._string(schema)
            case "integer":
                return values.integer(*bounds_of(schema))
            case "number":
                return values.number()
            case "boolean":
                return values.choice([True, False])
            case "null":
                return values.choice([None])
            case "array":
                least, most = count_of(schema, "minItems") or 0, count_of(schema, "maxItems")
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

    def _string(self, schema: dict[str, Any]) -> Automaton:
        lengths = {"minLength", "maxLength"} & schema.keys()
        chosen = [name for name in ("pattern", "format") if name in schema]
        if len(chosen) + bool(lengths) > 1:
            others = ", ".join([*chosen[1:], *sorted(lengths)])
            raise PastaError(f"{chosen[0]}: not beside {others}; state all in pattern")
        if "pattern" in schema:
            if not isinstance(schema["pattern"], str):
                raise PastaError("pattern: must be text")
            if len(self._patterns) == MOST_PATTERNS:
                raise PastaError(f"the schema has more than {MOST_PATTERNS} patterns; ask for fewer at a time")
            automaton, seconds = values.matching(schema["pattern"])
            self._patterns.append(seconds)
            if sum(self._patterns) > PATTERNS_S:
                raise PastaError(f"the schema's patterns take more than {PATTERNS_S} s to compile; make them simpler")
            return automaton
        if "format" in schema:
            if schema["format"] not in list(values.FORMATS):
                raise PastaError(
                    f"format: {shown(schema['format'])}; use one of {', '.join(values.FORMATS)}, or a pattern"
                )
            return values.formatted(schema["format"])
        return values.string(count_of(schema, "minLength") or 0, count_of(schema, "maxLength"))


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
        raise PastaError(f"{place}: required {shown(missing[0])}: not among the properties; describe it there")
    return found


def _refuse_others(schema: dict[str, Any], known: set[str], place: str = "") -> None:
    if others := [name for name in schema if name not in known and name not in IGNORED]:
        raise PastaError(f"{f'{place}: ' if place else ''}{others[0]}: is not supported here; leave it out")


def _object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PastaError(f"{place}: {shown(value)} is no schema; write an object")
    return value


def _check_depth(depth: int, place: str) -> None:
    if depth > DEEPEST:
        raise PastaError(f"{place}: more than {DEEPEST} levels deep; flatten it")
