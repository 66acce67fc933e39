"""Mutate what a door reads and judge each outcome: it loads, or a PastaError states why in one line.

A door writes valid files to a folder and returns its inputs: how each is written, and read as the project does.
"""

import contextlib
import dataclasses
import gc
import io
import re
import resource
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pasta_jax.errors import PastaError
from tests.fuzz.mutations import Mutator, dumped, lines

LIMIT_S = 5  # of CPU time, so that a busy machine changes no outcome
LIMIT_BYTES = 2 << 30  # more than the valid file needs
LONGEST = 1100  # characters of a message
BROKEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")  # what no line on a terminal should hold


class Hang(BaseException):
    """A mutation took longer than LIMIT_S."""


@dataclasses.dataclass(frozen=True)
class Input:
    """A file from outside: bytes, a tree of JSON, or a list of JSON lines (a list in a file .json is a tree)."""

    path: Path
    valid: Any
    read: Callable[[], object]
    change: Callable[[Mutator, Any], Any] | None = None  # a mutation of this format; the general ones apply besides
    head: int = 0  # lines that are rarely changed, without which the others are not read

    def write(self, by: Mutator | None) -> None:
        """The valid file, or a mutation."""
        value, changed = self.valid, False
        if by is not None and self.change is not None and by.often(0.7):
            value, changed = self.change(by, value), True
        if isinstance(value, bytes):
            content = value if by is None or (changed and by.often(0.8)) else by.raw(value)
        elif isinstance(value, list) and self.path.suffix != ".json":
            content = lines(value) if by is None else by.lines(value, self.head)
        else:
            content = dumped(value) if by is None or (changed and by.often(0.8)) else by.json(value)
        self.path.write_bytes(content)


Door = Callable[[Path], list[Input]]


@dataclasses.dataclass
class Tally:
    """What the mutations of one door led to."""

    door: str
    mutations: int = 0
    loaded: int = 0
    refused: int = 0
    failures: list[str] = dataclasses.field(default_factory=list)  # number and reason
    slowest_s: float = 0.0
    memory: int = 0  # bytes beyond the valid file's

    def add(self, other: "Tally") -> None:
        """Count another batch."""
        for name in ("mutations", "loaded", "refused", "failures"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.slowest_s, self.memory = max(self.slowest_s, other.slowest_s), max(self.memory, other.memory)

    def text(self) -> str:
        """On one line."""
        return (
            f"{self.door:18} {self.mutations:7,} mutations: {self.loaded:6,} load, {self.refused:7,} refused, "
            f"{len(self.failures)} failures; slowest {self.slowest_s:.2f} s, memory +{self.memory >> 20} MiB"
        )


def fuzz(name: str, door: Door, seed: int, numbers: range, begin: Callable[[int], None] = lambda _: None) -> Tally:
    """Mutations `numbers` of a door; `begin` is called before each. The valid files must load."""
    tally = Tally(name)
    with tempfile.TemporaryDirectory() as folder, quiet():
        inputs = door(Path(folder))
        whole = {path: path.read_bytes() for path in files(folder)}
        for one in inputs:
            restore(folder, whole)
            one.write(None)
            one.read()
        gc.collect()
        peak = peak_bytes()
        with limited_memory():
            for number in numbers:
                begin(number)
                restore(folder, whole)
                by = Mutator(f"{seed}/{name}/{number}")
                one = by.choice(inputs)
                one.write(by)
                attempt(one.read, f"{seed}/{name}/{number}", tally)
        tally.memory = max(peak_bytes() - peak, 0)
    return tally


def files(folder: str) -> list[Path]:
    return [path for path in Path(folder).rglob("*") if path.is_file()]


def restore(folder: str, whole: dict[Path, bytes]) -> None:
    """Only the files that the door wrote itself, as it wrote them."""
    for path in files(folder):
        if path not in whole:
            path.unlink()
    for path, content in whole.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def attempt(read: Callable[[], object], label: str, tally: Tally) -> None:
    """Read one mutation."""
    tally.mutations += 1
    began = time.process_time()
    try:
        with alarm():
            read()
        tally.loaded += 1
    except PastaError as error:
        tally.refused += 1
        message = str(error)
        if not message or len(message) > LONGEST or BROKEN.search(message):
            tally.failures.append(f"{label}: not one line: {message[:200]!r}")
    except Hang:
        tally.failures.append(f"{label}: longer than {LIMIT_S} s")
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = next((f"{Path(f.filename).name}:{f.lineno}" for f in frames[::-1] if "pasta_jax" in f.filename), "?")
        tally.failures.append(f"{label}: {type(error).__name__} at {place}: {str(error)[:150]!r}")
    tally.slowest_s = max(tally.slowest_s, time.process_time() - began)


@contextlib.contextmanager
def alarm() -> Iterator[None]:
    """Raise Hang in a block that takes too long."""

    def ring(*_: object) -> None:
        raise Hang

    former = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, former)


@contextlib.contextmanager
def limited_memory() -> Iterator[None]:
    """Let the process map LIMIT_BYTES more than it does now."""
    former = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(re.search(r"VmSize:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) << 10
    resource.setrlimit(resource.RLIMIT_AS, (mapped + LIMIT_BYTES, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, former)


def peak_bytes() -> int:
    """The most memory that this process has used."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No output and no warnings."""
    out, err = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    with out, err, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
