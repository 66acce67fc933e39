"""Rounds of sample, score, pair, train, evaluate; goes on where it was stopped. See configs/preference.py."""

import dataclasses
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ml_collections import ConfigDict

from launch import cli
from launch.preference_evaluate import baseline_figures, evaluate_step, table
from launch.preference_stage import (
    Policy,
    Stage,
    answers_of,
    asked_of,
    decode_step,
    fingerprint_of_params,
    judged_by,
    request_of,
    stage_of,
)
from launch.preference_train import train_step
from launch.sft import WORKDIR
from pasta_jax.errors import PastaError
from pasta_jax.pipelines.artifacts import Made, fingerprint_of, say, write_whole


def main(config: ConfigDict) -> None:
    """All rounds, or what is left of them."""
    if not WORKDIR.value:
        raise PastaError("--workdir: give a folder for this run")
    cli.announce_device()
    run(config, Path(WORKDIR.value))


def run(config: ConfigDict, workdir: Path) -> dict | None:
    """The report, also written to the workdir; None if it was stopped."""
    stage = stage_of(config, workdir)
    from pasta_jax import settings
    from pasta_jax.pipelines.trainable import AdapterSettings, MeshSettings, divide, place, write

    adapter, mesh = settings.read(config.adapter, AdapterSettings), settings.read(config.mesh, MeshSettings)
    start = divide(stage.sft, adapter, config.train.seed)
    trainable, frozen = (place(part, mesh) for part in (start.params, start.frozen))
    policy = Policy("Pasta-SFT", trainable, fingerprint_of_params(stage.sft.params))
    first = policy.fingerprint
    plain = baseline_step(stage, "prompts")
    held_out = baseline_step(stage, "held_out")
    report = {
        "quality_weight": str(float(config.score.quality_weight)),
        "efficiency": config.score.efficiency,
        "models": [],
    }
    say_agreement(stage, report)
    report["models"].append(baseline_figures(stage, held_out))
    report["models"].append(evaluate_step(stage, policy, trainable, frozen, held_out))
    for number in range(1, config.rounds + 1):
        samples = sample_step(stage, policy, frozen, number)
        scores = score_step(stage, samples, plain)
        pairs = pair_step(stage, samples, scores)
        policy = train_step(stage, policy, frozen, samples, pairs, first, number)
        if policy is None:
            say("stopped; the same command goes on")
            return None
        report["models"].append(evaluate_step(stage, policy, policy.trainable, frozen, held_out))

    workdir.mkdir(parents=True, exist_ok=True)
    write(stage.sft, policy.trainable, adapter, workdir)
    if config.judge.kind == "llm":
        report["judge_usage"] = dataclasses.asdict(stage.judge.usage) | {"without_verdict": dict(stage.judge.failures)}
    write_whole(workdir / "report.json", json.dumps(report, indent=1) + "\n")
    print(table(report["models"]))
    print(json.dumps(report))
    return report


def say_agreement(stage: Stage, report: dict) -> None:
    """How far the judge agrees with preferences given elsewhere, beside all its scores."""
    from pasta_jax.data.sources import given_preferences
    from pasta_jax.judges.judge import agreement

    kind, count = stage.config.judge.kind, stage.config.judge.agreement
    report["judge"] = kind
    if kind == "toy":
        say("judge: toy, an exact grader")
    elif count:
        choices = given_preferences()[:count]
        settings = {"judge": judged_by(stage), "pairs": fingerprint_of(choices)}

        def records(start: int):
            found = agreement(stage.judge, choices)
            yield [dataclasses.asdict(found) | {"said": str(found)}]

        [found] = stage.steps.make("agreement", settings, 1, 1, records).records
        report["judge_agreement"] = found
        proxy = "" if kind == "llm" else ", a proxy"
        say(f"judge: {kind}{proxy}; {found['said']}")


def baseline_step(stage: Stage, side: str) -> Made:
    """Baseline-SFT's own greedy answers, whose lengths are what speedup is over."""
    prompts = stage.prompts if side == "prompts" else stage.held_out
    request = request_of(stage, temperature=0.0, seed=0, sequential=True)
    settings = {"model": fingerprint_of_params(stage.baseline.params)} | asked_of(stage, prompts, request)
    return decode_step(stage, "baseline", settings, stage.baseline, prompts, 1, request)


