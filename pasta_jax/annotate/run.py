"""A run of an annotator over pairs that may be killed at any moment and goes on; what comes out is the same.

Each answer of the annotator is a line of progress.jsonl, written as it comes, in any order. A line that a kill has cut
is dropped. The results are made of all answers, in the order of the pairs, and renamed into place when whole.
"""

import dataclasses
import fcntl
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from pasta_jax import fingerprints
from pasta_jax.annotate.statistics import panels_of, statistics
from pasta_jax.annotate.verify import Refusal
from pasta_jax.data.pairs import Bad, Pair
from pasta_jax.data.records import Record
from pasta_jax.errors import PastaError
from pasta_jax.view.histograms import chart

PROGRESS = "progress.jsonl"
RECORDS, REFUSED, SUMMARY = "records.jsonl", "refused.jsonl", "summary.json"
TABLE, CHART = "statistics.md", "chart.svg"
NO_ANSWER = "the annotator gave no answer"

Answer = dict  # what an annotator says of a pair, JSON-able: text, or program and evidence, or failure and detail


def run(
    folder: Path,
    about: dict,
    pairs: Sequence[Pair],
    annotate: Callable[[list[int]], Iterable[tuple[int, Answer]]],
    progress: Callable[[int, int], None],
) -> list[Answer]:
    """The annotator's answer to every pair, in order. `annotate` takes the numbers of pairs that are still to do.

    `about` says all that answers depend on: a folder that was begun with something else is refused.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / PROGRESS).open("a+b")
    except OSError as error:
        raise PastaError(f"{folder}: {error.strerror}; give an --output folder that you may write") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise PastaError(f"{folder}: another run is writing there; wait for it, or give another folder") from None
        about = about | {"pairs": fingerprints.of_texts(pair.id for pair in pairs)}
        answers = _taken_up(file, folder / PROGRESS, about, len(pairs))
        left = [number for number in range(len(pairs)) if number not in answers]
        progress(len(answers), len(pairs))
        for number, answer in annotate(left) if left else ():
            line = _line([number, answer])
            file.write(line)
            file.flush()
            answers[number] = json.loads(line)[1]  # as a later run will read it, down to the order of keys
            progress(len(answers), len(pairs))
        if missing := [number for number in left if number not in answers]:
            raise PastaError(f"{folder}: {len(missing)} pairs have no answer yet; run the same command again to go on")
    return [answers[number] for number in range(len(pairs))]


def _taken_up(file, path: Path, about: dict, count: int) -> dict[int, Answer]:
    """The answers that are there, the cut-off end of the file removed; or a new file begun."""
    file.seek(0)
    content = file.read()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        file.truncate(len(whole))
    file.seek(0, os.SEEK_END)
    if not whole:
        file.write(_line(about))
        file.flush()
        return {}
    first, *lines = whole.split(b"\n")[:-1]
    if first + b"\n" != _line(about):
        changed = _changed(first, about)
        raise PastaError(f"{path}: begun with another {changed}; give another --output folder, or delete this one")
    answers = {}
    for number, line in enumerate(lines, start=2):
        try:
            index, answer = json.loads(line)
            if not (isinstance(answer, dict) and 0 <= index < count):
                raise ValueError
        except (ValueError, TypeError):
            raise PastaError(f"{path}: line {number} is damaged; delete that line to have it made again") from None
        answers[index] = answer
    return answers


def _line(value) -> bytes:
    return json.dumps(value, ensure_ascii=True, sort_keys=True).encode() + b"\n"


def _changed(line: bytes, about: dict) -> str:
    """The first setting in which a progress file differs."""
    try:
        before = json.loads(line)
        return next(key for key in sorted(about | before) if before.get(key) != about.get(key))
    except (ValueError, TypeError, AttributeError, StopIteration):
        return "form of file"


@dataclasses.dataclass(frozen=True)
class Taken:
    """What was read and how much of it was left out, for the summary."""

    unreadable: list[Bad]
    left_out: Counter


def write_results(folder: Path, judged: Sequence[Record | Refusal], taken: Taken, about: dict) -> dict:
    """The files of a run, each whole or absent, the summary last; gives back the summary."""
    records = [item for item in judged if isinstance(item, Record)]
    refused = [item for item in judged if isinstance(item, Refusal)]
    bad = [Refusal("", "", item.place, item.reason, item.detail, "") for item in taken.unreadable]
    _write_lines(folder / RECORDS, (record.json() for record in records))
    _write_lines(folder / REFUSED, (item.json() for item in [*bad, *refused]))
    summary = about | {
        "read": len(judged) + len(taken.unreadable) + sum(taken.left_out.values()),
        "unreadable": dict(Counter(item.reason for item in taken.unreadable).most_common()),
        "left_out": dict(sorted(taken.left_out.items())),
        "annotated": len(judged),
        "kept": len(records),
        "kept_by_split": dict(sorted(Counter(record.split for record in records).items())),
        "refused": dict(Counter(item.reason for item in refused).most_common()),
    }
    if records:
        found = statistics(records)
        summary |= {"statistics": dataclasses.asdict(found)}
        _write_lines(folder / TABLE, found.table().splitlines())
        _write_lines(folder / CHART, [chart(panels_of(records)).rstrip("\n")])
    _write_lines(folder / SUMMARY, [json.dumps(summary, ensure_ascii=False, indent=1)])
    return summary


def _write_lines(path: Path, lines: Iterator[str] | Iterable[str]) -> None:
    """Written beside the name and renamed: a reader finds the old file or the whole new one."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("w", encoding="utf-8", newline="\n") as file:
            for line in lines:
                file.write(line + "\n")
        part.replace(path)
    except OSError as error:
        raise PastaError(f"{path}: {error.strerror}; give an --output folder that you may write") from None
