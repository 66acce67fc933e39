"""Records of a long computation, kept one by one in a file of JSON lines: a run killed at any moment goes on from them.

The first line of the file states everything that the records depend on; a run with another value is refused by its
name. Several processes share the computing. The first one reads and writes the file; what the others compute comes to
it as it is finished.
"""

import contextlib
import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from pasta_jax.errors import PastaError
from pasta_jax.files.atomic import is_special, naming_a_full_disk
from pasta_jax.files.jsonl import JsonLines, json_line, parsed
from pasta_jax.files.lock import locked
from pasta_jax.files.remote import is_remote
from pasta_jax.files.validated import MIB
from pasta_jax.progress import Progress
from pasta_jax.runs import processes

MOST_OF_HEADER = 4 * MIB
Record = TypeVar("Record")  # plain data: a dataclass, or a tuple of such
Key = Callable[[Record], Hashable]
Fits = Callable[[Record], bool]


def anything(record: Any) -> bool:
    """Any record belongs to the run."""
    return True


class Records(Generic[Record]):
    """The records so far by their key, in the order in which they were added. Only the first process has them."""

    def __init__(self, path: Path | None, lines: JsonLines | None, kind: type[Record], key: Key[Record]):
        """`lines` are those of the file at `path`, and None where nothing is kept."""
        self.path, self._lines, self._kind, self._key = path, lines, kind, key
        self.known: dict[Hashable, Record] = {}

    def missing(self, keys: Sequence[Hashable]) -> list[int]:
        """The numbers of the keys without a record. All processes call it."""
        return processes.told([number for number, key in enumerate(keys) if key not in self.known], list[int])

    def fill(self, missing: Sequence[int], compute: Callable[[Sequence[int]], Iterator[Record]]) -> Iterator[Record]:
        """Compute what is missing, and yield each record once it is kept; other processes yield their share."""
        for record in processes.spread(missing, compute, self._kind):
            if processes.is_first():
                self.add(record)
            yield record

    def add(self, record: Record) -> None:
        """Keep a record; it survives a kill from now on."""
        if self._lines is not None:
            line = self._lines.append(msgspec.to_builtins(record))
            record = msgspec.convert(json.loads(line), self._kind)  # as a resumed run reads it, order of keys included
        self.note(record)

    def note(self, record: Record) -> None:
        """Take a record that the file has."""
        self.known[self._key(record)] = record


def part_of(path: Path) -> Path:
    """Where the records of a file are until all of them are there."""
    return path.with_name(path.name + ".part")


def kept_beside(output: Path | None) -> Path | None:
    """Where the records of an output are meanwhile; None: there is none, or it is a device, a pipe, an open file."""
    return None if output is None or is_special(output) else part_of(output)


def progress(what: str, total: int, missing: Sequence[int]) -> Progress:
    """The display while the missing ones of `total` records are computed, or in other processes their share."""
    if processes.is_first():
        return Progress(what, total, total - len(missing))
    return Progress(what, len(processes.share(missing)))


@contextlib.contextmanager
def opened(
    path: Path | None,
    header: Mapping[str, Any],
    kind: type[Record],
    key: Key[Record],
    fix: str,
    fits: Fits[Record] = anything,
    mend: str = "delete that line to have it computed again",
) -> Iterator[Records[Record]]:
    """Yield the records of an earlier run, to add the others; they are kept in memory where `path` is None.

    `header` states everything that the records depend on; `fix` says what to do instead of changing it back, and `mend`
    what to do about a damaged line. A record that does not fit is refused, and so is a file that another process has
    open.
    """
    if path is None or not processes.is_first():
        yield Records(path, None, kind, key)
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(naming_a_full_disk(path))
        if not is_remote(path):
            stack.enter_context(locked(path.with_name(path.name + ".lock"), path, wait=False))
        if not _has_header_alone(path, header):  # of a run that was refused, perhaps for what has been corrected now
            refuse_other(path, _first_line(path), header, fix)  # before a last line is cut off
        else:
            path.unlink()
        lines = stack.enter_context(JsonLines(path))
        if not lines.lines:
            lines.append(header)
        records = Records(path, lines, kind, key)
        for number, record in enumerate(parsed(lines.lines[1:], kind, path, mend, first=2), start=2):
            if not fits(record):
                raise PastaError(f"{path}: line {number}: does not belong to this run; {mend}")
            records.note(record)
        yield records


def _first_line(path: Path) -> bytes:
    with contextlib.suppress(OSError), path.open("rb") as file:  # JsonLines names what is wrong with it
        return file.readline(MOST_OF_HEADER)
    return b""


def _has_header_alone(path: Path, header: Mapping[str, Any]) -> bool:
    """Whether a local file has only the first line of such records."""
    line = b"" if is_remote(path) else _first_line(path)
    try:
        return line.endswith(b"\n") and path.stat().st_size == len(line) and json.loads(line).keys() == {*header}
    except (ValueError, RecursionError, AttributeError):
        return False


def refuse_other(path: Path, line: bytes, header: Mapping[str, Any], fix: str) -> None:
    """Refuse records that depend on other values than those of `header`, and name the first that differs.

    A first line that a kill cut off is a beginning of the header's.
    """
    if json_line(header).startswith(line):
        return
    now, before = json.loads(json_line(header)), None
    with contextlib.suppress(ValueError, RecursionError):
        before = json.loads(line)
    if not isinstance(before, dict):
        raise PastaError(f"{path}: not the records of a stopped run; {fix}")
    for key in (*header, *before):
        if before.get(key) != now.get(key):
            begun = f"begun with {key}={before.get(key)}, now {now.get(key)}"
            raise PastaError(f"{path}: {begun}; change it back to resume, or {fix}")
