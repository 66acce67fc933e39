"""Config values as typed dataclasses: types, choices and ranges are checked in one place, and errors name the key."""

import dataclasses
import json
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from ml_collections import ConfigDict

from pasta_jax.errors import PastaError
from pasta_jax.files.atomic import write_json
from pasta_jax.files.validated import MIB, located, read_json

CONFIG = "config.json"
# Settings that may change when a run resumes: they don't change what it computes.
FREE = (
    *("every", "keep", "probe", "tensorboard", "mesh", "adapter.dtype", "defaults"),
    *("train.keep_products", "train.remat", "train.slice", "train.block", "train.accumulate"),  # memory and time
    *("training.save", "training.keep_products"),
)


def plain(settings: Any) -> dict[str, Any]:
    """Settings as JSON holds them."""
    return json.loads(json.dumps(dataclasses.asdict(settings)))


def write(workdir: Path, plain: dict[str, Any]) -> None:
    """Record the settings of a run, as plain data."""
    write_json(workdir / CONFIG, plain)


def refuse_other(workdir: Path, plain: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Refuse to resume a run with settings under which it would have computed something else.

    A setting that the run's file lacks did not exist then: it had its default.
    """
    path = workdir / CONFIG
    if not path.is_file():
        return
    fix = "use another workdir"
    try:
        earlier = flat(defaults) | flat(read_json(path, dict[str, Any], most=MIB, fix=fix))
    except RecursionError:
        raise PastaError(f"{path}: nested too deeply; {fix}") from None
    for name, value in flat(plain).items():
        if not {name, name.split(".")[0]} & set(FREE) and earlier.get(name) != value:
            raise PastaError(
                f"{workdir}: was started with config.{name} {earlier.get(name)}, now it is {value}; "
                "use another workdir, or the original command"
            )


def flat(plain: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by their dotted names."""
    values: dict[str, Any] = {}
    for name, value in plain.items():
        values |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return values


Settings = TypeVar("Settings")


def read(config: ConfigDict | Mapping[str, Any], cls: type[Settings], name: str = "config") -> Settings:
    """Convert a config to a dataclass with the same fields; errors start with `name` and the key.

    Annotate fields to limit them: `Literal["sum", "mean"]`, `Annotated[int, msgspec.Meta(ge=1)]`.
    """
    plain = config.to_dict() if isinstance(config, ConfigDict) else dict(config)
    # A seed that NumPy's generator drew is no int to msgspec.
    plain = {key: value.item() if isinstance(value, np.generic) else value for key, value in plain.items()}
    _refuse_unknown(plain, cls, name)
    try:
        return msgspec.convert(plain, cls)
    except msgspec.ValidationError as error:
        place, problem = located(error, cls)
        remedy = "; set it in the config file" if problem == "missing" else ""
        separator = "." if place and not place.startswith("[") else ""
        raise PastaError(f"{name}{separator}{place}: {problem}{remedy}") from None


def changed(settings: Settings, name: str = "config", /, **changes: Any) -> Settings:
    """Settings with other values, checked as by `read`: `changed(sft.toy(), strip_tags=True, train={"steps": 5})`.

    A mapping changes some values of the section that it names; `**{"train.steps": 5}` does too.
    """
    return read(_updated(dataclasses.asdict(settings), changes), type(settings), name)


def _updated(plain: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    values = dict(plain)
    for name, value in changes.items():
        first, _, rest = name.partition(".")
        part = {rest: value} if rest else value
        if dataclasses.is_dataclass(part):
            part = dataclasses.asdict(part)
        elif isinstance(part, Mapping) and isinstance(values.get(first), Mapping):
            part = _updated(values[first], part)
        values[first] = part
    return values


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
