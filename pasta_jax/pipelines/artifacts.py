"""Steps of a long run as files: each names what it was made from, is whole or absent, and is made once.

    FOLDER/sample-3f0c….jsonl       first a line that says what it was made from, then a record a line
    FOLDER/sample-3f0c….jsonl.part  the same while it grows; a killed run goes on from its last whole block

A step's name holds a hash of its settings and of what its inputs contain. So a step whose settings or inputs changed
is another file and made anew, and all others are found.
"""

import dataclasses
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pasta_jax.errors import PastaError


@dataclasses.dataclass(frozen=True)
class Made:
    """A finished step."""

    path: Path
    records: list[dict]
    fingerprint: str  # of its records


def fingerprint_of(value) -> str:
    """Of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Steps:
    """The folder that runs share."""

    folder: Path

    def place(self, step: str, settings: dict) -> Path:
        """Where a step with these settings lies; everything that decides its result must be in them."""
        return self.folder / f"{step}-{fingerprint_of(settings)}"

    def make(
        self, step: str, settings: dict, total: int, block: int, records: Callable[[int], Iterator[list[dict]]]
    ) -> Made:
        """The step's file, made or finished if it isn't there yet.

        `records(start)` yields the records from `start` on in lists of `block` (the last may be shorter); what is cut
        off in the middle of a list is made again, so that a killed run computes the same things together as any other.
        """
        path = self.place(step, settings).with_suffix(".jsonl")
        if path.exists():
            made = read(path)
            say(f"{step}: {len(made.records)} records are there, {path.name}")
            return made
        self.folder.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        head = json.dumps({"step": step, "made_from": settings}, ensure_ascii=False) + "\n"
        lines = whole_lines(part)
        kept = lines[1 : 1 + (len(lines) - 1) // block * block] if lines[:1] == [head] else []
        part.write_text("".join([head, *kept]), encoding="utf-8")
        progress = Progress(step, total, len(kept))
        with part.open("a", encoding="utf-8") as file:
            for few in records(len(kept)) if len(kept) < total else ():
                file.write("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in few))
                file.flush()
                progress.add(len(few))
        part.replace(path)
        return read(path)


def whole_lines(path: Path) -> list[str]:
    """The lines of a file that has perhaps been cut off."""
    if not path.exists():
        return []
    *whole, _ = path.read_bytes().split(b"\n")  # not splitlines, which also cuts at separators inside a text
    return [line.decode() + "\n" for line in whole]


def read(path: Path) -> Made:
    """A finished step's records."""
    records, digest = [], hashlib.sha256()
    with path.open("rb") as file:
        next(file, None)
        for number, line in enumerate(file, start=2):
            try:
                records.append(json.loads(line))
            except ValueError:
                raise PastaError(f"{path}: line {number} is not JSON; delete the file to make it again") from None
            digest.update(line)
    return Made(path, records, digest.hexdigest()[:16])


class Progress:
    """A line now and then: how far, how fast, how long yet."""

    def __init__(self, step: str, total: int, done: int):
        self.step, self.total, self.done, self.start = step, total, done, done
        self.began = self.told = time.monotonic()

    def add(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        if now - self.told > 5 or self.done == self.total:
            self.told = now
            rate = (self.done - self.start) / max(now - self.began, 1e-9)
            left = (self.total - self.done) / rate
            say(f"{self.step}: {self.done} of {self.total}, {rate:.1f} a second, {left:.0f} s left")


def write_whole(path: Path, text: str) -> None:
    """Write beside the name, then rename."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def say(line: str) -> None:
    """Progress, beside the result."""
    print(line, file=sys.stderr, flush=True)
