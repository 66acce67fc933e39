"""Config values as typed dataclasses: types, choices and ranges are checked in one place, and errors name the key."""

import dataclasses
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec
from ml_collections import ConfigDict

from pasta_jax.errors import PastaError

Settings = TypeVar("Settings")


def read(config: ConfigDict | Mapping[str, Any], cls: type[Settings], name: str = "config") -> Settings:
    """Convert a config to a dataclass with the same fields; errors start with `name` and the key.

    Annotate fields to limit them: `Literal["sum", "mean"]`, `Annotated[int, msgspec.Meta(ge=1)]`.
    """
    plain = config.to_dict() if isinstance(config, ConfigDict) else dict(config)
    _refuse_unknown(plain, cls, name)
    try:
        return msgspec.convert(plain, cls)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        raise PastaError(_explain(message, place.rstrip("`"), cls, name)) from None


def _explain(message: str, place: str, cls: type, name: str) -> str:
    """msgspec's message with the key in front, and the choices where there are some."""
    if missing := re.fullmatch(r"Object missing required field `(\w+)`", message):
        return f"{name}{place}.{missing[1]}: missing; set it in the config file"
    if unknown := re.fullmatch("Invalid enum value (.*)", message):
        choices = dict.fromkeys(_choices(cls, re.findall(r"[^\W\d]\w*", place)))
        known = ", ".join(str(choice) or repr(choice) for choice in choices)
        return f"{name}{place}: unknown value {unknown[1]}; choose from {known}"
    return f"{name}{place}: {message[:1].lower()}{message[1:]}"


def _choices(hint: Any, keys: list[str]) -> Iterator[Any]:
    """The values of the Literal that some keys lead to, starting from a type."""
    if dataclasses.is_dataclass(hint):
        if keys and keys[0] in (hints := typing.get_type_hints(hint)):
            yield from _choices(hints[keys[0]], keys[1:])
    elif typing.get_origin(hint) is typing.Literal:
        yield from typing.get_args(hint)
    else:  # a union, sequence or mapping
        for inner in typing.get_args(hint):
            yield from _choices(inner, keys)


def _refuse_unknown(value: Any, hint: Any, name: str) -> None:
    """Refuse keys that a dataclass lacks, which msgspec would ignore: a typo must not pass."""
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        hints = typing.get_type_hints(hint)
        if unknown := sorted(value.keys() - hints.keys()):
            raise PastaError(f"{name}.{unknown[0]}: unknown key; known keys are {', '.join(hints)}")
        for key, part in value.items():
            _refuse_unknown(part, hints[key], f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            for inner in typing.get_args(hint):
                _refuse_unknown(part, inner, f"{name}[{number}]")
    else:
        for inner in typing.get_args(hint):  # of an optional
            _refuse_unknown(value, inner, name)
