"""The benchmark of forks: all ways answer the same questions, and none of them changes an answer's beginning."""

import json

from pasta_jax.benchmark import forks
from pasta_jax.benchmark.run import as_json
from pasta_jax.benchmark.settings import BenchmarkSettings
from pasta_jax.runs.settings import changed
from tests.helpers.traces import tiny_model

SMALL = {"lanes": 2, "clients": (1, 2), "rows": 3, "slots": 128, "packed": (2, 4), "max_tokens": 12, "rounds": 2}


def test_every_way_answers_the_same_questions(monkeypatch, tmp_path):
    monkeypatch.setenv("PASTA_JAX_CACHE", str(tmp_path))
    monkeypatch.setattr(forks, "load", lambda *_, **__: tiny_model())
    monkeypatch.setattr(forks, "questions_of", lambda _, count: ["a" * n for n in range(1, count + 1)])
    report = json.loads(as_json(forks.measure(changed(BenchmarkSettings(), forks=SMALL))))
    assert list(report["clients"]) == ["1", "2"]
    for by_way in report["clients"].values():
        assert list(by_way) == list(forks.WAYS)
        for figures in by_way.values():
            assert 0 < figures["tokens"] <= 12 * 2 * 2
            assert figures["first_token_ms"] <= 1e3 * figures["answer_s"] + 10
    assert len(list((tmp_path / "widths").iterdir())) == 1
