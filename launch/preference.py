"""Rounds of sample, score, pair, train, evaluate; goes on where it was stopped. See configs/preference.py."""

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from launch import cli
from launch.sft import WORKDIR, finished, parts_of, place, stop_on_sigterm, write_model
from launch.steps import Made, Steps, fingerprint_of, say
from pasta_jax.errors import PastaError


@dataclasses.dataclass(frozen=True)
class Stage:
    """What all steps share."""

    config: ConfigDict
    steps: Steps
    sft: Any  # models/weights.py::Model: Pasta-SFT
    baseline: Any
    prompts: tuple  # evaluate/candidates.py::Prompt
    held_out: tuple
    problems: dict  # of the toy task, by instruction; empty for real prompts

    def plain(self, name: str):
        """A part of the config as plain data."""
        value = self.config[name]
        return json.loads(value.to_json_best_effort()) if isinstance(value, ConfigDict) else value


@dataclasses.dataclass(frozen=True)
class Policy:
    """A model between rounds: what is trained, and its name by content."""

    name: str
    trainable: Any
    fingerprint: str


def main(config: ConfigDict) -> None:
    """All rounds, or what is left of them."""
    if not WORKDIR.value:
        raise PastaError("--workdir: give a folder for this run")
    cli.announce_device()
    run(config, Path(WORKDIR.value), stop_on_sigterm())


def run(config: ConfigDict, workdir: Path, stopping: Callable[[], bool]) -> dict | None:
    """The report, also written to the workdir; None if it was stopped."""
    stage = stage_of(config, workdir)
    trainable, frozen = parts_of(config, stage.sft)
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
        policy = train_step(stage, policy, frozen, samples, pairs, first, number, stopping)
        if policy is None:
            say("stopped; the same command goes on")
            return None
        report["models"].append(evaluate_step(stage, policy, policy.trainable, frozen, held_out))
    import jax

    workdir.mkdir(parents=True, exist_ok=True)
    write_model(config, stage.sft, jax.device_get(policy.trainable), workdir)
    write_whole(workdir / "report.json", json.dumps(report, indent=1) + "\n")
    print(table(report["models"]))
    print(json.dumps(report))
    return report


def stage_of(config: ConfigDict, workdir: Path) -> Stage:
    """Models and prompts."""
    import jax.numpy as jnp

    from pasta_jax.models.weights import load_model

    for name in ("model", "baseline"):
        if not config[name].path and not config[name].preset:
            raise PastaError(f"--config.{name}.path: give the folder model/ of a run of launch.sft")
    if bool(config.prompts.toy) == bool(config.prompts.source):
        raise PastaError("config.prompts: give either toy=<level of the toy task> or source=<where pairs come from>")
    if (config.judge.kind == "toy") != bool(config.prompts.toy):
        raise PastaError("config.judge.kind: toy is for the toy task's prompts, and for no others")
    # An adapter's frozen parameters may stay as the platform computes; what is trained itself is float32.
    dtype = None if config.adapter.rank else jnp.float32
    sft = load_model(config.model.preset, config.model.path, dtype)
    baseline = load_model(config.baseline.preset, config.baseline.path)
    prompts, held_out, problems = prompts_of(config)
    folder = Path(config.steps) if config.steps else workdir / "steps"
    return Stage(config, Steps(folder), sft, baseline, prompts, held_out, problems)


def prompts_of(config: ConfigDict):
    """(prompts to sample, held-out ones, problems of the toy task by instruction)."""
    from pasta_jax.evaluate.candidates import Prompt

    asked, count = config.prompts, config.evaluate.count
    if asked.toy:
        from pasta_jax.data.toy import HELD_OUT, problems

        if asked.toy_seed == HELD_OUT:
            raise PastaError(f"config.prompts.toy_seed {HELD_OUT}: these problems are held out; give another")
        own, apart = problems(asked.toy_seed, 0, asked.count, asked.toy), problems(HELD_OUT, 0, count, asked.toy)
        sides = [tuple(Prompt("", p.instruction, p.answer) for p in side) for side in (own, apart)]
        return *sides, {problem.instruction: problem for problem in (*own, *apart)}
    from pasta_jax.data.pairs import Pair
    from pasta_jax.data.sources import Filter, read, refuse_for_training, select

    refuse_for_training([asked.source])
    wanted = Filter(tuple(asked.prompt_words), tuple(asked.response_words), True, True)
    pairs, left_out = select((pair for pair in read(asked.source) if isinstance(pair, Pair)), wanted)
    if len(pairs) <= count:
        raise PastaError(
            f"{asked.source}: {len(pairs)} usable pairs, {count} are held out; lower config.evaluate.count"
        )
    say(f"{asked.source}: {len(pairs)} pairs, left out: {dict(left_out)}")
    made = [Prompt(pair.system, pair.instruction, pair.response) for pair in pairs]
    return tuple(made[count:][: asked.count]), tuple(made[:count]), {}