def sample_step(stage: Stage, policy: Policy, frozen, number: int) -> Made:
    """Step 1: answers to every prompt."""
    asked = stage.config.sample
    # Far apart in each round and for each seed: else a model that hardly moved would say the same again.
    seed = (asked.seed * 977 + number) * 0x9E3779B1 % 2**32
    request = request_of(stage, asked.temperature, seed, sequential=False)
    settings = {"model": policy.fingerprint, "count": asked.count} | asked_of(stage, stage.prompts, request)
    from pasta_jax.pipelines.trainable import merged

    model = merged(stage.sft, policy.trainable, frozen)
    made = decode_step(stage, "sample", settings, model, stage.prompts, asked.count, request)
    answers = [answer for record in made.records for answer in record["answers"]]
    cut = sum(not answer["whole"] for answer in answers)
    say(f"round {number}: {len(answers)} samples, {cut} cut off")
    return made


def score_step(stage: Stage, samples: Made, plain: Made) -> Made:
    """Step 2: four verdicts on each answer, and what its speed is measured by. Nothing here depends on the dial."""
    settings = {"samples": samples.fingerprint, "baseline": plain.fingerprint, "judge": judged_by(stage)}
    from pasta_jax.judges.judge import both_orders

    def verdicts(job) -> list | None:
        question, text, others = job
        found = both_orders(stage.judge, question, text, others)
        return None if found is None else [[verdict.first, verdict.second] for verdict in found]

    def records(start: int):
        with ThreadPoolExecutor(stage.config.judge.concurrency if stage.config.judge.kind == "llm" else 1) as threads:
            for at in range(start, len(samples.records)):
                record, prompt = samples.records[at], stage.prompts[at]
                [baseline] = answers_of(plain.records[at])
                texts = [answer["text"] for answer in record["answers"]]
                jobs = [(prompt.instruction, text, (baseline.text, prompt.reference)) for text in texts]
                yield [
                    {
                        "prompt": at,
                        "baseline_tokens": baseline.critical_path,
                        "verdicts": list(threads.map(verdicts, jobs)),
                    }
                ]

    return stage.steps.make("score", settings, len(samples.records), 1, records)


def pair_step(stage: Stage, samples: Made, scores: Made) -> Made:
    """Step 3: the best and the worst answer to each prompt, by the dial."""
    from pasta_jax.evaluate.scores import choose, efficiency, score
    from pasta_jax.judges.judge import Verdict, quality

    asked = stage.config.score
    weight = float(asked.quality_weight)
    settings = {
        "samples": samples.fingerprint,
        "scores": scores.fingerprint,
        "score": stage.plain("score") | {"quality_weight": str(weight)},
    }

    def records(start: int):
        for at in range(start, len(samples.records)):
            answers, judged = answers_of(samples.records[at]), scores.records[at]
            speeds = [efficiency(asked.efficiency, answer, judged["baseline_tokens"]) for answer in answers]
            worth = [
                None if verdicts is None else quality([Verdict(*verdict) for verdict in verdicts], asked.floor)
                for verdicts in judged["verdicts"]
            ]
            both = zip(speeds, worth, strict=True)
            totals = [None if good is None else score(fast, good, weight) for fast, good in both]
            choice = choose(totals, speeds, [answer.whole for answer in answers])
            chosen = {"better": None, "worse": None} if choice is None else dataclasses.asdict(choice)
            yield [{"prompt": at, **chosen, "efficiency": speeds, "quality": worth, "score": totals}]

    made = stage.steps.make("pair", settings, len(samples.records), 1, records)
    used = [record for record in made.records if record["better"] is not None]
    if not used:
        raise PastaError("no prompt has a better and a worse answer; sample more, or from a model that knows more")
    gain = {
        name: sum(record[name][record["better"]] - record[name][record["worse"]] for record in used) / len(used)
        for name in ("efficiency", "quality")
    }
    say(
        f"pairs: {len(used)} of {len(made.records)} prompts have one; "
        f"better answers lead by {gain['efficiency']:.3f} in {asked.efficiency}, {gain['quality']:.3f} in quality"
    )
    return made


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    cli.run(main, default_config="configs/preference.py")
