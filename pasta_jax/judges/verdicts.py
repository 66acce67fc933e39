"""Published verdicts in alpaca_eval's format, and pairs of answers of which a judge preferred one.

A verdict compares a model's answer with a reference model's. Two models' answers to a question are compared by the
difference of their log-odds against the same reference: weak models lose nearly always, but not equally clearly.
"""

import dataclasses
import hashlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from pasta_jax.errors import PastaError
from pasta_jax.files.validated import MIB, read_json
from pasta_jax.progress import track

FILE = "annotations.json"
CERTAIN = 0.98  # a verdict without a probability counts as one of this
TERMS = "published verdicts of alpaca_eval; CC BY-NC 4.0"
FIX = "clone https://github.com/tatsu-lab/alpaca_eval and name its folder results"


@dataclasses.dataclass(frozen=True)
class Annotation:
    """The fields that are read of a verdict as alpaca_eval writes it."""

    instruction: str
    output_1: str  # the reference's
    output_2: str
    preference: float | None = None  # 1: output_1 is better, 2: output_2, or between them
    generator_1: str = ""
    generator_2: str = ""


@dataclasses.dataclass(frozen=True)
class Answered:
    """A model's answer, the reference's, and the log-odds that a judge prefers the model's."""

    judge: str
    model: str
    question: str
    text: str
    reference: str
    odds: float


@dataclasses.dataclass(frozen=True)
class JudgedAnswers:
    """Two answers to a question, and the log-odds that the first is the better one, which are positive."""

    question: str
    better: str
    worse: str
    odds: float

    @property
    def matched(self) -> bool:
        """Whether length can't have decided: within 15%."""
        shorter, longer = sorted((len(self.better), len(self.worse)))
        return longer <= 1.15 * shorter


def read(folder: Path, judges: Sequence[str]) -> list[Answered]:
    """The verdicts of some judges on all models under RESULTS/MODEL/JUDGE/annotations.json."""
    paths = sorted((judge, path) for judge in judges for path in folder.glob(f"*/{judge}/{FILE}"))
    if missing := [judge for judge in judges if judge not in dict(paths)]:
        raise PastaError(f"{folder}: no */{missing[0]}/{FILE}; {FIX}, as --config.verdicts=FOLDER/results")
    found = []
    for judge, path in track(paths, "reading verdicts", len(paths)):
        for one in read_json(path, list[Annotation], most=64 * MIB, fix=FIX):
            if one.preference is None or not 1 <= one.preference <= 2 or not one.output_2.strip():
                continue
            share = min(max(one.preference - 1, 1 - CERTAIN), CERTAIN)
            odds = math.log(share / (1 - share))
            found.append(Answered(judge, path.parts[-3], one.instruction, one.output_2, one.output_1, odds))
    return found


def fold_of(question: str, folds: int) -> int:
    """The fold that a question is in, whatever its case and whitespace: judges are trained on the others."""
    return int.from_bytes(_digest(" ".join(question.split()).casefold())[:8], "big") % folds


def some_of(names: Sequence[str], count: int) -> list[str]:
    """Some models or questions, by hash: alphabetical ones would resemble each other."""
    return sorted(sorted(set(names), key=_digest)[:count])


def weak(answers: Sequence[Answered], most: float) -> list[Answered]:
    """Those of models that win at most a share of their comparisons, by the same judge."""
    wins: dict[tuple[str, str], list[float]] = {}
    for one in answers:
        wins.setdefault((one.judge, one.model), []).append(1 / (1 + math.exp(-one.odds)))
    return [one for one in answers if np.mean(wins[one.judge, one.model]) <= most]


def pairs_of(answers: Sequence[Answered], count: int, matched: float, margin: float, seed: int) -> list[JudgedAnswers]:
    """Some pairs whose log-odds differ by at least `margin`; a share of them, if there are enough, of equal length."""
    rng = np.random.default_rng(seed)
    groups: dict[tuple[str, str, str], list[Answered]] = {}
    for one in answers:
        groups.setdefault((one.judge, one.question, one.reference), []).append(one)
    even, uneven = [], []
    for group in groups.values():
        for pair in _pairs(group, margin):
            (even if pair.matched else uneven).append(pair)
    wanted = round(count * matched)
    chosen = [(even, min(wanted, len(even))), (uneven, min(count - wanted, len(uneven)))]
    pairs = [some[n] for some, number in chosen for n in rng.choice(len(some), number, replace=False)]
    return [pairs[n] for n in rng.permutation(len(pairs))]


def _pairs(group: Sequence[Answered], margin: float) -> Iterator[JudgedAnswers]:
    ordered = sorted(group, key=lambda one: one.odds)
    for n, worse in enumerate(ordered):
        for better in reversed(ordered[n + 1 :]):
            if (odds := better.odds - worse.odds) < margin:
                break
            yield JudgedAnswers(worse.question, better.text, worse.text, odds)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
