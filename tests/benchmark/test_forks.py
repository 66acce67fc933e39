"""The benchmark of forks: all ways answer the same questions, in turn."""

import json

import pytest

from pasta_jax.benchmark import forks
from pasta_jax.benchmark.run import as_json
from pasta_jax.benchmark.settings import BenchmarkSettings
from pasta_jax.errors import PastaError
from pasta_jax.runs.settings import changed
from tests.helpers.traces import tiny_model

SMALL = {"lanes": 2, "clients": (1, 2), "rows": 3, "slots": 128, "packed": (2, 4), "max_tokens": 12, "rounds": 2}


@pytest.mark.usefixtures("few_programs")
def test_every_way_answers_the_same_questions(monkeypatch, tmp_path):
    monkeypatch.setenv("PASTA_JAX_CACHE", str(tmp_path))
    monkeypatch.setattr(forks, "load", lambda *_, **__: tiny_model())
    monkeypatch.setattr(forks, "questions_of", lambda _, count: ["a" * n for n in range(1, count + 1)])
    asked, together = [], forks.together

    def noted(loop, requests, *others):
        [sequential] = {request.sequential for request in requests}
        asked.append(("off" if sequential else loop, [(one.prompt_ids, one.rules.seed) for one in requests]))
        return together(loop, requests, *others)

    monkeypatch.setattr(forks, "together", noted)
    with pytest.raises(PastaError, match=r"config\.serve\.threads: names no model"):
        forks.measure(changed(BenchmarkSettings(), forks=SMALL))
    settings = changed(BenchmarkSettings(), forks=SMALL, serve=dict(threads=dict(preset="tiny")))
    report = json.loads(as_json(forks.measure(settings)))
    assert list(report["clients"]) == ["1", "2"]
    for by_way in report["clients"].values():
        assert list(by_way) == list(forks.WAYS)
        for figures in by_way.values():
            assert 0 < figures["tokens"] <= 12 * 2 * 2
            assert figures["first_token_ms"] <= 1e3 * figures["answer_s"] + 10
    rounds = [asked[at : at + 3] for at in range(3, len(asked), 3)]  # the first three only compile
    assert len(rounds) == 4
    for turns in rounds:
        (_, same), *others = turns
        assert len({way for way, _ in turns}) == 3
        assert all(requests == same for _, requests in others)
    for pair in (rounds[:2], rounds[2:]):  # of one and of two clients: other questions, and another way is first
        assert pair[0][0][1] != pair[1][0][1]
        assert [way for way, _ in pair[1]] == [*[way for way, _ in pair[0]][1:], pair[0][0][0]]
    assert len(list((tmp_path / "widths").iterdir())) == 1
