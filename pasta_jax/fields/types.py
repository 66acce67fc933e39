"""JSON Schema of what `fill` accepts: Python types, mappings of names to them, pydantic models, or a schema itself."""

import re
import typing
from collections.abc import Mapping
from typing import Any

import msgspec

from pasta_jax.errors import PastaError
from pasta_jax.fields.schema import Schema

_MARKS = {"type", "properties", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"}


def schema_of(fields: Any) -> Schema:
    """JSON Schema of what `fill` accepts: a type, a pydantic model, a mapping of names to types, or a schema."""
    if isinstance(fields, Mapping):
        if _MARKS & fields.keys() and all(not isinstance(value, type) for value in fields.values()):
            return fields
        return {"type": "object", "properties": {name: schema_of(field) for name, field in fields.items()}}
    if isinstance(fields, str):
        return {"type": "string", "description": fields}
    if isinstance(fields, re.Pattern):
        if fields.flags != re.UNICODE:
            raise PastaError(f"fields: {fields!r}: flags have no place in a schema; write them into the expression")
        return {"type": "string", "pattern": fields.pattern}
    if hasattr(fields, "model_json_schema"):  # pydantic's, which this package doesn't import
        return fields.model_json_schema()
    if typing.is_typeddict(fields):  # msgspec doesn't keep their order
        return schema_of(typing.get_type_hints(fields, include_extras=True))
    try:
        return msgspec.json.schema(fields)
    except (TypeError, RecursionError) as error:
        raise PastaError(f"fields: {fields!r}: no type with a JSON schema ({error}); use another one") from None
