"""Steps of a long run as files: each records its inputs, is whole or absent, and is computed once.

    FOLDER/sample-3f0c….jsonl       first a line with the step's inputs, then one record per line
    FOLDER/sample-3f0c….jsonl.part  the same while it grows; a killed run resumes after its last whole block

A step's name contains a hash of its inputs: settings, and fingerprints of the files it reads. A step whose inputs
changed is computed again into another file; all others are reused.

Several processes share the records of a step. The first one reads and writes the file, and tells the others what it
holds.
"""

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from pasta_jax.errors import PastaError
from pasta_jax.files import atomic, fingerprints
from pasta_jax.files.validated import MIB, parse_line, read_lines
from pasta_jax.progress import Progress, say
from pasta_jax.runs import processes

MOST_BYTES = 256 * MIB  # of a record: all answers to a prompt
_FIX = "delete the file to compute it again"
Record = TypeVar("Record")  # a dataclass of plain data
Compute = Callable[[Sequence[int]], Iterable[tuple[int, Record]]]


@dataclasses.dataclass(frozen=True)
class Artifact(Generic[Record]):
    """A finished step's file."""

    path: Path
    records: list[Record]
    fingerprint: str  # of the records


@dataclasses.dataclass(frozen=True)
class Artifacts:
    """The folder of a run's artifacts; several runs may share it."""

    folder: Path

    def path(self, step: str, inputs: dict[str, Any]) -> Path:
        """Where a step with these inputs is stored, without a suffix."""
        return self.folder / f"{step}-{fingerprints.of_data(inputs)}"

    def make(
        self,
        step: str,
        inputs: dict[str, Any],
        cls: type[Record],
        total: int,
        block: int,
        compute: Compute[Record],
        fits: Callable[[int, Record], bool] = lambda number, record: True,
        shared: bool = True,
    ) -> Artifact[Record]:
        """Read the step's file, after computing or completing it if necessary. All processes call it.

        `inputs` is plain data and must contain everything that the result depends on. `compute(numbers)` yields the
        records with these numbers, each after its number and in any order: those of a block, or this process's share
        of it. A block that was cut off is computed again as a whole, so that a resumed run groups its computations like
        an uninterrupted one. `fits(number, record)` checks a record that was read against other steps' files. What is
        not `shared`, the first process computes while the others wait.
        """
        path = self.path(step, inputs).with_suffix(".jsonl")
        share = processes.share(range(total)) if shared else range(total if processes.is_first() else 0)

        def records(done: int) -> Iterator[tuple[int, Record]]:
            """From number `done` on: in the first process all of them, in others those that it computes."""
            if done == total:
                return iter(())
            missing = (number for number in share if number >= done)
            own = (item for _, some in itertools.groupby(missing, lambda n: n // block) for item in compute([*some]))
            return processes.gathered(own, total - done, tuple[int, cls])

        if processes.is_first():
            artifact = _read_or_write(path, step, inputs, cls, total, block, records, fits)
            processes.told(msgspec.json.encode((artifact.records, artifact.fingerprint)).decode())
            return artifact
        for _ in records(int(processes.told(""))):
            pass
        return Artifact(path, *msgspec.json.decode(processes.told(""), type=tuple[list[cls], str]))


def _read_or_write(
    path: Path,
    step: str,
    inputs: dict[str, Any],
    cls: type[Record],
    total: int,
    block: int,
    records: Callable[[int], Iterator[tuple[int, Record]]],
    fits: Callable[[int, Record], bool],
) -> Artifact[Record]:
    """The step's file, completed if necessary; tells other processes how many records were there."""
    with atomic.alone(path):  # runs that share the folder may come to the same step at the same time
        if path.exists():
            artifact = read(path, cls, total, fits)
            say(f"{step}: {len(artifact.records)} records read from {path.name}")
            processes.told(str(total))
            return artifact
        head = json.dumps({"step": step, "made_from": inputs}, ensure_ascii=False)
        lines = _intact(atomic.part_of(path), head, cls, fits)
        done = len(lines) // block * block
        processes.told(str(done))
        with atomic.growing(path, [head, *lines[:done]]) as file, Progress(step, total, done) as progress:
            waiting: dict[int, Record] = {}  # for those with a lower number
            for number, record in records(done):
                waiting[number] = record
                while progress.done in waiting:
                    line = dataclasses.asdict(waiting.pop(progress.done))
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
                    file.flush()
                    progress.add()
        return read(path, cls, total, fits)


def read(path: Path, cls: type[Record], total: int, fits: Callable[[int, Record], bool]) -> Artifact[Record]:
    """A finished step's records."""
    records, lines = [], []
    for number, line in read_lines(path, MOST_BYTES, _FIX):
        if number > 1:
            records.append(_record(path, line, number, cls, fits))
            lines.append(line + b"\n")
    if len(records) != total:
        raise PastaError(f"{path}: has {len(records)} records, this step has {total}; {_FIX}")
    return Artifact(path, records, fingerprints.of_bytes(lines))


def _intact(part: Path, head: str, cls: type[Record], fits: Callable[[int, Record], bool]) -> list[str]:
    """The records at the beginning of a stopped step's file that can be used."""
    first, *lines = atomic.whole_lines(part) or [b""]
    intact = []
    if first == head.encode():
        with contextlib.suppress(PastaError):  # what follows a damaged line is computed again
            for number, line in enumerate(lines, start=2):
                _record(part, line, number, cls, fits)
                intact.append(line.decode())
    return intact


def _record(path: Path, line: bytes, number: int, cls: type[Record], fits: Callable[[int, Record], bool]) -> Record:
    record = parse_line(line, cls, str(path), number, _FIX)
    if not fits(number - 2, record):
        raise PastaError(f"{path}: line {number}: does not belong to this step's inputs; {_FIX}")
    return record
