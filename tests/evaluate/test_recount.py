"""Steps, critical paths and speedups of an evaluation equal those that an independent script counts."""

import dataclasses
import json

import pytest

from pasta_jax.decode.request import Result
from pasta_jax.evaluate.answers import SystemAnswer, answer_of
from pasta_jax.evaluate.questions import Question
from pasta_jax.evaluate.summary import estimates, ratios
from pasta_jax.files import jsonl
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
        fields = json.loads(json.dumps(dataclasses.asdict(answer)))
        found = recount.recount(HEADER, fields)
        if found != {name: fields[name] for name in found}:
            different.append((answer.number, found))
    assert different == []
    assert sum(answer.steps > answer.critical_path for answer in answers) > 10  # rows were missing
    assert sum(len(answer.chunks) > 1 for answer in answers) > 100


def test_means_and_a_changed_record(answers, tmp_path):
    """Of a folder as an evaluation writes it; the baseline here is another set of random answers."""
    plain = [
        dataclasses.replace(one, number=answer.number, prompt=answer.prompt)
        for one, answer in zip(answers[::-1], answers, strict=True)
    ]
    for system, several in (("model", answers), ("baseline", plain)):
        lines = [HEADER | {"system": system}, *map(dataclasses.asdict, several)]
        (tmp_path / f"answers-{system}.jsonl").write_bytes(b"".join(map(jsonl.json_line, lines)))
    stated = {
        system: {"estimates": {name: vars(one) for name, one in estimates(ratios(several, {"": plain}, {})).items()}}
        for system, several in (("model", answers), ("baseline", plain))
    }
    (tmp_path / "report.json").write_text(json.dumps({"sets": {"random": stated}}))
    assert recount.compare(tmp_path) == ([], 2 * ANSWERS)

    path = tmp_path / "answers-model.jsonl"
    head, first, rest = path.read_text().split("\n", 2)
    changed = json.loads(first) | {"critical_path": 7777}
    path.write_text("\n".join([head, json.dumps(changed), rest]))
    [line], _ = recount.compare(tmp_path)
    assert line.startswith("answers-model.jsonl: random 0: critical_path 7777, counted ")
