"""Steps of a long run as files: each records its inputs, is whole or absent, and is computed once.

    FOLDER/sample-3f0c….jsonl       first a line with the step's inputs, then one record per line
    FOLDER/sample-3f0c….jsonl.part  the same while it grows; a killed run resumes after its last whole block

A step's name contains a hash of its inputs: settings, and fingerprints of the files it reads. A step whose inputs
changed is computed again into another file; all others are reused.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from pasta_jax import files, fingerprints
from pasta_jax.errors import PastaError
from pasta_jax.progress import Progress, say

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
    ) -> Artifact[Record]:
        """Read the step's file, after computing or completing it if necessary.

        `inputs` is plain data and must contain everything that the result depends on. `compute(start)` yields the
        records from `start` on in lists of `block`; only the last list may be shorter. A list that was cut off is
        computed again as a whole, so that a resumed run groups its computations like an uninterrupted one.
        """
        path = self.path(step, inputs).with_suffix(".jsonl")
        if path.exists():
            artifact = read(path, cls)
            say(f"{step}: {len(artifact.records)} records read from {path.name}")
            return artifact
        head = json.dumps({"step": step, "made_from": inputs}, ensure_ascii=False)
        lines = [line.decode() for line in files.whole_lines(files.part_of(path))]
        done = (len(lines) - 1) // block * block if lines[:1] == [head] else 0
        with files.growing(path, [head, *lines[1 : 1 + done]]) as file, Progress(step, total, done) as progress:
            for records in compute(done) if done < total else ():
                file.writelines(json.dumps(dataclasses.asdict(r), ensure_ascii=False) + "\n" for r in records)
                file.flush()
                progress.add(len(records))
        return read(path, cls)


def read(path: Path, cls: type[Record]) -> Artifact[Record]:
    """A finished step's records."""
    _, *lines = path.read_bytes().removesuffix(b"\n").split(b"\n")  # splitlines would also split inside texts
    records = []
    for number, line in enumerate(lines, start=2):
        try:
            records.append(msgspec.convert(json.loads(line), cls))
        except msgspec.ValidationError as error:
            raise PastaError(f"{path}: line {number}: {error}; delete the file to compute it again") from None
        except ValueError:
            raise PastaError(f"{path}: line {number} is not JSON; delete the file to compute it again") from None
    return Artifact(path, records, fingerprints.of_bytes(line + b"\n" for line in lines))
