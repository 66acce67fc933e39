"""Steps, lengths and means of an evaluation equal those that an independent script counts."""

import dataclasses
import json

import pytest

from pasta_jax.decode.request import Result
from pasta_jax.evaluate.answers import SystemAnswer, answer_of
from pasta_jax.evaluate.likelihood import Likelihood
from pasta_jax.evaluate.questions import Question
from pasta_jax.evaluate.run import reports
from pasta_jax.evaluate.timing import Timed, Timing
from pasta_jax.files import jsonl
from pasta_jax.files.atomic import write_json
from tests import recount
from tests.helpers.traces import TOKENIZER, random_traces

ANSWERS = 300
HEADER = {"system": "model", "tags": TOKENIZER.tags.base}


@pytest.fixture(scope="module")
def answers() -> list[SystemAnswer]:
    """Answers of random programs, half of which ran out of tokens, over 2 to 20 rows."""
    records = []
    for number, (trace, *_) in enumerate(random_traces(ANSWERS, seed=3)):
        trace = dataclasses.replace(trace, rounds=trace.rounds or ((0, 1.0),))
        result = Result(0, trace.program().strip(), trace.finish_reason, trace)
        records.append(answer_of(Question("random", number, f"prompt {number}", ""), 0, result, TOKENIZER, None))
    return records


def test_every_answer_counts_the_same(answers):
    different = []
    for answer in answers:
        found = recount.recount(HEADER, json.loads(json.dumps(dataclasses.asdict(answer))))
        assert found.pop("chunks") == [(chunk.promised, chunk.length) for chunk in answer.chunks]
        if found != {name: getattr(answer, name) for name in found}:
            different.append((answer.number, found))
    assert different == []
    assert sum(answer.steps > answer.critical_path for answer in answers) > 10  # rows were missing
    assert sum(len(answer.chunks) > 1 for answer in answers) > 100


def test_means_and_a_changed_record(answers, tmp_path):
    """Of a folder as an evaluation writes it; the other systems' answers are these of other prompts."""
    systems = {"model": answers}
    for system, shift in (("untagged", 1), ("baseline", 2)):
        others = zip(answers[shift:] + answers[:shift], answers, strict=True)
        systems[system] = [
            dataclasses.replace(other, number=answer.number, prompt=answer.prompt) for other, answer in others
        ]
    questions = [Question("random", answer.number, answer.prompt, "") for answer in answers]
    timings = [
        Timing(
            question.number,
            question.text,
            {
                system: Timed(1 + (question.number * place) % 7, several[question.number].critical_path, 0)
                for place, (system, several) in enumerate(systems.items(), start=2)
            },
        )
        for question in questions[:20]
    ]
    for system, several in systems.items():
        lines = [HEADER | {"system": system}, *map(dataclasses.asdict, several)]
        (tmp_path / f"answers-{system}.jsonl").write_bytes(b"".join(map(jsonl.json_line, lines)))
    lines = [{"rounds": 1}, *map(dataclasses.asdict, timings)]
    (tmp_path / "timings.jsonl").write_bytes(b"".join(map(jsonl.json_line, lines)))
    likely = {system: {n: -1.0 / (n + shift) for n in range(shift, 40)} for shift, system in enumerate(systems, 1)}
    read = [Likelihood(system, n, nats, 1) for system, several in likely.items() for n, nats in several.items()]
    lines = [{"reader": ""}, *map(dataclasses.asdict, read)]
    (tmp_path / "likelihood.jsonl").write_bytes(b"".join(map(jsonl.json_line, lines)))
    sets = reports(systems, {}, questions, timings, likely)
    stated = {system: dataclasses.asdict(one) for system, one in sets["random"].items()}
    write_json(tmp_path / "report.json", {"sets": {"random": stated}})
    differing, records, means = recount.compare(tmp_path)
    assert (differing, records) == ([], 3 * ANSWERS)
    assert means > 100

    stated["model"]["estimates"]["length_ratio_of_forked"]["value"] *= 1.001
    stated["untagged"]["figures"]["length"] += 0.01
    stated["baseline"]["estimates"]["nats_over_baseline"]["value"] += 0.01
    write_json(tmp_path / "report.json", {"sets": {"random": stated}})
    places = [line.split(": ")[1:3] for line in recount.compare(tmp_path)[0]]
    assert sorted(place[0] for place in places) == ["random, baseline", "random, model", "random, untagged"]

    path = tmp_path / "answers-model.jsonl"
    head, first, rest = path.read_text().split("\n", 2)
    changed = json.loads(first) | {"critical_path": 7777}
    path.write_text("\n".join([head, json.dumps(changed), rest]))
    assert recount.compare(tmp_path)[0][0].startswith("answers-model.jsonl: random 0: critical_path 7777, counted ")
