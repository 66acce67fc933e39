"""Measure a trained model on the toy task: exactness, and theoretical speedup over its baseline."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import jax

from pasta_jax.decode.request import template
from pasta_jax.errors import PastaError
from pasta_jax.files import atomic
from pasta_jax.models.sharding import decoding_mesh
from pasta_jax.toy import exactness
from pasta_jax.toy.exactness import AblationResult, GradedAnswer, Quality, Speed
from pasta_jax.toy.level import refuse_other_level
from pasta_jax.toy.settings import ToyEvaluationSettings
from pasta_jax.toy.task import HELD_OUT, problems
from pasta_jax.weights.source import load


@dataclasses.dataclass(frozen=True)
class Report:
    """What is measured of both models."""

    level: str
    temperature: float
    model: Quality
    baseline: Quality
    speed: Speed
    broken: dict[str, AblationResult] | None  # by ablation; None: not measured

    def fields(self) -> dict[str, object]:
        """For JSON."""
        fields = dataclasses.asdict(self)
        return {name: value for name, value in fields.items() if value is not None}

    def text(self) -> str:
        """A table for people."""
        model, baseline, speed = self.model, self.baseline, self.speed
        lines = [f"{model.answers} problems of level {self.level}, temperature {self.temperature:g}", ""]
        lines.append(_cells("", "model", "baseline"))
        for name, field in (
            ("exact answers", "exact"),
            ("exact answers with ends", "exact_with_ends"),
            ("correct walks", "walks"),
            ("correct ends", "ends"),
        ):
            lines.append(_cells(name, f"{getattr(model, field):.1%}", f"{getattr(baseline, field):.1%}"))
        lines.append(_cells("cut off", str(model.cut_off), str(baseline.cut_off)))
        lines.append(_cells("forked, of those with parts", f"{speed.forked:.1%}"))
        lines.append(_cells("forked without parts", str(speed.forked_without_need)))
        lines.append(_cells("theoretical speedup", f"{speed.speedup:.2f}"))
        lines.append(_cells("  = parallelism", f"{speed.parallelism:.2f}"))
        lines.append(_cells("  × length ratio", f"{speed.length_ratio:.2f}"))
        if self.broken is not None:
            lines += ["", _cells("a rule of decoding broken", "exact", "walks", "ends")]
            for name, result in self.broken.items():
                figures = (f"{figure:.1%}" for figure in (result.exact, result.walks, result.ends))
                lines.append(_cells(name, *figures))
        return "\n".join(lines)


def _cells(name: str, *cells: str) -> str:
    return f"{name:28}" + "".join(f"{cell:>10}" for cell in cells)


def run(settings: ToyEvaluationSettings, output: Path | None = None) -> Report:
    """Answer the problems with both models and grade the answers, which are also written to `output` as JSON lines."""
    if jax.process_count() > 1:
        raise PastaError("the toy task: runs in one process; several answer the prompts of the other variants")
    for name, source in (("model", settings.model), ("baseline", settings.baseline)):
        if not source.path and not source.preset:
            raise PastaError(f"config.{name}.path: empty; set it to the folder model/ of a run of launch.sft")
    refuse_other_level(settings.level, "level", model=settings.model, baseline=settings.baseline)
    mesh = decoding_mesh(settings.mesh)
    model = load(settings.model, only_decoding=True, mesh=mesh)
    baseline = load(settings.baseline, only_decoding=True, mesh=mesh)
    chosen = problems(HELD_OUT, settings.start, settings.problems, settings.level)
    request = template(settings.request, model.defaults, sequential=False)

    answers = exactness.answer_all(model, chosen, settings.decoding, request, sequential=False)
    plain = exactness.answer_all(baseline, chosen, settings.decoding, request, sequential=True)
    broken = None
    if settings.ablation:
        with_ends = [problem for problem in chosen if problem.has_ends][: settings.ablation]
        broken = exactness.ablate(model, with_ends, settings.decoding, request)
    if output is not None:
        write_answers(output, answers, plain)
    return Report(
        level=settings.level,
        temperature=request.rules.temperature,
        model=exactness.quality(answers),
        baseline=exactness.quality(plain),
        speed=exactness.speed(answers, plain),
        broken=broken,
    )


def write_answers(path: Path, answers: Sequence[GradedAnswer], baseline: Sequence[GradedAnswer]) -> None:
    """Both models' answers, one JSON object per line."""
    lines = []
    for answer, plain in zip(answers, baseline, strict=True):
        record = dataclasses.asdict(answer)
        record["problem"] = {"instruction": answer.problem.instruction, "answer": answer.problem.answer}
        record |= {"exact": answer.exact, "baseline_text": plain.text, "baseline_tokens": plain.tokens}
        lines.append(json.dumps(record, ensure_ascii=False))
    atomic.write_lines(path, lines)
