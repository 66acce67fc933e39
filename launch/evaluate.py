"""Measure a trained model beside its baseline; the last line printed is one JSON object. See configs/evaluate.py."""

import dataclasses
import json
import sys
import time

from absl import flags
from ml_collections import ConfigDict

from launch import cli
from pasta_jax.errors import PastaError

OUTPUT = flags.DEFINE_string(  # other scripts have one too, and a test process may import both
    "output", None, "write every answer here, JSON lines", allow_override=True
)


def main(config: ConfigDict) -> None:
    """Answer, grade, report."""
    for name in ("model", "baseline"):
        if not config[name].path:
            raise PastaError(f"--config.{name}.path: give the folder model/ of a run of launch.sft")
    cli.announce_device()

    from pasta_jax.data.toy import HELD_OUT, problems
    from pasta_jax.decode.generate import DecodeConfig, Request
    from pasta_jax.decode.sampling import Sampling
    from pasta_jax.evaluate import exactness
    from pasta_jax.models.weights import load_model

    model = load_model(config.model.preset, config.model.path, only_decoding=True)
    baseline = load_model(config.baseline.preset, config.baseline.path, only_decoding=True)
    asked = problems(HELD_OUT, config.start, config.problems, config.level)
    settings = DecodeConfig(**config.decoding.to_dict())
    request = request_of(config, Request, Sampling)

    began = time.perf_counter()
    answers = exactness.answer_all(model, asked, settings, request, sequential=False)
    say(f"the model answered {len(answers)} problems in {time.perf_counter() - began:.0f} s")
    plain = exactness.answer_all(baseline, asked, settings, request, sequential=True)
    say("the baseline answered them too")
    report = {
        "level": config.level,
        "temperature": request.sampling.temperature,
        "model": exactness.quality(answers),
        "baseline": exactness.quality(plain),
        "speed": exactness.speed(answers, plain),
    }
    if config.ablation:
        with_ends = [problem for problem in asked if problem.has_ends][: config.ablation]
        report["broken"] = exactness.ablate(model, with_ends, settings, request, say)
    if OUTPUT.value:
        write_answers(OUTPUT.value, answers, plain)
    print(json.dumps(report))


def request_of(config: ConfigDict, Request, Sampling):
    """A request without its prompt."""
    asked = config.request.to_dict()
    sampling = Sampling(**{name: asked.pop(name) for name in ("temperature", "top_k", "top_p", "seed")})
    return Request(prompt_ids=(), sampling=sampling, sequential=False, **asked)


def write_answers(path: str, answers: list, plain: list) -> None:
    """Both models' answers, whole or not at all."""
    from pathlib import Path

    from pasta_jax.files import write_whole

    lines = []
    for answer, baseline in zip(answers, plain, strict=True):
        record = dataclasses.asdict(answer)
        record["problem"] = {"instruction": answer.problem.instruction, "answer": answer.problem.answer}
        record |= {"exact": answer.exact, "baseline_text": baseline.text, "baseline_tokens": baseline.tokens}
        lines.append(json.dumps(record, ensure_ascii=False) + "\n")
    write_whole(Path(path), "".join(lines))


def say(line: str) -> None:
    """Progress, beside the result."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    cli.run(main, default_config="configs/evaluate.py")
