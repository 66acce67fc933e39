"""The four ways give equal answers, and a stopped run goes on from its log."""

import dataclasses
import json

import pytest

from pasta_jax.benchmark import ways
from pasta_jax.benchmark.settings import BenchmarkSettings, WaysBenchmark
from pasta_jax.decode import device_loop
from pasta_jax.device import platform
from pasta_jax.errors import PastaError
from pasta_jax.evaluate.questions import Question, QuestionSet
from pasta_jax.models.kernels.cpu import library
from pasta_jax.runs.settings import changed
from tests.decode.test_sampled_programs import Syllables, talkative


class Chatting(Syllables):
    def chat(self, messages):
        return self.encode(messages[-1][1])


@pytest.mark.usefixtures("few_programs")
def test_drafts_change_no_answer_and_a_stopped_run_goes_on(monkeypatch, tmp_path):
    questions = tuple(Question("alpaca_eval", number, f"ab {number} ab", "") for number in range(6))
    sets = {"alpaca_eval": QuestionSet(questions, "six")}
    model, prices = dataclasses.replace(talkative(), tokenizer=Chatting()), []

    def free(model, state, spec):
        prices.append(spec.sizes)
        return state, [1.0] * len(spec.priced_rows)

    monkeypatch.setattr(device_loop, "prices_of", free)
    monkeypatch.setattr(ways, "question_sets", lambda prompts: sets)
    monkeypatch.setattr(ways, "load", lambda source, only_decoding: model)
    config = WaysBenchmark(
        prompts=6, clients=2, max_tokens=40, rows=4, slots=80, packed=(2, 4), log=str(tmp_path / "log" / "w.jsonl")
    )
    settings = BenchmarkSettings(ways=dataclasses.replace(config, minutes=1e-9))
    assert ways.measure(settings)["groups"] == 0
    settings = BenchmarkSettings(ways=config)
    report = ways.measure(settings)
    assert report["groups"] == 3
    assert report["equal"] == report["compared"] > 0
    sums = report["ways"]
    assert sums["neither"]["drafts"] == sums["forks"]["drafts"] == 0 < sums["both"]["drafts"]
    assert sums["neither"]["chunks"] == 0 < sums["forks"]["chunks"]
    for way in sums.values():  # every token and every kept draft is of one kind
        assert [sum(counts) for counts in zip(*way["by_kind"].values(), strict=True)] == [way["kept"], way["tokens"]]
    assert min(tokens for _, tokens in sums["both"]["by_kind"].values()) > 0 == sums["neither"]["by_kind"]["topic"][1]
    assert sums["drafts"]["steps"] <= sums["neither"]["steps"]
    assert sums["neither"]["times_as_fast"]["steps"] == [1.0, 1.0, 1.0]
    mean, low, high = sums["drafts"]["times_as_fast"]["steps"]
    assert 1 <= low <= mean <= high
    loops = len(prices)
    assert ways.measure(settings) == report
    assert len(prices) == loops  # nothing is decoded again
    lines = (tmp_path / "log" / "w.jsonl").read_text().splitlines()
    assert [json.loads(line).get("number") for line in lines] == [None, 0, 1, 2]
    fewer = json.dumps(json.loads(lines[3]) | {"prompts": 1})  # as of a run of five prompts
    (tmp_path / "log" / "w.jsonl").write_text("\n".join([*lines[:3], fewer]) + "\n")
    assert ways.measure(settings)["equal"] == report["equal"]
    assert len(prices) > loops
    with pytest.raises(PastaError, match="clients"):
        ways.measure(BenchmarkSettings(ways=dataclasses.replace(config, clients=1)))
    with pytest.raises(PastaError, match="kernel"):
        ways.measure(BenchmarkSettings(ways=changed(config, model=dict(kernel=False))))
    with monkeypatch.context() as other:
        other.setattr(library, "cores", lambda: 64)
        with pytest.raises(PastaError, match="cores"):
            ways.measure(settings)
    monkeypatch.setattr(platform, "machine", lambda: "another")
    with pytest.raises(PastaError, match="machine"):
        ways.measure(settings)
