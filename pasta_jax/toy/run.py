"""Measure a trained model on the toy task: exactness, and theoretical speedup over its baseline."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from pasta_jax.decode.request import template
from pasta_jax.errors import PastaError
from pasta_jax.files import atomic
from pasta_jax.models.sharding import decoding_mesh
from pasta_jax.toy import exactness
from pasta_jax.toy.exactness import GradedAnswer, shown
from pasta_jax.toy.level import refuse_other_level
from pasta_jax.toy.settings import ToyEvaluationSettings
from pasta_jax.toy.task import HELD_OUT, problems
from pasta_jax.weights.source import load


def run(settings: ToyEvaluationSettings, output: Path | None = None) -> dict[str, Any]:
    """Answer the problems with both models and grade the answers, which are also written to `output` as JSON lines."""
    if jax.process_count() > 1:
        raise PastaError("the toy task: runs in one process; several answer the prompts of the other variants")
    for name, source in (("model", settings.model), ("baseline", settings.baseline)):
        if not source.path and not source.preset:
            raise PastaError(f"config.{name}.path: empty; set it to the folder model/ of a run of launch.sft")
    if output is not None:
        atomic.check_file(output, f"--output={output}")
    refuse_other_level(settings.level, "level", model=settings.model, baseline=settings.baseline)
    mesh = decoding_mesh(settings.mesh)
    model = load(settings.model, only_decoding=True, mesh=mesh)
    baseline = load(settings.baseline, only_decoding=True, mesh=mesh)
    chosen = problems(HELD_OUT, settings.start, settings.problems, settings.level)
    request = template(settings.request, model.defaults, sequential=False)

    answers = exactness.answer_all(model, chosen, settings.decoding, request, sequential=False)
    plain = exactness.answer_all(baseline, chosen, settings.decoding, request, sequential=True)
    report = {
        "level": settings.level,
        "temperature": request.rules.temperature,
        "model": exactness.quality(answers),
        "baseline": exactness.quality(plain),
        "speed": exactness.speed(answers, plain),
    }
    if with_ends := [problem for problem in chosen if problem.has_ends][: settings.ablation]:
        report["broken"] = exactness.ablate(model, with_ends, settings.decoding, request)
    if output is not None:
        write_answers(output, answers, plain)
    return report


def write_answers(path: Path, answers: Sequence[GradedAnswer], baseline: Sequence[GradedAnswer]) -> None:
    """Both models' answers, one JSON object per line."""
    lines = []
    for answer, plain in zip(answers, baseline, strict=True):
        record = dataclasses.asdict(answer)
        record["problem"] = {"instruction": answer.problem.instruction, "answer": answer.problem.answer}
        record |= {"exact": answer.exact, "baseline_text": plain.text, "baseline_tokens": plain.tokens}
        lines.append(json.dumps(record, ensure_ascii=False))
    atomic.write_lines(path, lines)


def table(report: dict[str, Any]) -> str:
    """The report for people."""
    model, baseline, speed = report["model"], report["baseline"], report["speed"]
    rows = {"": ("model", "baseline")}
    for title, name in (
        ("exact answers", "exact"),
        ("exact answers with ends", "exact_with_ends"),
        ("correct walks", "walks"),
        ("correct ends", "ends"),
    ):
        rows[title] = shown(model[name], ".1%"), shown(baseline[name], ".1%")
    rows |= {
        "cut off": (model["cut_off"], baseline["cut_off"]),
        "forked, of those with parts": (shown(speed["forked"], ".1%"),),
        "forked without parts": (speed["forked_without_need"],),
        "theoretical speedup": (shown(speed["speedup"], ".2f"),),
        "  = parallelism": (shown(speed["parallelism"], ".2f"),),
        "  × length ratio": (shown(speed["length_ratio"], ".2f"),),
    }
    broken = {name: [f"{share:.1%}" for share in shares.values()] for name, shares in report.get("broken", {}).items()}
    if broken:
        broken = {"a rule of decoding broken": ("exact", "walks", "ends")} | broken
    head = f"{model['answers']} problems of level {report['level']}, temperature {report['temperature']:g}"
    return "\n".join([head, "", *map(_line, rows.items()), *([""] if broken else ()), *map(_line, broken.items())])


def _line(row: tuple[str, Sequence[object]]) -> str:
    name, cells = row
    return f"{name:28}" + "".join(f"{cell:>10}" for cell in cells)
