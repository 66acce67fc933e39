"""Config files: each public function is a variant and returns the settings of a command; the first is the default."""

import dataclasses
import importlib.util
import inspect
import os
import typing
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, NoneType
from typing import Any

from ml_collections import ConfigDict, FieldReference

from pasta_jax.errors import PastaError


def load(name: str, root: Path = Path(), default: str = "configs/decode.py") -> tuple[ModuleType, Any]:
    """The module of a file, and the settings that the variant `name` names returns: `file.py:variant`, or `file.py`.

    A file that is not in the working directory is looked for in `root`. Errors show `default` as an example.
    """
    path, _, variant = os.path.expanduser(name).partition(":")
    path = path if Path(path).is_file() or not (root / path).is_file() else str(root / path)
    loader = SourceFileLoader("config", path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location("config", path, loader=loader))
    try:
        loader.exec_module(module)
    except (OSError, SyntaxError, ValueError) as error:  # a ValueError: the path contains a NUL
        example = f"{default}:{path}" if path.isidentifier() else default
        raise PastaError(f"--config: {error}; pass file.py:variant, as --config={example}") from None
    functions = variants(module)
    if not functions:
        raise PastaError(f"--config={name}: has no variant; add a function that returns settings, as {default} does")
    if variant not in ("", *functions):
        raise PastaError(f"--config={name}: unknown variant; choose one of {', '.join(functions)}")
    return module, functions[variant or next(iter(functions))]()


def variants(module: ModuleType) -> dict[str, Callable[[], Any]]:
    """The variants of a config file, in its order."""
    return {
        name: function
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
    }


def as_config(settings: Any) -> ConfigDict:
    """Settings as the flags of ml_collections take them: dataclasses are nested, optional fields keep their type."""
    hints = typing.get_type_hints(type(settings))
    fields = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    return ConfigDict({name: _value(value, hints[name]) for name, value in fields.items()})


def _value(value: Any, hint: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return as_config(value)
    kinds = [kind for kind in typing.get_args(hint) if kind is not NoneType]
    if NoneType in typing.get_args(hint) and not dataclasses.is_dataclass(kinds[0]):
        return FieldReference(value, field_type=kinds[0])
    return value
