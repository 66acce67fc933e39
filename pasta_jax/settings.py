"""Config values as typed dataclasses: types, choices and ranges are checked in one place, errors name the key."""

import dataclasses
import typing
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from pasta_jax.errors import PastaError

Settings = TypeVar("Settings")


def read(config: Mapping, cls: type[Settings], name: str = "config") -> Settings:
    """The dataclass that a config describes; `name` begins the key in errors.

    Annotate fields to limit them: `Literal["sum", "mean"]`, `Annotated[int, msgspec.Meta(ge=1)]`.
    """
    plain = config.to_dict() if hasattr(config, "to_dict") else dict(config)
    _refuse_unknown(plain, cls, name)
    try:
        return msgspec.convert(plain, cls)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        raise PastaError(f"{name}{place.rstrip('`')}: {message[:1].lower()}{message[1:]}") from None


def _refuse_unknown(plain: Mapping, cls: type, name: str) -> None:
    """msgspec ignores keys that a dataclass lacks; a typo must not pass."""
    hints = typing.get_type_hints(cls)
    if unknown := sorted(plain.keys() - hints.keys()):
        raise PastaError(f"{name}.{unknown[0]}: unknown key; known keys are {', '.join(hints)}")
    for key, value in plain.items():
        if dataclasses.is_dataclass(hints[key]) and isinstance(value, Mapping):
            _refuse_unknown(value, hints[key], f"{name}.{key}")
