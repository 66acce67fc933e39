"""Doors of runs: files of the preference stage's steps, checkpoints, metrics, settings, answers so far, cards."""

import dataclasses
import json
import operator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec

from pasta_jax.answer.many import answers_file
from pasta_jax.answer.prompts import Prompt
from pasta_jax.answer.record import AnswerRecord, summary_of_many
from pasta_jax.evaluate.answers import ChunkFigures, Fed, SystemAnswer
from pasta_jax.judges.judge import TIE, Agreement, Verdict
from pasta_jax.lang.structure import PREDICTED
from pasta_jax.preference.artifacts import Artifacts, Step
from pasta_jax.preference.candidates import Candidate
from pasta_jax.preference.learn import ReferenceScore
from pasta_jax.preference.pair import PromptPair
from pasta_jax.preference.report import Comparison, PromptTime, figures
from pasta_jax.preference.sample import Answers
from pasta_jax.preference.score import Scores
from pasta_jax.runs import settings as run_config
from pasta_jax.runs.checkpoint import Checkpoints, provenance
from pasta_jax.runs.metrics import Metrics
from pasta_jax.runs.records import opened
from pasta_jax.toy import level
from pasta_jax.weights import card, generation_config
from tests.fuzz.mutations import Mutator
from tests.fuzz.run import Input

COUNT = 3
CANDIDATE = Candidate((1, 2, 3), "text", 3, 3, 0, True, True)
STEPS: dict[type, list[Any]] = {
    Answers: [Answers(n, (CANDIDATE, CANDIDATE)) for n in range(COUNT)],
    Scores: [Scores(n, 10, ((TIE, Verdict(1.0, 0.0)), None)) for n in range(COUNT)],
    PromptPair: [
        PromptPair(n, *((0, 1) if n else (None, None)), (1.5, 1.0), (2.0, 0.5), (3.0, 1.5)) for n in range(COUNT)
    ],
    ReferenceScore: [ReferenceScore(n, -10.5, -20.0) for n in range(COUNT)],
    Comparison: [Comparison("Why?", (TIE,), None, 5, 10, 20, 1, True, True) for _ in range(COUNT)],
    PromptTime: [PromptTime(n, 10.0, 5.0) for n in range(COUNT)],
    Agreement: [Agreement(300, 0.6, 2)] * COUNT,
}


def artifacts(folder: Path) -> list[Input]:
    """A step's finished file, and one that a kill left."""
    store, made_from = Artifacts(folder), {"seed": 1, "text": "数"}
    finished = store.path("step", made_from).with_suffix(".jsonl")
    head = {"step": "step", "made_from": made_from}

    def fits(number: int, record: Any) -> bool:
        return getattr(record, "prompt", number) in (number, number + 1, "Why?")

    def input_of(path: Path, cls: type, rows: list[Any]) -> Input:
        def read() -> None:
            compute = lambda numbers: ((n, rows[n]) for n in numbers)  # noqa: E731
            records = store.make(Step("step", made_from, cls, COUNT, compute, fits=fits)).records
            assert len(records) == COUNT
            if cls is Comparison:
                figures(records, None)

        return Input(path, [head, *map(run_config.plain, rows)], read, head=1)

    paths = finished, finished.with_name(finished.name + ".part")
    return [input_of(path, cls, rows) for path in paths for cls, rows in STEPS.items()]


def checkpoints(folder: Path) -> list[Input]:
    """A checkpoint's sizes, record and arrays."""
    state = {"a": jnp.arange(4.0), "b": {"c": jnp.ones((2, 3), jnp.int32)}}
    about = provenance({"steps": 3}, "data", dataclasses.asdict(PREDICTED))

    def opened() -> Checkpoints:
        return Checkpoints(folder, about, keep=2, keep_every=0)

    saved = opened()
    saved.save(3, state)
    saved.close()

    def read() -> None:
        run = opened()
        try:
            if (latest := run.latest()) is not None:
                run.about(latest)["data"]
                run.restore(latest, jax.tree.map(lambda x: x, state))
        finally:
            run.close()

    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    told = [path for path in paths if path.name in ("sizes", "metadata") or "METADATA" in path.name]
    return [Input(path, path.read_bytes(), read, change_json) for path in (*paths, *told * 2)]


def change_json(by: Mutator, content: bytes) -> bytes:
    """A file whose size counts, so that its valid form is its bytes."""
    try:
        return by.json(json.loads(content))
    except ValueError:
        return by.raw(content)


def workdirs(folder: Path) -> list[Input]:
    """What a run finds in its folder: metrics, settings, answers so far, sampling options, cards."""
    metrics = [{"step": n, "loss": 1 / n, "held_out/loss": 2.0} for n in range(1, 5)]
    settings = {"train": {"steps": 3, "seed": 0}, "model": {"path": ""}, "data": {"toy": "small"}}
    asked = [Prompt("", f"Question {n}?") for n in range(3)]
    counts = dict(prompt_tokens=3, tokens=4, text_tokens=4, chunks=0, steps=4, critical_path=4, parallelism=1.0)
    texts = dict(text="a", program="a", model="toy", dataset=None, finish_reason="stop")
    times = dict(prefill_ms=1.5, decode_ms=2.5, baseline_tokens=None, theoretical_speedup=None)
    kept = counts | texts | times | dict(sequential=False, replayed=False)
    records = [AnswerRecord(index=n, prompt=asked[n].text, **kept) for n in range(3)]
    header = {"model": "toy", "seed": 0}
    chunks = (ChunkFigures("topic", 10, 5, "own", 1, 6),)
    fed = Fed((7, 8, 9, 7), (0, 0, 1, 0), (1, 2, 2, 3))
    answer = SystemAnswer("set", 0, "Why?", "a", "a", False, None, True, 4, 4, 4, 4, chunks, 0, 0.5, 1.5, fed)
    written = card.Card("model", "toy", PREDICTED, 256, figures={"loss": 0.5})
    options = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "pasta_jax": {"max_topic_words": 3}}

    def read_answers() -> None:
        with answers_file(folder / "out.jsonl", header, asked) as answers:
            for n in answers.missing(range(3)):
                answers.add(records[n])
        summary_of_many(list(answers.known.values()))

    def read_texts() -> None:
        with opened(folder / "answers", header, SystemAnswer, operator.attrgetter("prompts", "number"), "fix it"):
            pass

    def input_of(name: str, valid: Any, read: Any, head: int = 0) -> Input:
        return Input(folder / name, valid, read, head=head)

    return [
        input_of("metrics.jsonl", metrics, lambda: Metrics(folder, 2, 5, tensorboard=False).close()),
        input_of("out.jsonl.part", [header, *map(msgspec.to_builtins, records)], read_answers, head=1),
        input_of("answers", [header, run_config.plain(answer)], read_texts, head=1),
        input_of("config.json", settings, lambda: run_config.refuse_other(folder, settings, {})),
        input_of("config.json", settings, lambda: level.level_of(folder / "model")),
        input_of(generation_config.FILE, options, lambda: generation_config.read_defaults(folder)),
        input_of(card.FIELDS, msgspec.to_builtins(written), lambda: card.text(card.read(folder))),
    ]
