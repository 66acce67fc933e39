"""Steps of a round as files: each records its inputs, is whole or absent, and is computed once.

    FOLDER/sample-3f0c….jsonl       first a line with the step's inputs, then one record per line
    FOLDER/sample-3f0c….jsonl.part  the same while it grows; a killed run resumes after its last whole block

A step's name contains a hash of its inputs: settings, and fingerprints of the files it reads. A step whose inputs
changed is computed again into another file; all others are reused.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic

from pasta_jax.errors import PastaError
from pasta_jax.files import fingerprints
from pasta_jax.files.atomic import write_whole
from pasta_jax.files.jsonl import parsed, whole_lines
from pasta_jax.files.lock import locked
from pasta_jax.files.remote import is_remote
from pasta_jax.progress import say
from pasta_jax.runs import processes, records
from pasta_jax.runs.records import Record, part_of

_FIX = "delete the file to compute it again"


@dataclasses.dataclass(frozen=True)
class Step(Generic[Record]):
    """What a step computes."""

    name: str
    inputs: dict[str, Any]  # plain data: everything that the result depends on
    record: type[Record]
    total: int  # records
    # Yields the records with some numbers, each after its number and in any order: a block, or this process's share.
    compute: Callable[[Sequence[int]], Iterable[tuple[int, Record]]]
    block: int = 1  # a block that was cut off is computed again as a whole, so that computations are grouped alike
    fits: Callable[[int, Record], bool] = lambda number, record: True  # checks what was read against other steps' files
    shared: bool = True  # by all processes; else the first one computes it, and the others wait


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

    def make(self, step: Step[Record]) -> Artifact[Record]:
        """Read the step's file, after computing or completing it if necessary. All processes call it."""
        path, first = self.path(step.name, step.inputs).with_suffix(".jsonl"), processes.is_first()
        with contextlib.ExitStack() as stack:
            if first and not is_remote(path):  # runs that share the folder may come to the same step at the same time
                stack.enter_context(locked(path.with_name(path.name + ".lock"), path, wait=True))
            is_there = processes.told(path.exists(), bool)
            if not is_there:
                _compute(path, step)
            artifact = read(path, step) if first else Artifact(path, [], "")
        if first and is_there:
            say(f"{step.name}: {step.total} records read from {path.name}")
        found = (artifact.records, artifact.fingerprint)
        return Artifact(path, *processes.told(found, tuple[list[step.record], str]))


def _compute(path: Path, step: Step[Record]) -> None:
    """Write the step's file; the first process goes on from what a stopped run left."""

    def in_blocks(numbers: Sequence[int]) -> Iterator[tuple[int, Record]]:
        for _, some in itertools.groupby(numbers, lambda number: number // step.block):
            yield from step.compute([*some])

    head, position = {"step": step.name, "made_from": step.inputs}, itertools.count()  # a record's number is its place
    with records.opened(part_of(path), head, step.record, lambda _: next(position), _FIX, mend=_FIX) as done:
        for number, record in done.known.items():
            _check(part_of(path), number, record, step)
        missing = range(processes.told(len(done.known) // step.block * step.block, int), step.total)
        if step.shared:
            every = processes.spread(missing, in_blocks, tuple[int, step.record])
        else:
            every = in_blocks(missing) if processes.is_first() else iter(())
        waiting: dict[int, Record] = {}  # for those with a lower number
        with records.progress(step.name, step.total, missing) as progress:
            for number, record in every:
                progress.add()
                waiting[number] = record
                while processes.is_first() and (written := len(done.known)) in waiting:
                    done.add(waiting.pop(written))
    if processes.is_first():
        write_whole(path, part_of(path).read_bytes())
        part_of(path).unlink()


def read(path: Path, step: Step[Record]) -> Artifact[Record]:
    """A finished step's records."""
    lines = whole_lines(path)[1:]
    found = list(parsed(lines, step.record, path, _FIX, first=2))
    if len(found) != step.total:
        raise PastaError(f"{path}: has {len(found)} records, this step has {step.total}; {_FIX}")
    for number, record in enumerate(found):
        _check(path, number, record, step)
    return Artifact(path, found, fingerprints.of_bytes(line + b"\n" for line in lines))


def _check(path: Path, number: int, record: Record, step: Step[Record]) -> None:
    if not step.fits(number, record):
        raise PastaError(f"{path}: line {number + 2}: does not belong to this step's inputs; {_FIX}")
