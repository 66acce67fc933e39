"""Files of other evaluations: AlpacaEval's outputs and annotations, MT-bench's answers.

AlpacaEval joins outputs to a reference by the exact text of the instruction, and wants one generator in a file and only
scalars in a row: traces stay in our own records.
"""

import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pasta_jax.errors import PastaError
from pasta_jax.evaluate.answers import SystemAnswer
from pasta_jax.files.validated import MIB, read_json
from pasta_jax.judges.verdicts import Annotation

MOST_BYTES = 256 * MIB
_FIX = "pass the annotations.json that alpaca_eval wrote"


@dataclasses.dataclass(frozen=True)
class WinRate:
    """Percent, as alpaca_eval's get_winrate has it."""

    generator: str
    reference: str
    judged: int  # rows with a preference
    win_rate: float
    standard_error: float
    length_ratio: float | None  # characters of our answers over characters of the reference's answers


def generator(system: str) -> str:
    """A system's name in files of other evaluations."""
    return f"pasta_jax-{system}"


def model_outputs(answers: Sequence[SystemAnswer], categories: Sequence[str], generator: str) -> list[dict[str, str]]:
    """The list that `alpaca_eval evaluate --model_outputs` and `--reference_outputs` read."""
    return [
        {"instruction": answer.prompt, "output": answer.text, "generator": generator, "dataset": category}
        for answer, category in zip(answers, categories, strict=True)
    ]


def read_annotations(path: Path) -> list[Annotation]:
    """The rows of an annotations.json."""
    rows = read_json(path, list[Annotation], most=MOST_BYTES, fix=_FIX)
    if not rows:
        raise PastaError(f"{path}: has no rows; {_FIX}")
    names = {(row.generator_1, row.generator_2) for row in rows}
    if len(names) > 1:
        raise PastaError(f"{path}: of several pairs of systems: {sorted(names)}; pass one pair's")
    return rows


def refuse_others(path: str, rows: Sequence[Annotation], answers: Mapping[str, Sequence[SystemAnswer]]) -> None:
    """Refuse annotations that name our systems but judged other answers than theirs: those of another evaluation."""
    texts = {(generator(system), answer.prompt): answer.text for system, own in answers.items() for answer in own}
    for number, row in enumerate(rows):
        for name, output in ((row.generator_1, row.output_1), (row.generator_2, row.output_2)):
            if texts.get((name, row.instruction), output) != output:
                raise PastaError(
                    f"{path}: row {number}: {name} answers {row.instruction[:40]!r} otherwise here; "
                    f"judge this workdir's model_outputs files again"
                )


def preference_for(annotation: Annotation) -> float | None:
    """From 0 (the reference's answer is better) to 1 (ours); None: not judged. AlpacaEval writes a draw as 0 or 1.5."""
    preference = annotation.preference
    if preference is None or math.isnan(preference):
        return None
    if not 0 <= preference <= 2:
        raise PastaError(f"annotations: preference {preference} of {annotation.instruction[:40]!r}: not from 0 to 2")
    return 0.5 if preference == 0 else preference - 1


def win_rate_of(rows: Sequence[Annotation]) -> WinRate:
    """The win rate in some annotations."""
    values = [value for value in map(preference_for, rows) if value is not None]
    if not values:
        raise PastaError("annotations: no row has a preference; judge again")
    mean = math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1))
    lengths = [sum(len(getattr(row, name)) for row in rows) for name in ("output_1", "output_2")]
    return WinRate(
        generator=rows[0].generator_2,
        reference=rows[0].generator_1,
        judged=len(values),
        win_rate=100 * mean,
        standard_error=100 * deviation / math.sqrt(len(values)),
        length_ratio=lengths[1] / lengths[0] if lengths[0] else None,
    )


def mt_bench_answers(turns: Sequence[Sequence[SystemAnswer]], ids: Sequence[int], model: str) -> list[dict[str, Any]]:
    """The lines of data/mt_bench/model_answer/MODEL.jsonl; `turns` are each question's answers, in order.

    Their time stamp is 0: equal answers give equal files.
    """
    lines = []
    for id, answers in sorted(zip(ids, turns, strict=True)):
        texts = [answer.text for answer in answers]
        digest = hashlib.sha256("\0".join([model, str(id), *texts]).encode()).hexdigest()[:22]
        choices = [{"index": 0, "turns": texts}]
        lines.append({"question_id": id, "answer_id": digest, "model_id": model, "choices": choices, "tstamp": 0.0})
    return lines