def fingerprint_of_params(params) -> str:
    """Of every bit of them."""
    import hashlib

    import jax
    import numpy as np

    from pasta_jax.checkpoint import flat

    digest = hashlib.sha256()
    for name, leaf in sorted(flat(jax.device_get(params)).items()):
        digest.update(name.encode() + np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()[:16]


def baseline_step(stage: Stage, side: str) -> Made:
    """Baseline-SFT's own greedy answers, whose lengths are what speedup is over."""
    prompts = stage.prompts if side == "prompts" else stage.held_out
    request = request_of(stage, temperature=0.0, seed=0, sequential=True)
    settings = {"model": fingerprint_of_params(stage.baseline.params)} | asked_of(stage, prompts, request)
    return decode_step(stage, "baseline", settings, stage.baseline, prompts, 1, request)


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


def sample_step(stage: Stage, policy: Policy, frozen, number: int) -> Made:
    """Step 1: answers to every prompt."""
    asked = stage.config.sample
    # Far apart in each round and for each seed: else a model that hardly moved would say the same again.
    seed = (asked.seed * 977 + number) * 0x9E3779B1 % 2**32
    request = request_of(stage, asked.temperature, seed, sequential=False)
    settings = {"model": policy.fingerprint, "count": asked.count} | asked_of(stage, stage.prompts, request)
    model = finished(stage.config, stage.sft, policy.trainable, frozen)
    made = decode_step(stage, "sample", settings, model, stage.prompts, asked.count, request)
    answers = [answer for record in made.records for answer in record["answers"]]
    cut = sum(not answer["whole"] for answer in answers)
    say(f"round {number}: {len(answers)} samples, {cut} cut off")
    return made


def request_of(stage: Stage, temperature: float, seed: int, sequential: bool):
    """A request without its prompt."""
    from pasta_jax.decode.generate import Request
    from pasta_jax.decode.sampling import Sampling

    sampling = Sampling(temperature=temperature, seed=seed)
    return Request(prompt_ids=(), sampling=sampling, sequential=sequential, **stage.config.request.to_dict())


def asked_of(stage: Stage, prompts: Sequence, request) -> dict:
    """What decides the answers beside the model."""
    return {
        "prompts": fingerprint_of([dataclasses.astuple(prompt) for prompt in prompts]),
        "request": dataclasses.asdict(request),
        "decoding": stage.plain("decoding"),
        "block": stage.config.sample.block,
    }


def decode_step(stage: Stage, step: str, settings: dict, model, prompts: Sequence, count: int, request) -> Made:
    """`count` answers to each prompt, a block of prompts after another; each block is decoded as in every other run."""
    import time

    from pasta_jax.decode.generate import Settings
    from pasta_jax.evaluate.candidates import sample

    block = stage.config.sample.block

    def records(start: int):
        for at in range(start, len(prompts), block):
            few, found, began = prompts[at : at + block], {}, time.monotonic()
            lanes = Settings(**stage.config.decoding.to_dict())
            for index, answers in sample(model, few, at, count, lanes, request):
                found[index] = answers
            tokens = sum(len(answer.ids) for answers in found.values() for answer in answers)
            say(f"{step}: {tokens / (time.monotonic() - began):.0f} tokens a second over {lanes.lanes} lanes")
            yield [
                {"prompt": at + n, "answers": [dataclasses.asdict(answer) for answer in found[n]]}
                for n in range(len(few))
            ]

    return stage.steps.make(step, settings, len(prompts), block, records)


def answers_of(record: dict) -> list:
    """A record's candidates."""
    from pasta_jax.evaluate.candidates import Candidate

    return [Candidate(**answer | {"ids": tuple(answer["ids"])}) for answer in record["answers"]]


def judge_of(stage: Stage):
    """The judge that the config names."""
    from pasta_jax.evaluate import judges_offline

    asked = stage.config.judge
    match asked.kind:
        case "toy":
            return judges_offline.toy_grader(stage.problems)
        case "repetition":
            return judges_offline.comparing(judges_offline.repetition, asked.scale)
        case "length":
            return judges_offline.comparing(judges_offline.length, asked.scale)
        case "likelihood":
            import jax

            from pasta_jax.train.preference import log_probabilities

            lengths, scoring = tuple(stage.config.train.lengths), scoring_of(stage)
            score = jax.jit(lambda params, batch: log_probabilities(scoring, params, batch))
            measure = judges_offline.likelihood(
                stage.baseline, lambda batch: score(stage.baseline.params, batch), lengths
            )
            return judges_offline.comparing(measure, asked.scale)
        case "llm":
            from pasta_jax.data.llm import Endpoint
            from pasta_jax.evaluate.judge_llm import llm_judge

            endpoint = Endpoint(**asked.endpoint.to_dict())
            return llm_judge(endpoint, stage.steps.folder / "judge_cache.jsonl", asked.asks)
    known = ", ".join(("llm", "toy", *judges_offline.PROXIES))
    raise PastaError(f"config.judge.kind {asked.kind!r}: there is none of this name; choose one of {known}")


def say_agreement(stage: Stage, report: dict) -> None:
    """How far the judge agrees with preferences given elsewhere, beside all its scores."""
    from pasta_jax.data.sources import given_preferences
    from pasta_jax.evaluate.judges import agreement

    kind, count = stage.config.judge.kind, stage.config.judge.agreement
    report["judge"] = kind
    if kind == "toy":
        say("judge: toy, an exact grader")
    elif count:
        settings = {"judge": stage.plain("judge"), "baseline": fingerprint_of_params(stage.baseline.params)}
        choices = given_preferences()[:count]
        judge = judge_of(stage)

        def records(start: int):
            found = agreement(judge, choices)
            yield [dataclasses.asdict(found) | {"said": str(found)}]

        [found] = stage.steps.make("agreement", settings, 1, 1, records).records
        report["judge_agreement"] = found
        proxy = "" if kind == "llm" else ", a proxy"
        say(f"judge: {kind}{proxy}; {found['said']}")


def score_step(stage: Stage, samples: Made, plain: Made) -> Made:
    """Step 2: four verdicts on each answer, and what its speed is measured by. Nothing here depends on the dial."""
    settings = {"samples": samples.fingerprint, "baseline": plain.fingerprint, "judge": judged_by(stage)}
    judge = judge_of(stage)
    from pasta_jax.evaluate.judges import both_orders

    def verdicts(job) -> list | None:
        question, text, others = job
        found = both_orders(judge, question, text, others)
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


def judged_by(stage: Stage) -> dict:
    """What decides verdicts, apart from the texts."""
    asked = stage.plain("judge")
    for name in ("concurrency", "agreement"):
        asked.pop(name)
    if asked["kind"] != "llm":
        asked.pop("endpoint")
    if asked["kind"] == "likelihood":
        asked["model"] = fingerprint_of_params(stage.baseline.params)
    return asked


def pair_step(stage: Stage, samples: Made, scores: Made) -> Made:
    """Step 3: the best and the worst answer to each prompt, by the dial."""
    from pasta_jax.evaluate.judges import Verdict, quality
    from pasta_jax.evaluate.scores import choose, efficiency, score

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
            choice = choose(totals, [answer.whole for answer in answers])
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


def scoring_of(stage: Stage):
    """How answers are scored by a model."""
    from pasta_jax.models.weights import platform_dtype
    from pasta_jax.train.loss import Scoring

    asked = stage.config.train
    tags = stage.sft.tokenizer.tags
    return Scoring(stage.sft.config, tags, platform_dtype(), slice=asked.slice, block=asked.block, remat=asked.remat)


def train_step(
    stage: Stage, policy: Policy, frozen, samples: Made, pairs: Made, first: str, number: int, stopping: Callable
) -> Policy | None:
    """Step 4: from the policy of the round before towards the better answers; None if it was stopped."""
    import jax

    from pasta_jax.checkpoint import Checkpoints, provenance
    from pasta_jax.metrics import Metrics
    from pasta_jax.train.loop import Rhythm, Run, train
    from pasta_jax.train.optimizer import Plan, new_optimizer, schedule
    from pasta_jax.train.preference import Preference, best_of_n_margin, preference_loss
    from pasta_jax.train.speed import flops_per_token, peak_flops
    from pasta_jax.train.state import new_state

    config, asked = stage.config, stage.config.train
    examples = pairs_for_training(stage, samples, pairs)
    reference = reference_step(stage, examples, pairs, first)
    loss = config.loss.to_dict()
    loss["margin"] = loss["margin"] or best_of_n_margin(config.sample.count)
    settings = {
        "start": policy.fingerprint,
        "pairs": pairs.fingerprint,
        "reference": reference.fingerprint,
        "loss": loss,
        "train": stage.plain("train"),
        "adapter": stage.plain("adapter"),
    }
    feed = feed_of(examples, reference, asked)
    names = ("learning_rate", "warmup", "weight_decay", "clip", "b1", "b2", "eps")
    plan = Plan(steps=feed.steps(asked.seed, asked.epochs), **{name: asked[name] for name in names})
    optimizer = new_optimizer(plan)
    # A step takes its argument's memory, and Pasta-SFT is needed again.
    copied = jax.tree.map(jax.numpy.copy, policy.trainable)
    state = place(config, new_state(copied, optimizer, asked.seed))
    folder = stage.steps.place("train", settings)
    checkpoints = Checkpoints(folder / "checkpoints", provenance(settings, pairs.fingerprint), 1, 0)
    latest = checkpoints.latest()
    if latest is not None:
        state = checkpoints.restore(latest, state)
        say(f"train: going on from step {latest} of {plan.steps}")
    if int(state.step) < plan.steps:
        metrics = Metrics(folder, int(state.step), plan.steps)
        longest = asked.lengths[-1]
        loop = Run(
            steps=plan.steps,
            accumulate=asked.accumulate,
            batch=feed.batch,
            held_out=(),
            loss=preference_loss(scoring_of(stage), Preference(**loss)),
            optimizer=optimizer,
            rate=schedule(plan),
            flops_per_token=flops_per_token(stage.sft.params, stage.sft.config, longest, bool(config.adapter.rank)),
            peak=peak_flops(jax.devices()),
            probe=None,
            rhythm=Rhythm(log=config.every.log, held_out=0, probe=0, save=config.every.save),
        )
        state = train(loop, state, frozen, metrics, checkpoints, stopping)
        metrics.close()
    checkpoints.close()
    if int(state.step) < plan.steps:
        return None
    return Policy(f"round {number}", state.trainable, fingerprint_of_params(state.trainable))


def pairs_for_training(stage: Stage, samples: Made, pairs: Made) -> list:
    """(number of the prompt, better, worse) as the model reads them; those too long for a row are left out."""
    from pasta_jax.evaluate.candidates import example_of

    how = (stage.config.decoding.policy, stage.config.decoding.constant)
    found, longest, dropped = [], stage.config.train.lengths[-1], 0
    for record in pairs.records:
        if record["better"] is None:
            continue
        at = record["prompt"]
        answers = answers_of(samples.records[at])
        sides = [example_of(stage.sft, stage.prompts[at], answers[record[n]], *how) for n in ("better", "worse")]
        if max(map(len, sides)) > longest:
            dropped += 1
        else:
            found.append((at, *sides))
    if dropped:
        say(f"train: {dropped} pairs are too long for {longest} tokens and left out")
    return found


def reference_step(stage: Stage, examples: list, pairs: Made, first: str) -> Made:
    """The frozen reference's log-probabilities of all answers to be learnt from, computed once."""
    import jax

    from pasta_jax.train.pair_feed import scored
    from pasta_jax.train.preference import log_probabilities

    asked = stage.config.train
    settings = {"model": first, "pairs": pairs.fingerprint, "lengths": list(asked.lengths), "rows": asked.rows}
    scoring = scoring_of(stage)
    score = jax.jit(lambda params, batch: log_probabilities(scoring, params, batch))

    def records(start: int):
        rows = 2 * asked.rows
        sides = [
            scored(lambda batch: score(stage.sft.params, batch), [e[side] for e in examples], asked.lengths, rows)
            for side in (1, 2)
        ]
        yield [
            {"prompt": at, "better": better, "worse": worse}
            for (at, _, _), better, worse in zip(examples, *sides, strict=True)
        ]

    return stage.steps.make("reference", settings, len(examples), len(examples), records)


def feed_of(examples: list, reference: Made, asked: ConfigDict):
    """What the training loop reads."""
    from pasta_jax.train.pair_feed import Pair, PairFeed

    pairs = [
        Pair(better, worse, known["better"], known["worse"])
        for (_, better, worse), known in zip(examples, reference.records, strict=True)
    ]
    return PairFeed(pairs, tuple(asked.lengths), asked.rows)


def evaluate_step(stage: Stage, policy: Policy, trainable, frozen, plain: Made) -> dict:
    """Step 5: held-out prompts answered, against the baseline's answers."""
    from pasta_jax.evaluate.judges import both_orders

    config = stage.config
    model = finished(config, stage.sft, trainable, frozen)
    judge, found = judge_of(stage), {"name": policy.name, "fingerprint": policy.fingerprint}
    for temperature in config.evaluate.temperatures:
        request = request_of(stage, temperature, seed=0, sequential=False)
        settings = {"model": policy.fingerprint} | asked_of(stage, stage.held_out, request)
        answered = decode_step(stage, "answer", settings, model, stage.held_out, 1, request)

        def records(start: int, answered=answered):
            for at in range(start, len(answered.records)):
                [answer], [baseline] = answers_of(answered.records[at]), answers_of(plain.records[at])
                prompt = stage.held_out[at]
                verdicts = both_orders(judge, prompt.instruction, answer.text, [baseline.text])
                yield [judged_record(stage, prompt, answer, baseline, verdicts)]

        settings = {"answers": answered.fingerprint, "baseline": plain.fingerprint, "judge": judged_by(stage)}
        made = stage.steps.make("evaluate", settings, len(answered.records), 1, records)
        found[f"temperature {temperature:g}"] = figures(made.records)
        if config.evaluate.timed:
            found[f"temperature {temperature:g}"]["realised"] = realised(stage, model, settings["answers"], request)
    say(json.dumps(found))
    return found


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
    """Wall-clock of the baseline over the model's, each prompt alone in the interpreter, the second of two runs."""
    from pasta_jax.lang.clock import geometric_mean

    plain = dataclasses.replace(request, sequential=True)
    plain = dataclasses.replace(plain, sampling=dataclasses.replace(plain.sampling, temperature=0.0))
    baseline = time_step(stage, "baseline", fingerprint_of_params(stage.baseline.params), stage.baseline, plain)
    own = time_step(stage, "model", answers, model, request)
    pairs = zip(baseline.records, own.records, strict=True)
    return round(geometric_mean(there["ms"] / here["ms"] for there, here in pairs), 4)


def time_step(stage: Stage, of: str, fingerprint: str, model, request) -> Made:
    """Milliseconds of each of the timed prompts."""
    from pasta_jax.decode.generate import Settings, generate

    prompts = stage.held_out[: stage.config.evaluate.timed]
    settings = {"of": of, "model": fingerprint} | asked_of(stage, prompts, request)
    ids = [prompt.ids(model.tokenizer) for prompt in prompts]
    requests = [
        dataclasses.replace(
            request, prompt_ids=own, sampling=dataclasses.replace(request.sampling, seed=request.sampling.seed + number)
        )
        for number, own in enumerate(ids)
    ]
    alone = Settings(**stage.config.decoding.to_dict() | {"lanes": 1})

    def records(start: int):
        for _ in range(2):
            results = generate(model, requests, alone)
        yield [{"prompt": n, "ms": result.trace.rounds[-1][1]} for n, result in enumerate(results)]

    return stage.steps.make("time", settings, len(prompts), len(prompts), records)


def figures(records: list[dict]) -> dict:
    """Means over held-out prompts; speeds are geometric means."""
    from pasta_jax.evaluate.judges import Verdict, win_rate
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


def write_whole(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    cli.run(main, default_config="configs/preference.py")
