"""JSON Schema of what `fill` accepts: Python types, mappings of names to them, pydantic models, or a schema itself."""

import datetime
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from pasta_jax.errors import PastaError, brief
from pasta_jax.fields.keywords import IGNORED, KEYWORDS
from pasta_jax.fields.schema import Schema


def _are_types(value: Any) -> bool:
    kinds = value if isinstance(value, list) else [value]
    return all(isinstance(kind, str) and kind in KEYWORDS for kind in kinds)


# What makes a mapping a schema, and what it must be there: a field may have the same name.
_MARKS: dict[str, Callable[[Any], bool]] = {
    "type": _are_types,
    "properties": lambda value: isinstance(value, Mapping),
    "$ref": lambda value: isinstance(value, str),
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "enum"), lambda value: isinstance(value, list)),
    "const": lambda value: True,
}
_MAY_BE_FIELDS = {"properties", "const"}  # whose marks alone don't tell a schema from fields of these names
_KNOWN = IGNORED.union(_MARKS, *KEYWORDS.values())
# With a time zone, as formats have them; to msgspec, those that may lack it are any text.
_TIMES = {datetime.datetime: "date-time", datetime.time: "time"}
_JSON = (str, int, float, type(None), list, Mapping)


def schema_of(fields: Any) -> Schema:
    """JSON Schema of what `fill` accepts: a type, a pydantic model, a mapping of names to types, or a schema."""
    if fields is None:
        raise PastaError("fields: None; pass names and types, as {'name': str}, or a schema")
    try:
        return _schema(fields)
    except RecursionError:
        raise PastaError("fields: too deep, or within itself; flatten it") from None


def _schema(fields: Any) -> Schema:
    if isinstance(fields, Mapping):
        return fields if _is_schema(fields) else _object(fields)
    if isinstance(fields, str):
        return {"type": "string", "description": fields}
    if isinstance(fields, re.Pattern):
        if fields.flags != re.UNICODE:
            raise PastaError(f"fields: {fields!r}: flags have no place in a schema; write them into the expression")
        return {"type": "string", "pattern": fields.pattern}
    for kind, name in _TIMES.items():
        if fields is kind:
            return {"type": "string", "format": name}
    if typing.get_origin(fields) in (typing.Required, typing.NotRequired):  # of a TypedDict: all keys are written
        return _schema(typing.get_args(fields)[0])
    try:
        parts = list(_parts(fields, set()))
        if any(map(_is_pydantic, parts)):  # this package doesn't import it
            return sys.modules["pydantic"].TypeAdapter(fields).json_schema()
        if _is_typed_dict(fields):
            return _object(typing.get_type_hints(fields, include_extras=True))
        _refuse_unread(parts)
        return _in_order(fields, parts)
    except (TypeError, NameError, RuntimeError) as error:
        if isinstance(error, RecursionError):
            raise
        raise PastaError(f"fields: {fields!r}: no type with a JSON schema ({brief(error)}); use another one") from None


def _is_schema(fields: Mapping[str, Any]) -> bool:
    marks = _MARKS.keys() & fields.keys()
    fit = all(_MARKS[mark](fields[mark]) for mark in marks)
    if not (marks and fit and all(isinstance(value, _JSON) for value in fields.values())):
        return False
    if marks - _MAY_BE_FIELDS:
        return True
    inner = fields.get("properties", {}).values()
    return fields.keys() <= _KNOWN and all(isinstance(one, Mapping) and _is_schema(one) for one in inner)


def _object(fields: Mapping[str, Any]) -> Schema:
    if unnamed := [name for name in fields if not isinstance(name, str)]:
        raise PastaError(f"fields: {unnamed[0]!r}: no name; name fields by texts")
    return {"type": "object", "properties": {name: _moved(_schema(one), name) for name, one in fields.items()}}


def _moved(schema: Any, name: str) -> Any:
    """The schema as that of a property: references from its root begin with the place where it is now."""
    if isinstance(schema, list):
        return [_moved(one, name) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved = {key: _moved(one, name) for key, one in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        place = name.replace("~", "~0").replace("/", "~1")
        moved["$ref"] = f"#/properties/{place}{reference[1:]}"
    return moved


def _parts(kind: Any, seen: set[type]) -> Iterator[Any]:
    """A type and those that it is made of; not those of pydantic's, which reads them itself."""
    yield kind
    named = getattr(kind, "__value__", getattr(kind, "__supertype__", None))  # of an alias
    inner = [typing.get_origin(kind), named, *typing.get_args(kind)]
    if isinstance(kind, type) and kind not in seen and not _is_pydantic(kind):
        seen.add(kind)
        inner += typing.get_type_hints(kind, include_extras=True).values()
    for one in inner:
        if one is not None:
            yield from _parts(one, seen)


def _is_typed_dict(kind: Any) -> bool:
    """Whether it is one, also of typing_extensions."""
    return isinstance(kind, type) and hasattr(kind, "__total__") and hasattr(kind, "__required_keys__")


def _in_order(fields: Any, parts: list[Any]) -> Schema:
    """The schema, with the keys of each TypedDict among its parts as that states them: msgspec sorts them."""
    generic = {typing.get_origin(part) for part in parts}  # by themselves, with variables, these are no types of fields
    dicts = [part for part in parts if _is_typed_dict(typing.get_origin(part) or part) and part not in generic]
    try:
        (schema, *references), defined = msgspec.json.schema_components([fields, *dicts], ref_template="#/$defs/{name}")
    except KeyError as error:  # msgspec finds definitions by the names of types
        raise PastaError(f"fields: {error}: another type has its name; rename one") from None
    for part, reference in zip(dicts, references, strict=True):
        one = defined[reference["$ref"].removeprefix("#/$defs/")]
        names = typing.get_type_hints(typing.get_origin(part) or part)
        if names.keys() == one["properties"].keys():
            one["properties"] = {name: one["properties"][name] for name in names}
    return schema | ({"$defs": defined} if defined else {})


def _is_pydantic(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "__pydantic_core_schema__")


def _refuse_unread(parts: list[Any]) -> None:
    """Refuse open times, and what Annotated says to another reader, as pydantic's bounds do outside its models."""
    zoned: list[Any] = []
    for part in parts:
        for said in getattr(part, "__metadata__", ()):
            if not isinstance(said, msgspec.Meta):
                raise PastaError(f"fields: {said!r}: is not read in Annotated; write msgspec.Meta, or a pydantic model")
            zoned += [part.__origin__] * bool(said.tz)
    for kind in _TIMES:
        if parts.count(kind) > zoned.count(kind):  # what is annotated is a part of its own too
            name = f"datetime.{kind.__name__}"
            raise PastaError(f"fields: {name}: write Annotated[{name}, msgspec.Meta(tz=True)] within another type")
