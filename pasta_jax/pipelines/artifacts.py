"""Steps of a long run as files: each records its inputs, is whole or absent, and is computed once.

    FOLDER/sample-3f0c….jsonl       first a line with the step's inputs, then one record per line
    FOLDER/sample-3f0c….jsonl.part  the same while it grows; a killed run resumes after its last whole block

A step's name contains a hash of its inputs: settings, and fingerprints of the files it reads. A step whose inputs
changed is computed again into another file; all others are reused.
"""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from pasta_jax import files, fingerprints
from pasta_jax.errors import PastaError
from pasta_jax.outside import MIB, parse_line, read_lines
from pasta_jax.progress import Progress, say

MOST_BYTES = 256 * MIB  # of a record: all answers to a prompt
_FIX = "delete the file to compute it again"
Record = TypeVar("Record")  # a dataclass of plain data


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
        compute: Callable[[int], Iterator[Sequence[Record]]],
        fits: Callable[[int, Record], bool] = lambda number, record: True,
    ) -> Artifact[Record]:
        """Read the step's file, after computing or completing it if necessary.

        `inputs` is plain data and must contain everything that the result depends on. `compute(start)` yields the
        records from `start` on in lists of `block`; only the last list may be shorter. A list that was cut off is
        computed again as a whole, so that a resumed run groups its computations like an uninterrupted one.
        `fits(number, record)` checks a record that was read against other steps' files.
        """
        path = self.path(step, inputs).with_suffix(".jsonl")
        with files.alone(path):  # runs that share the folder may come to the same step at the same time
            if path.exists():
                artifact = read(path, cls, total, fits)
                say(f"{step}: {len(artifact.records)} records read from {path.name}")
                return artifact
            head = json.dumps({"step": step, "made_from": inputs}, ensure_ascii=False)
            lines = _intact(files.part_of(path), head, cls, fits)
            done = len(lines) // block * block
            with files.growing(path, [head, *lines[:done]]) as file, Progress(step, total, done) as progress:
                for records in compute(done) if done < total else ():
                    file.writelines(json.dumps(dataclasses.asdict(r), ensure_ascii=False) + "\n" for r in records)
                    file.flush()
                    progress.add(len(records))
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
    first, *lines = files.whole_lines(part) or [b""]
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
