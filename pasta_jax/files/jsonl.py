"""Files of JSON lines: read with the place of each value, and appended so that a kill loses at most the last line."""

import codecs
import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from pasta_jax.errors import PastaError
from pasta_jax.files import remote
from pasta_jax.files.remote import is_remote
from pasta_jax.files.validated import MIB, parse_json, read_bytes, reading, typed

MOST_BYTES, MOST_BYTES_OF_LIST = 4 * MIB, 32 * MIB  # of a user's record; of a user's file with one JSON list
MOST_RECORDS = 2**20  # in a user's file
UPLOAD_S = 10.0  # a remote file lags at most this far behind; what it lacks is computed again
Value = TypeVar("Value")


def numbered_lines(path: Path, most: int) -> Iterator[tuple[int, bytes | None]]:
    """The number, from 1, and the bytes of each line; None for one of more than `most`, which is not kept in memory."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(most + 1):
            number += 1
            if len(line) <= most or line.endswith(b"\n"):
                yield number, line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                continue
            yield number, None
            while line and not line.endswith(b"\n"):
                line = file.readline(most)


def begins_list(path: Path) -> bool:
    """Whether a file holds one JSON list instead of JSON lines."""
    with path.open("rb") as file:
        return file.read(4096).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")


def read(path: Path, kind: type[Value], most: int, fix: str) -> Iterator[tuple[str, Value]]:
    """The place and value of each line that is not blank; a line may have `most` bytes."""
    numbered = ((number, line) for number, line in _strict_lines(path, most, fix) if line.strip())
    return _parsed(numbered, kind, path, fix)


def read_records(path: Path, kind: type[Value], fix: str) -> list[tuple[str, Value]]:
    """The place and value of each record in a user's file of JSON lines or of one JSON list; none is an error."""
    with reading(path, fix):
        is_list = begins_list(path)
    if is_list:
        rows = parse_json(read_bytes(path, MOST_BYTES_OF_LIST, fix), str(path), fix)
        places = ((f"{path}: record {number}", row) for number, row in enumerate(rows, start=1))
        records = ((place, typed(row, kind, place, fix)) for place, row in places)
    else:
        records = read(path, kind, MOST_BYTES, fix)
    found = list(itertools.islice(records, MOST_RECORDS + 1))
    if not found:
        raise PastaError(f"{path}: has no records; {fix}")
    if len(found) > MOST_RECORDS:
        raise PastaError(f"{path}: has more than {MOST_RECORDS:,} records; divide it")
    return found


def parsed(lines: Iterable[bytes], kind: type[Value], path: Path, fix: str, first: int = 1) -> Iterator[Value]:
    """The values of lines that have been read; `first` is the number of the first line."""
    return (value for _, value in _parsed(enumerate(lines, first), kind, path, fix))


def whole_lines(path: Path) -> list[bytes]:
    """The lines of a file, without line breaks or a last line that a kill cut off; empty if there is no file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    return content.split(b"\n")[:-1]  # splitlines would also split at separators inside a text


class JsonLines:
    """An append-only file with one JSON value per line. A last line that a kill cut off is removed on opening.

    Each line is handed to the operating system before `append` returns, so a killed process loses at most the line that
    it was writing. `lines` holds the lines of earlier runs, without line breaks.
    """

    def __init__(self, path: Path):
        if is_remote(path):
            self.lines = whole_lines(path)
            content = b"".join(line + b"\n" for line in self.lines)
            self._file: BinaryIO | remote.Growing = remote.Growing(path, content, UPLOAD_S)
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab")
        except OSError as error:
            raise PastaError(f"{path}: {error.strerror}; choose a writable folder") from None
        content = path.read_bytes()
        self.lines = content.split(b"\n")[:-1]
        if content[-1:] not in (b"", b"\n"):  # else nothing is cut off: another process may be appending
            self._file.truncate(content.rfind(b"\n") + 1)

    def append(self, value: object) -> bytes:
        """Write and return one line."""
        line = json_line(value)
        self._file.write(line)
        self._file.flush()
        return line

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> "JsonLines":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def json_line(value: object) -> bytes:
    """The line that `JsonLines` writes for a value; equal values give equal lines."""
    return json.dumps(value, ensure_ascii=True, sort_keys=True).encode() + b"\n"


def as_line(record: Any) -> str:
    """A dataclass on one line as people read it: fields in their order, characters as they are."""
    return json.dumps(dataclasses.asdict(record), ensure_ascii=False)


def _strict_lines(path: Path, most: int, fix: str) -> Iterator[tuple[int, bytes]]:
    """`numbered_lines`; errors name the place and the fix."""
    with reading(path, fix):
        for number, line in numbered_lines(path, most):
            if line is None:
                raise PastaError(f"{path}: line {number}: has more than {most:,} bytes; {fix}")
            yield number, line


def _parsed(numbered: Iterable[tuple[int, bytes]], kind: Any, path: Path, fix: str) -> Iterator[tuple[str, Any]]:
    for number, line in numbered:
        place = f"{path}: line {number}"
        yield place, typed(parse_json(line.removesuffix(b"\n"), str(path), fix, number), kind, place, fix)
