"""Step 5 of the preference stage: held-out prompts answered, judged against the baseline, timed, shown."""

import dataclasses
import json
import statistics

from launch.preference_stage import (
    Policy,
    Stage,
    answers_of,
    asked_of,
    decode_step,
    fingerprint_of_params,
    judged_by,
    request_of,
)
from pasta_jax.pipelines.artifacts import Made, say

TIMED_ROUNDS = 3


def evaluate_step(stage: Stage, policy: Policy, trainable, frozen, plain: Made) -> dict:
    """Step 5: held-out prompts answered, against the baseline's answers."""
    from pasta_jax.judges.judge import both_orders

    config = stage.config
    from pasta_jax.pipelines.trainable import merged

    model = merged(stage.sft, trainable, frozen)
    found = {"name": policy.name, "fingerprint": policy.fingerprint}
    for temperature in config.evaluate.temperatures:
        request = request_of(stage, temperature, seed=0, sequential=False)
        settings = {"model": policy.fingerprint} | asked_of(stage, stage.held_out, request)
        answered = decode_step(stage, "answer", settings, model, stage.held_out, 1, request)

        def records(start: int, answered=answered):
            for at in range(start, len(answered.records)):
                [answer], [baseline] = answers_of(answered.records[at]), answers_of(plain.records[at])
                prompt = stage.held_out[at]
                verdicts = both_orders(stage.judge, prompt.instruction, answer.text, [baseline.text])
                yield [judged_record(stage, prompt, answer, baseline, verdicts)]

        settings = {"answers": answered.fingerprint, "baseline": plain.fingerprint, "judge": judged_by(stage)}
        made = stage.steps.make("evaluate", settings, len(answered.records), 1, records)
        found[f"temperature {temperature:g}"] = figures(made.records)
        if config.evaluate.timed:
            found[f"temperature {temperature:g}"]["realised"] = realised(stage, model, settings["answers"], request)
    say(json.dumps(found))
    return found


def baseline_figures(stage: Stage, held_out: Made) -> dict:
    """What the baseline is to itself."""
    records = []
    for record, prompt in zip(held_out.records, stage.held_out, strict=True):
        [answer] = answers_of(record)
        records.append(judged_record(stage, prompt, answer, answer, []))
    values = figures(records) | {"win_rate": 0.5}
    if stage.config.evaluate.timed:
        values["realised"] = 1.0
    return {"name": "Baseline-SFT", "temperature 0": values}


def judged_record(stage: Stage, prompt, answer, baseline, verdicts: list | None) -> dict:
    """What is kept of a held-out prompt's answer."""
    problem = stage.problems.get(prompt.instruction)
    return {
        "prompt": prompt.instruction,
        "verdicts": verdicts and [[verdict.first, verdict.second] for verdict in verdicts],
        "exact": None if problem is None else answer.whole and problem.exact(answer.text),
        "critical_path": answer.critical_path,
        "text_tokens": answer.text_tokens,
        "baseline_tokens": baseline.critical_path,
        "chunks": answer.chunks,
        "whole": answer.whole,
    }


def realised(stage: Stage, model, answers: str, request) -> float:
    """Wall-clock of the baseline over the model's, each prompt alone in the interpreter."""
    from pasta_jax.lang.clock import geometric_mean

    timed = time_step(stage, model, answers, request)
    return round(geometric_mean(record["baseline_ms"] / record["ms"] for record in timed.records), 4)


def time_step(stage: Stage, model, answers: str, request) -> Made:
    """Milliseconds of each of the timed prompts, the baseline and the model by turns: a machine's speed drifts."""
    from pasta_jax.decode.generate import DecodeConfig, generate

    prompts = stage.held_out[: stage.config.evaluate.timed]
    greedy = dataclasses.replace(request.sampling, temperature=0.0)
    plain = dataclasses.replace(request, sampling=greedy, sequential=True)
    alone = DecodeConfig(**stage.config.decoding.to_dict() | {"lanes": 1})

    def milliseconds(model, request) -> list[float]:
        requests = [
            dataclasses.replace(
                request,
                prompt_ids=prompt.ids(model.tokenizer),
                sampling=dataclasses.replace(request.sampling, seed=request.sampling.seed + number),
            )
            for number, prompt in enumerate(prompts)
        ]
        return [result.trace.rounds[-1][1] for result in generate(model, requests, alone)]

    def records(start: int):
        rounds = [(milliseconds(stage.baseline, plain), milliseconds(model, request)) for _ in range(1 + TIMED_ROUNDS)]
        kept = rounds[1:]  # the first compiles
        yield [
            {
                "prompt": n,
                "baseline_ms": statistics.median(baseline[n] for baseline, _ in kept),
                "ms": statistics.median(own[n] for _, own in kept),
            }
            for n in range(len(prompts))
        ]

    settings = {"baseline": fingerprint_of_params(stage.baseline.params), "model": answers, "rounds": TIMED_ROUNDS}
    settings |= asked_of(stage, prompts, request)
    return stage.steps.make("time", settings, len(prompts), len(prompts), records)


def figures(records: list[dict]) -> dict:
    """Means over held-out prompts; speeds are geometric means."""
    from pasta_jax.judges.judge import Verdict, win_rate
    from pasta_jax.lang.clock import geometric_mean

    timed = [r for r in records if r["critical_path"] and r["baseline_tokens"]]
    ratios = [record["baseline_tokens"] / record["critical_path"] for record in timed]
    said = [record for record in timed if record["text_tokens"]]
    verdicts = [Verdict(*verdict) for record in records for verdict in record["verdicts"] or ()]
    exact = [record["exact"] for record in records if record["exact"] is not None]
    shown = {
        "win_rate": win_rate(verdicts) if verdicts else None,
        "exact": sum(exact) / len(exact) if exact else None,
        "speedup": geometric_mean(ratios) if ratios else None,
        "speedup_arithmetic": sum(ratios) / len(ratios) if ratios else None,
        "parallelism": geometric_mean(r["text_tokens"] / r["critical_path"] for r in said) if said else None,
        "chunks": sum(record["chunks"] for record in records) / len(records),
        "cut_off": sum(not record["whole"] for record in records),
    }
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in shown.items()}


def table(models: list[dict]) -> str:
    """The models' figures as the paper lays them out."""
    names = ("win_rate", "exact", "speedup", "speedup_arithmetic", "parallelism", "realised")
    lines = [f"{'model':24} {'answers':>14} " + " ".join(f"{name:>18}" for name in names)]
    for model in models:
        for key, values in model.items():
            if key.startswith("temperature"):
                shown = (f"{'—' if values.get(name) is None else format(values[name], '.4f'):>18}" for name in names)
                lines.append(f"{model['name']:24} {key:>14} " + " ".join(shown))
    return "\n".join(lines)
