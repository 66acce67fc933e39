"""Data from outside as typed values: limits on sizes, then types and ranges; errors name the place and the fix."""

import contextlib
import json
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from pasta_jax.errors import PastaError

LARGEST_INT = 2**31 - 1  # arrays on devices hold int32

Count = Annotated[int, Meta(ge=0, le=LARGEST_INT)]
Positive = Annotated[int, Meta(ge=1, le=LARGEST_INT)]
Finite = Annotated[float, Meta(ge=-1e30, le=1e30)]  # neither infinite nor NaN, nor as float32
AtLeastZero = Annotated[float, Meta(ge=0, le=1e30)]
AboveZero = Annotated[float, Meta(gt=0, le=1e30)]
Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Momentum = Annotated[float, Meta(ge=0, lt=1)]
Seed = Annotated[int, Meta(ge=0, lt=2**32)]

Lanes = Annotated[int, Meta(ge=1, le=4096)]
Threads = Annotated[int, Meta(ge=1, le=1024)]  # of a request in one step
Widths = Annotated[tuple[Threads, ...], Meta(max_length=16)]  # each compiles a program
Slots = Annotated[int, Meta(ge=1, le=2**20)]
SlotsOrNone = Annotated[int, Meta(ge=0, le=2**20)]
Rounds = Annotated[int, Meta(ge=1, le=10_000)]  # of a measurement
Rows = Annotated[int, Meta(ge=1, le=2**16)]  # of a batch
Length = Annotated[int, Meta(ge=2, le=2**20)]  # tokens
Lengths = Annotated[tuple[Length, ...], Meta(min_length=1, max_length=16)]  # each compiles a program
Records = Annotated[int, Meta(ge=1, le=2**18)]  # held in memory
RecordsOrNone = Annotated[int, Meta(ge=0, le=2**18)]
WordLimits = tuple[Count, Count]  # fewest and most
Dimension = Annotated[int, Meta(ge=0, le=2**17)]  # of a model
Threading = Annotated[int, Meta(ge=1, le=1024)]  # requests to an endpoint at a time


Value = TypeVar("Value")

MIB = 1 << 20


@contextlib.contextmanager
def reading(path: Path, fix: str) -> Iterator[None]:
    """A block that reads a file; an error names it and the fix."""
    try:
        yield
    except (OSError, ValueError) as error:  # a ValueError: the path contains a NUL
        raise PastaError(f"{path}: {getattr(error, 'strerror', None) or error}; {fix}") from None


def read_bytes(path: Path, most: int, fix: str) -> bytes:
    """The content of a file of at most `most` bytes."""
    with reading(path, fix), path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise PastaError(f"{path}: has more than {most:,} bytes; {fix}")
    return content


def read_json(path: Path, cls: type[Value], most: int, fix: str) -> Value:
    """The one JSON value in a file, as a type."""
    return typed(parse_json(read_bytes(path, most, fix), str(path), fix), cls, str(path), fix)


def parse_json(content: bytes | str, name: str, fix: str, line: int | None = None) -> Any:
    """A JSON value; `name` stands for the text in errors, and `line` is its number if it is one of a file's lines."""
    place = name if line is None else f"{name}: line {line}"
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        value = json.loads(text)
        if "\\ud" in text.lower():  # an escaped half of a pair can neither be encoded nor printed
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise PastaError(f"{place}: byte {error.start + 1} is not UTF-8; {fix}") from None
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])
        raise PastaError(f"{place}: contains {half}, which is not valid Unicode; {fix}") from None
    except json.JSONDecodeError as error:
        at = f"{name}: line {error.lineno if line is None else line}"
        raise PastaError(f"{at}, column {error.colno}: not JSON: {error.msg}; {fix}") from None
    except RecursionError:
        raise PastaError(f"{place}: not JSON that can be read: nested too deeply; {fix}") from None
    except ValueError:
        raise PastaError(f"{place}: contains a number of thousands of digits; {fix}") from None
    return value


def require_unicode(text: str, name: str) -> None:
    """Refuse halves of pairs, which no tokenizer can read: a cut-off escape in JSON, or bytes of a file's name."""
    if re.search("[\ud800-\udfff]", text):
        raise PastaError(f"{name}: not valid Unicode; correct it")


def typed(value: Any, cls: type[Value], name: str, fix: str) -> Value:
    """Plain data as a type, for example a dataclass whose fields are annotated with ranges; other keys are ignored."""
    try:
        return msgspec.convert(value, cls)
    except msgspec.ValidationError as error:
        place, problem = located(error, cls)
        raise PastaError(f"{name}: {f'{place}: ' if place else ''}{problem}; {fix}") from None
    except PastaError as error:  # a dataclass's own check
        raise PastaError(f"{name}: {error}; {fix}") from None


def located(error: msgspec.ValidationError, cls: Any) -> tuple[str, str]:
    """The place in the data, such as `a.b[0]`, and what is wrong there."""
    message, _, place = str(error).partition(" - at `$")
    place = place.rstrip("`").removeprefix(".")
    for pattern, problem in (("missing required", "missing"), ("contains unknown", "unknown key")):
        if found := re.fullmatch(f"Object {pattern} field `(.+)`", message, re.DOTALL):
            return ".".join(filter(None, (place, found[1]))), problem
    if unknown := re.fullmatch("Invalid enum value (.*)", message, re.DOTALL):
        choices = dict.fromkeys(_choices(cls, re.findall(r"[^\W\d]\w*", place)))
        known = ", ".join(str(choice) or repr(choice) for choice in choices)
        return place, f"unknown value {unknown[1]}; choose from {known}"
    return place, message[:1].lower() + message[1:]


def _choices(hint: Any, keys: list[str]) -> Iterator[Any]:
    """The values of the Literal that some keys lead to, starting from a type."""
    if isinstance(hint, type):
        if keys and keys[0] in (hints := typing.get_type_hints(hint)):
            yield from _choices(hints[keys[0]], keys[1:])
    elif typing.get_origin(hint) is typing.Literal:
        yield from typing.get_args(hint)
    else:  # a union, sequence or mapping
        for inner in typing.get_args(hint):
            yield from _choices(inner, keys)
