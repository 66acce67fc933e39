"""Keywords of JSON schemas: what each says, checked."""

import json
from collections.abc import Callable
from typing import Any

from pasta_jax.errors import PastaError

# Keywords without an effect on what is valid, or on what is written: all properties are, and no others.
IGNORED = {
    "$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples", "deprecated",
    "readOnly", "writeOnly", "required", "additionalProperties", "discriminator",
}  # fmt: skip
KEYWORDS = {
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "number": set(),
    "boolean": set(),
    "null": set(),
    "array": {"items", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties"},
}
# What formats look like, for a prompt: a model that copies "10 May 1815" can't go on after "10".
SHAPES = {"date": "YYYY-MM-DD", "time": "HH:MM:SSZ", "date-time": "YYYY-MM-DDTHH:MM:SSZ", "uuid": "UUID"}


def bounds_of(schema: dict[str, Any]) -> tuple[int | None, int | None]:
    """The least and the largest integer; None: no bound."""
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
                    raise PastaError(f"{name}: {shown(bound)}; must be a number of at most 18 digits")
                if bound != int(bound):
                    raise PastaError(f"{name}: {shown(bound)}; must be whole")
                bounds.append(int(bound) + step)
        found.append((max(bounds) if inward == 1 else min(bounds)) if bounds else None)
    return found[0], found[1]


def choices_of(schema: dict[str, Any]) -> list[Any]:
    """The values of `enum` or `const` that are of the `type` beside it; none: there is neither."""
    name = "const" if "const" in schema else "enum"
    if name not in schema:
        return []
    found = [schema["const"]] if name == "const" else schema["enum"]
    if not isinstance(found, list) or not found:
        raise PastaError("enum: must be a list of values")
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "const" in schema and "enum" in schema:
        found = [value for value in found if _among(value, schema["enum"])]
    try:
        json.dumps(found, allow_nan=False)
    except ValueError:
        raise PastaError(f"{name}: NaN and infinity are no JSON; leave them out") from None
    typed = [value for value in found if kinds == [None] or any(_is(value, kind) for kind in kinds)]
    if not typed:
        raise PastaError(f"{name}: no value is of the type beside it, {shown(schema.get('type'))}; correct one")
    return typed


def _among(value: Any, choices: Any) -> bool:
    """Whether JSON's values are equal: true is not 1."""
    texts_of = [json.dumps(choice, sort_keys=True) for choice in choices] if isinstance(choices, list) else []
    return json.dumps(value, sort_keys=True) in texts_of


def _is(value: Any, kind: Any) -> bool:
    """Whether a value has one of JSON Schema's types."""
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, int | float):
        return kind == "number" or (kind == "integer" and (isinstance(value, int) or value.is_integer()))
    return kind == {str: "string", type(None): "null", list: "array", dict: "object"}[type(value)]


def count_of(schema: dict[str, Any], name: str) -> int | None:
    """A keyword that counts; None: it is absent."""
    value = schema.get(name)
    if value is not None and (type(value) is not int or not 0 <= value <= 1 << 20):
        raise PastaError(f"{name}: {shown(value)}; must be a whole number from 0 to {1 << 20:,}")
    return value


def about_of(schema: dict[str, Any], resolved: Callable[[Any], dict[str, Any]]) -> str:
    """The type and description of a field, for a prompt."""
    return described(_kind(schema, resolved), schema)


def described(kind: str, schema: dict[str, Any]) -> str:
    """A type with the schema's description, if that is text: set apart from a listing, or it reads as one more part."""
    mark = ";" if "one of " in kind or kind.endswith(")") else ","
    return f"{kind}{mark} {description}" if (description := description_of(schema)) else kind


def description_of(schema: dict[str, Any]) -> str:
    """The schema's description, if that is text."""
    description = schema.get("description")
    return description if isinstance(description, str) else ""


def _kind(schema: dict[str, Any], resolved: Callable[[Any], dict[str, Any]]) -> str:
    """The type of a value, with what says more than its name: the items of a list, an object's described properties."""
    if "enum" in schema:
        choices = choices_of(schema)
        named = [one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in choices[:20]]
        return "one of " + ", ".join([*named, "…"] if len(choices) > 20 else named)
    if options := schema.get("anyOf") or schema.get("oneOf"):
        kinds = [about_of(resolved(one), resolved) for one in options]
        return (", or " if any("," in kind for kind in kinds) else " or ").join(kinds)
    kinds, shape = schema.get("type", "value"), schema.get("format")
    kind = kinds if isinstance(kinds, str) else " or ".join(kinds)
    if kind == "array" and "const" not in schema:
        inner = about_of(resolved(schema["items"]), resolved)
        return kind if inner in KEYWORDS else f"array of {inner}"
    if kind == "object" and _says_more(schema, resolved):
        properties = {name: about_of(resolved(one), resolved) for name, one in schema["properties"].items()}
        return "object with " + ", ".join(f"{name} ({about})" for name, about in properties.items())
    return f"{kind}, {SHAPES[shape]}" if shape in list(SHAPES) else kind


def _says_more(schema: dict[str, Any], resolved: Callable[[Any], dict[str, Any]]) -> bool:
    """Whether a part of a value has a description."""
    parts = [*schema.get("properties", {}).values(), *(schema.get("anyOf") or schema.get("oneOf") or [])]
    inner = [resolved(one) for one in (*parts, *([schema["items"]] if "items" in schema else []))]
    return any(description_of(one) or _says_more(one, resolved) for one in inner)


def both(one: dict[str, Any], other: dict[str, Any], key: str, place: str) -> dict[str, Any]:
    """A schema and what stands beside the `key` that names it, which must not disagree."""
    beside = {name: value for name, value in other.items() if name != key}
    for name in one.keys() & beside.keys() - IGNORED:
        if one[name] != beside[name]:
            raise PastaError(f"{place}: {name}: stated twice, also beside {key}; state it once")
    merged, required = one | beside, [*_list(one.get("required")), *_list(beside.get("required"))]
    return merged | {"required": required} if required else merged


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def shown(value: Any) -> str:
    """A value for a message."""
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= 60 else f"{text[:60]}…"
