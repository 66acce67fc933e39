"""The text of --help: what a command does, its flags, its config's variants, and its settings with their comments."""

import dataclasses
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from absl import flags

from pasta_jax.command import configs

WIDTH = 110
LEFT = 34  # columns of flags, variants and keys; their explanation follows


def text(usage: str, summary: str, options: Iterable[flags.Flag], module: ModuleType, settings: Any) -> str:
    """All of it. `settings` are what a variant of the config file `module` returned."""
    path = Path(module.__file__ or "")
    name = f"configs/{path.name}" if path.parent.name == "configs" else str(path)
    variants = configs.variants(module).items()
    parts = {
        f"usage: {usage}": [summary.strip()],
        f"From {name}:": ["", textwrap.indent((module.__doc__ or "").strip(), "  ")],
        "flags:": [_row(_signature(flag), _explanation(flag)) for flag in options],
        f"variants (--config={name}:VARIANT):": [_row(name, _first_line(function)) for name, function in variants],
        "keys (--config.KEY=VALUE, in quotes if VALUE has brackets or blanks), with this variant's values:": [
            _row(*key) for key in _keys(settings)
        ],
    }
    return "\n\n".join("\n".join([head, *lines]) for head, lines in parts.items())


def _row(left: str, right: str) -> str:
    """Two columns; the right one is wrapped, and starts on the next line if the left one is too long."""
    first = f"  {left}".ljust(LEFT)
    if not right:
        return first.rstrip()
    if not first.endswith(" "):
        return f"{first}\n" + textwrap.fill(right, WIDTH, initial_indent=" " * LEFT, subsequent_indent=" " * LEFT)
    return textwrap.fill(right, WIDTH, initial_indent=first, subsequent_indent=" " * LEFT)


def _signature(flag: flags.Flag) -> str:
    """A flag as it is typed."""
    if flag.boolean:
        return f"--[no]{flag.name}"
    if isinstance(flag, flags.EnumFlag):
        return f"--{flag.name}={'|'.join(flag.parser.enum_values)}"
    word = "N" if flag.flag_type() == "int" else flag.name.split("_")[-1].upper()
    return f"--{flag.name}={word}"


def _explanation(flag: flags.Flag) -> str:
    """A flag's help and its default, unless it is off or empty."""
    explanation = str(flag.help).rpartition(">: ")[2]  # without the choices, which absl puts before
    return explanation if flag.default in (None, False, "") else f"{explanation} [{flag.default}]"


def _first_line(documented: Any) -> str:
    return (documented.__doc__ or "").partition("\n")[0]


def _keys(settings: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(dotted key with its value, comment) of every field; sections have a row with a comment or their docstring."""
    from simple_parsing.docstring import get_attribute_docstring  # slow to import

    for field in dataclasses.fields(settings):
        key, value = f"{prefix}{field.name}", getattr(settings, field.name)
        found = get_attribute_docstring(type(settings), field.name)
        comment = " ".join(f"{found.comment_above} {found.comment_inline}".split())
        if dataclasses.is_dataclass(value):
            yield f"{key}.*", comment or _first_line(type(value))
            yield from _keys(value, f"{key}.")
        else:
            shown = repr(value) if value == "" or "\n" in str(value) else value
            yield f"{key}={shown}", comment
