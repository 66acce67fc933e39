"""What all steps of the preference stage share: models, prompts, the judge, and answering."""

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from pasta_jax.errors import PastaError
from pasta_jax.pipelines.artifacts import Made, Steps, fingerprint_of, say


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
    judge: Any  # judges/judge.py::Judge

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
    stage = Stage(config, Steps(folder), sft, baseline, prompts, held_out, problems, None)
    return dataclasses.replace(stage, judge=judge_of(stage))


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
    from pasta_jax.decode.generate import DecodeConfig
    from pasta_jax.evaluate.candidates import sample

    block = stage.config.sample.block

    def records(start: int):
        for at in range(start, len(prompts), block):
            few, found, began = prompts[at : at + block], {}, time.monotonic()
            lanes = DecodeConfig(**stage.config.decoding.to_dict())
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
    from pasta_jax.judges import offline as judges_offline

    asked = stage.config.judge
    if asked.kind in judges_offline.PROXIES:
        return judges_offline.comparing(judges_offline.proxy(asked.kind, stage.config.prompts.source), asked.scale)
    if asked.kind == "toy":
        return judges_offline.toy_grader(stage.problems)
    if asked.kind == "llm":
        from pasta_jax.judges.llm import llm_judge
        from pasta_jax.llm import Endpoint

        endpoint = Endpoint(**asked.endpoint.to_dict())
        return llm_judge(endpoint, stage.steps.folder / "judge_cache.jsonl", asked.asks)
    known = ", ".join(("llm", "toy", *judges_offline.PROXIES))
    raise PastaError(f"config.judge.kind {asked.kind!r}: there is none of this name; choose one of {known}")


def judged_by(stage: Stage) -> dict:
    """What decides verdicts, apart from the texts."""
    asked = stage.plain("judge")
    asked = {name: asked[name] for name in ("kind", "scale", "asks", "endpoint")}
    if asked["kind"] == "llm":
        asked["endpoint"] = {name: asked["endpoint"][name] for name in ("url", "model", "temperature", "max_tokens")}
    else:
        del asked["endpoint"]
    if asked["kind"] == "rules":
        from pasta_jax.judges.rules import rules_of

        rules = rules_of(stage.config.prompts.source)
        asked["rules"] = fingerprint_of([[question, *map(dataclasses.astuple, of)] for question, of in rules.items()])
    return asked


def scoring_of(stage: Stage):
    """How answers are scored by a model."""
    from pasta_jax.models.weights import platform_dtype
    from pasta_jax.train.loss import Scoring

    asked = stage.config.train
    tags = stage.sft.tokenizer.tags
    return Scoring(stage.sft.config, tags, platform_dtype(), slice=asked.slice, block=asked.block, remat=asked.remat)
