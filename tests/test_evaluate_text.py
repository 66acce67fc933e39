"""Evaluation on prompts from start to end with a tiny model: answers are kept, a stopped run resumes, equal figures."""

import dataclasses
import json

import pytest

from configs.evaluate import get_config
from pasta_jax import settings
from pasta_jax.data.prompt_sets import by_hash, no_fork
from pasta_jax.errors import PastaError
from pasta_jax.models.defaults import Defaults
from pasta_jax.pipelines import evaluate_text
from pasta_jax.pipelines.evaluate_speed import Timing, realised
from tests.traces import tiny_model


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Answers to five prompts, at most 16 tokens long, by a model whose own temperature is 1."""
    model = dataclasses.replace(tiny_model(), defaults=Defaults(temperature=1.0, max_topic_words=2))
    monkeypatch.setattr(evaluate_text, "load", lambda source, only_decoding: model)
    config = get_config("smollm2")
    config.prompts.update(alpaca_eval=0, no_fork=5)
    config.update(unmasked=1, timed=1)
    config.request.max_tokens = 16
    config.decoding.update(lanes=1, rows=2, widths=())  # one lane, as for timings: the programs are the same

    def run(**counts: int) -> evaluate_text.Report:
        config.prompts.update(counts)
        return evaluate_text.run(settings.read(config, evaluate_text.Settings), tmp_path)

    return run


def test_a_run_keeps_its_answers_and_resumes(run, tmp_path):
    report = run()
    files = sorted(tmp_path.glob("answers-*.jsonl"))
    assert len(files) == 2
    assert report.options["temperature"] == 1.0
    assert report.options["max_topic_words"] == 2
    assert json.loads((tmp_path / "report.json").read_text()) == json.loads(json.dumps(report.fields()))
    figures = report.sets["no_fork"]
    assert (figures.model.answers, figures.baseline.answers, figures.speed.pairs) == (5, 5, 5)
    assert figures.baseline.fork_rate == 0
    assert figures.model.malformed_unmasked in (0.0, 1.0)
    head, *lines = (json.loads(line) for line in files[0].read_text().splitlines())
    assert head["request"]["sampling"]["temperature"] == 1.0
    assert {line["prompt"] for line in lines} == set(by_hash(no_fork(), 5))
    assert sorted(line["seed"] for line in lines) == [0, 1, 2, 3, 4]

    # Cut off in the middle of its last line, then run again: the same answers.
    for path in files:
        path.write_bytes(path.read_bytes()[:-20])
    again = run()
    assert again == report  # also the timings: they were read
    assert report.realised.prompts == 1
    pairs = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert [pair["prompt"] for pair in pairs] == by_hash(no_fork(), 5)
    assert [len(path.read_text().splitlines()) for path in files] == [6, 6]


def test_realised_speedup_of_timings():
    def timing(number: int, seconds: float, chunks: int, steps: int = 10) -> Timing:
        return Timing(number, seconds, 4.0, chunks, steps, baseline_steps=40)

    result = realised([timing(0, 1.0, 2), timing(1, 4.0, 0, 40), timing(2, 1.0, 1, steps=0)])
    assert (result.prompts, result.forked) == (2, 1)
    assert (result.speedup, result.theoretical) == pytest.approx((2, 2))
    assert (result.speedup_of_forked, result.theoretical_of_forked) == pytest.approx((4, 4))
    assert realised([timing(0, 4.0, 0)]).speedup_of_forked is None
    with pytest.raises(PastaError, match=r"config\.timed: all timed answers are empty"):
        realised([timing(0, 1.0, 1, steps=0)])


def test_no_prompt_at_all_is_refused(run):
    with pytest.raises(PastaError, match=r"config\.prompts: all sets have 0 prompts"):
        run(no_fork=0)


def test_the_table_has_a_row_per_figure(run):
    text = run().text()
    rows = {line[:24].strip(): line[24:].split() for line in text.splitlines()[2:]}
    assert rows["answers"] == ["5", "5"]
    assert rows["fork rate"][1] == "0.000"
    assert {"repetition", "speedup", "speedup of forked", "theoretical of forked"} <= rows.keys()
