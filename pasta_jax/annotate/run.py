"""Collect an annotator's answers to pairs; a run killed at any moment resumes and ends with the same answers.

Each answer is a line of progress.jsonl, appended as it arrives, in any order. A pair that an annotator could not answer
for a reason that may pass has no line, so that the next run asks again.
"""

import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from pasta_jax.data.pairs import Pair
from pasta_jax.errors import PastaError
from pasta_jax.files import fingerprints
from pasta_jax.files.validated import Count
from pasta_jax.progress import Progress
from pasta_jax.runs import processes, records

PROGRESS = "progress.jsonl"


class Annotation(TypedDict, total=False):
    """An annotator's answer to one pair: text, or program and evidence, or failure and detail."""

    text: str  # annotated with <async> and <sync/>
    program: str  # surface text in PASTA-LANG
    evidence: dict[str, object]  # measurements behind the program
    failure: str  # one of a few reasons, for counting
    detail: str
    refused: str  # the text that failed


@dataclasses.dataclass(frozen=True)
class Unanswered:
    """A pair without an answer, for a reason that may pass; `reason` is one of a few, for counting."""

    reason: str
    detail: str


# From the numbers of unanswered pairs to answers, in any order; may set the note of the progress display.
Annotate = Callable[[list[int], Progress], Iterable[tuple[int, Annotation | Unanswered]]]
Line = tuple[Count, Annotation]  # of the file
Outcome = tuple[int, Annotation | None, Unanswered | None]


def collect_answers(
    folder: Path, about: Mapping[str, object], pairs: Sequence[Pair], annotate: Annotate
) -> list[Annotation | Unanswered]:
    """The annotator's answer to every pair, in order; answers that an earlier run left in `folder` are reused.

    `about` states everything that answers depend on; a folder begun with a different `about` is refused. All processes
    call it, and those after the first get no answers.
    """
    header = {**about, "pairs": fingerprints.of_texts(pair.id for pair in pairs)}
    unanswered: dict[int, Unanswered] = {}

    def fits(line: Line) -> bool:
        number, answer = line
        kinds = [kind for kind in ("text", "program", "failure") if kind in answer]
        return number < len(pairs) and len(kinds) == 1 and ("program" in answer) == ("evidence" in answer)

    def compute(numbers: Sequence[int]) -> Iterator[Outcome]:
        for number, answer in annotate(list(numbers), progress):
            yield (number, None, answer) if isinstance(answer, Unanswered) else (number, answer, None)

    fix = "use another --output, or delete the file"
    with records.opened(folder / PROGRESS, header, Line, operator.itemgetter(0), fix, fits) as done:
        missing = done.missing(range(len(pairs)))
        with records.progress("annotating", len(pairs), missing) as progress:
            for number, answer, reason in processes.spread(missing, compute, Outcome):
                if reason is not None:
                    unanswered[number] = reason
                    continue
                progress.add()
                if processes.is_first():
                    done.add((number, answer))
    if not processes.is_first():
        return []
    if left := len(pairs) - len(done.known) - len(unanswered):
        raise PastaError(f"{folder}: {left} pairs have no answer yet; rerun the command to resume")
    return [unanswered.get(number) or done.known[number][1] for number in range(len(pairs))]
