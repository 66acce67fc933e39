"""Collect an annotator's answers to pairs; a run killed at any moment resumes and ends with the same answers.

Each answer is a line of progress.jsonl, appended as it arrives, in any order. The first line states everything that
the answers depend on, so that a folder is never continued by a different run. A pair that an annotator could not answer
for a reason that may pass has no line, so that the next run asks again.

Several processes share the pairs; the first one reads and writes the file.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from pasta_jax.data.pairs import Pair
from pasta_jax.errors import PastaError
from pasta_jax.files import fingerprints
from pasta_jax.files.atomic import JsonLines, json_line
from pasta_jax.files.validated import Count, parse_line
from pasta_jax.progress import Progress
from pasta_jax.runs import processes

PROGRESS = "progress.jsonl"


class Answer(TypedDict, total=False):
    """An annotator's answer to one pair: text, or program and evidence, or failure and detail."""

    text: str  # annotated with <async> and <sync/>
    program: str  # surface text in PASTA-LANG
    evidence: dict[str, object]  # measurements behind the program
    failure: str  # one of a few reasons, for counting
    detail: str


@dataclasses.dataclass(frozen=True)
class Unanswered:
    """A pair without an answer, for a reason that may pass; `reason` is one of a few, for counting."""

    reason: str
    detail: str


# From the numbers of unanswered pairs to answers, in any order; may set the note of the progress display.
Annotate = Callable[[list[int], Progress], Iterable[tuple[int, Answer | Unanswered]]]


def collect_answers(
    folder: Path, about: Mapping[str, object], pairs: Sequence[Pair], annotate: Annotate
) -> list[Answer | Unanswered]:
    """The annotator's answer to every pair, in order; answers that an earlier run left in `folder` are reused.

    `about` states everything that answers depend on; a folder begun with a different `about` is refused. All processes
    call it, and those after the first get no answers.
    """
    if not processes.is_first():
        missing = json.loads(processes.told(""))
        with Progress("annotating", len(processes.share(missing))) as progress:
            for _ in _shared(missing, annotate, progress):
                progress.add()
        return []
    path = folder / PROGRESS
    with JsonLines(path, exclusive=True) as file:
        header = {**about, "pairs": fingerprints.of_texts(pair.id for pair in pairs)}
        if not file.lines:
            file.append(header)
        elif file.lines[0] + b"\n" != json_line(header):
            changed = _first_change(file.lines[0], header)
            raise PastaError(f"{path}: belongs to a run with a different {changed}; use another --output or delete it")
        answers = _parse_answers(file.lines[1:], path, len(pairs))
        missing = [number for number in range(len(pairs)) if number not in answers]
        with Progress("annotating", len(pairs), len(answers)) as progress:
            unanswered: dict[int, Unanswered] = {}
            processes.told(json.dumps(missing))
            for number, answer, reason in _shared(missing, annotate, progress):
                if reason is not None:
                    unanswered[number] = reason
                    continue
                file.append([number, answer])
                answers[number] = json.loads(json_line(answer))  # as a resumed run reads it, key order included
                progress.add()
    if missing := len(pairs) - len(answers) - len(unanswered):
        raise PastaError(f"{folder}: {missing} pairs have no answer yet; rerun the command to resume")
    return [unanswered.get(number) or answers[number] for number in range(len(pairs))]


def _shared(
    missing: list[int], annotate: Annotate, progress: Progress
) -> Iterator[tuple[int, Answer | None, Unanswered | None]]:
    """The missing answers: in the first process all of them, in others those of their share."""

    def own() -> Iterator[tuple[int, Answer | None, Unanswered | None]]:
        share = list(processes.share(missing))
        for number, answer in annotate(share, progress) if share else ():
            yield (number, None, answer) if isinstance(answer, Unanswered) else (number, answer, None)

    return processes.gathered(own(), len(missing), tuple[int, Answer | None, Unanswered | None])


def _parse_answers(lines: Sequence[bytes], path: Path, count: int) -> dict[int, Answer]:
    """The answers in a progress file, by pair number."""
    answers = {}
    for line_number, line in enumerate(lines, start=2):
        fix = "delete that line to have it redone"
        number, answer = parse_line(line, tuple[Count, Answer], str(path), line_number, fix)
        kinds = [kind for kind in ("text", "program", "failure") if kind in answer]
        if number >= count or len(kinds) != 1 or ("program" in answer) != ("evidence" in answer):
            raise PastaError(f"{path}: line {line_number} is not an answer to one of {count} pairs; {fix}")
        answers[number] = answer
    return answers


def _first_change(line: bytes, header: Mapping[str, object]) -> str:
    """The first key in which the header of a progress file differs from `header`."""
    try:
        before = json.loads(line)
        return next(key for key in sorted({*header, *before}) if before.get(key) != header.get(key))
    except (ValueError, TypeError, AttributeError, StopIteration, RecursionError):
        return "file format"
