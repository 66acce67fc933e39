"""The answers to a file of prompts on disk; a run that was killed at any moment resumes with the answers it has.

OUTPUT.part   first a line with what answers depend on, then one record per line, in the order they were finished
OUTPUT        the records in the order of the prompts, whole or absent
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from pasta_jax.errors import PastaError
from pasta_jax.files import JsonLines, disk_is_full, json_line, part_of
from pasta_jax.pipelines.decode_record import Record, write_records
from pasta_jax.pipelines.prompts import Prompt


class AnswersFile:
    """The answers so far, by the number of their prompt."""

    def __init__(self, lines: JsonLines, records: dict[int, Record]):
        self._lines = lines
        self.records = records

    def add(self, record: Record) -> None:
        """Keep an answer; it survives a kill from now on."""
        self._lines.append(msgspec.to_builtins(record))
        self.records[record.index] = record


@contextlib.contextmanager
def answers_file(path: Path, about: Mapping[str, object], prompts: Sequence[Prompt]) -> Iterator[AnswersFile]:
    """Yield the answers that an earlier run left, to add the others; `path` is written when the block succeeds.

    `about` is flat and states everything that answers depend on: answers of a run with another value are refused.
    """
    part = part_of(path)
    try:
        with JsonLines(part, exclusive=True) as lines:
            if lines.lines:
                _check_header(part, lines.lines[0], about)
            else:
                lines.append(about)
            answers = AnswersFile(lines, _records(part, lines.lines[1:], prompts))
            yield answers
            write_records(path, [answers.records[number] for number in range(len(prompts))])
            part.unlink()
    except OSError as error:
        if not disk_is_full(error):
            raise
        raise PastaError(f"{part}: the disk is full; free some space and rerun the command to resume") from None


def _check_header(part: Path, line: bytes, about: Mapping[str, object]) -> None:
    """Refuse answers that depend on other values, and name the first of them."""
    if line + b"\n" == json_line(about):
        return
    try:
        before = msgspec.json.decode(line, type=dict[str, str | int | float | bool | None])
        key = next(key for key in (*about, *before) if key not in before or before[key] != about.get(key))
        begun = f"begun with {key}={before.get(key)}, now {about.get(key)}"
    except (ValueError, StopIteration, RecursionError):
        begun = "not the answers of a stopped run"
    raise PastaError(f"{part}: {begun}; change it back to resume, choose another --output, or delete the file")


def _records(part: Path, lines: Sequence[bytes], prompts: Sequence[Prompt]) -> dict[int, Record]:
    records = {}
    for number, line in enumerate(lines, start=2):
        try:
            record = msgspec.json.decode(line, type=Record)
            if not (0 <= record.index < len(prompts) and prompts[record.index].text == record.prompt):
                raise ValueError
        except (ValueError, RecursionError):  # msgspec's errors are among the former
            raise PastaError(f"{part}: line {number} is damaged; delete that line to have it answered again") from None
        records[record.index] = record
    return records
