"""Config values as typed dataclasses: types, choices and ranges are checked in one place, and errors name the key."""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from ml_collections import ConfigDict

from pasta_jax.errors import PastaError
from pasta_jax.outside import located

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
        place, problem = located(error, cls)
        remedy = "; set it in the config file" if problem == "missing" else ""
        separator = "." if place and not place.startswith("[") else ""
        raise PastaError(f"{name}{separator}{place}: {problem}{remedy}") from None


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
