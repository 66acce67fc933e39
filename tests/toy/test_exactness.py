"""Reports on the toy task, compared with figures worked out by hand from fixed answers."""

import dataclasses
import json

import pytest

from pasta_jax.decode.request import Request
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.errors import PastaError
from pasta_jax.toy import run as evaluate
from pasta_jax.toy.exactness import GradedAnswer, answer_all, quality, requests_for, speed
from pasta_jax.toy.settings import ToyEvaluationSettings
from pasta_jax.toy.task import Problem, problems
from pasta_jax.toy.tokenizer import toy_tokenizer
from pasta_jax.weights.load import export_model
from pasta_jax.weights.model import Model
from pasta_jax.weights.rules import Rules
from tests.helpers.forked import command
from tests.helpers.models import random_params
from tests.toy.test_ablation import talkative

SETTINGS = DecodeConfig(lanes=8, rows=4, slots=96)  # as in test_ablation.py
TEMPLATE = Request(
    (), 60, sequential=False, rules=Rules(temperature=1.0, seed=7, max_topic_tokens=2, max_chunk_tokens=12)
)
pytestmark = pytest.mark.usefixtures("few_programs")


def problem_of(lines: tuple[str, ...], has_ends: bool) -> Problem:
    return Problem("?", lines, has_ends, "each", "")


def answer_to(of: Problem, text: str, tokens: int, path: int, chunks: int, finished: bool = True) -> GradedAnswer:
    return GradedAnswer(of, text, text, chunks, tokens, tokens - 2 * chunks, path, finished)


ONE = problem_of(("birds owl 1 Owl",), False)
TWO = problem_of(("birds owl 1 Owl", "trees elm 1 Elm", "ends birds Owl trees Elm"), True)
ANSWERS = [
    answer_to(ONE, ONE.answer, 10, 10, 0),
    answer_to(TWO, TWO.answer, 40, 10, 2),
    answer_to(TWO, TWO.answer.replace("Owl trees Elm", "Owl trees Oak"), 40, 20, 2),
    answer_to(TWO, TWO.answer, 40, 40, 0, finished=False),
]


def test_quality_counts_answers_walks_and_ends_apart():
    expected = {"answers": 4, "exact": 0.5, "exact_with_ends": 0.3333, "walks": 1.0, "ends": 0.6667, "cut_off": 1}
    assert quality(ANSWERS) == expected


def test_speedups_are_relative_to_the_baselines_own_answers():
    plain = [
        answer_to(answer.problem, answer.problem.answer, tokens, tokens, 0)
        for answer, tokens in zip(ANSWERS, (10, 40, 20, 10), strict=True)
    ]
    report = speed(ANSWERS, plain)
    assert report["forked"] == pytest.approx(2 / 3, abs=1e-4)
    assert report["forked_without_need"] == 0
    assert report["speedup"] == 1.0  # 1, 4, 1 and 1/4
    assert report["parallelism"] == pytest.approx((1 * 3.6 * 1.8 * 1) ** (1 / 4), abs=1e-4)
    assert report["parallelism"] * report["length_ratio"] == pytest.approx(report["speedup"], abs=1e-3)
    assert report["speedup_arithmetic"] == pytest.approx(6.25 / 4, abs=1e-4)


def test_a_figure_of_nothing_is_shown_as_none():
    """A problem without parts and ends, and a model that writes nothing."""
    silent = [answer_to(ONE, "", 0, 0, 0)]
    report = {"level": "small", "temperature": 0.0, "model": quality(silent), "baseline": quality(ANSWERS[:1])}
    report["speed"] = speed(silent, ANSWERS[:1])
    shown = {line[:28].strip(): line[28:].split() for line in evaluate.table(report).splitlines()[3:]}
    assert shown["correct walks"] == ["0.0%", "100.0%"]
    assert shown["exact answers with ends"] == shown["correct ends"] == ["-", "-"]
    assert shown["forked, of those with parts"] == shown["theoretical speedup"] == ["-"]
    assert report["model"]["ends"] is report["speed"]["speedup_arithmetic"] is None


@pytest.mark.slow
def test_answers_equal_the_interpreters_each_with_its_own_seed(capsys):
    chosen = problems(1, 0, 10, "small")
    requests = requests_for(talkative(), chosen, TEMPLATE, sequential=False)
    assert [request.rules.seed for request in requests] == list(range(7, 17))
    whole = answer_all(talkative(), chosen, SETTINGS, TEMPLATE, sequential=False)
    assert [answer.problem for answer in whole] == chosen
    assert any(answer.chunks for answer in whole)
    assert not any(answer.exact for answer in whole)
    plain = answer_all(talkative(), chosen, SETTINGS, TEMPLATE, sequential=True)
    assert not any(answer.chunks for answer in plain)
    assert all(answer.critical_path == answer.tokens for answer in plain)
    progress = capsys.readouterr().err
    assert "asynchronous answers: 10 of 10" in progress
    assert "sequential answers: 10 of 10" in progress


@pytest.mark.slow
def test_the_command_reports_on_its_last_line(tmp_path):
    config = dataclasses.replace(talkative().config, tied_head=True)
    model = Model("toy", config, random_params(config, 3), toy_tokenizer())
    export_model(model, tmp_path / "model")
    flags = ["--config=configs/evaluate.py:toy", "--config.level=small"]
    flags += [f"--config.{name}.path={tmp_path / 'model'}" for name in ("model", "baseline")]
    flags += ["--config.problems=6", "--config.ablation=2", "--config.request.max_tokens=20"]
    flags += [f"--output={tmp_path / 'answers.jsonl'}"]
    *table, last = command(tmp_path, "evaluate", *flags).finish().splitlines()
    report = json.loads(last)
    assert table[0] == "6 problems of level small, temperature 0"
    shown = {line[:28].strip(): line[28:].split() for line in table[3:] if line}
    assert shown["exact answers"] == [f"{report[model]['exact']:.1%}" for model in ("model", "baseline")]
    assert shown["theoretical speedup"] == [f"{report['speed']['speedup']:.2f}"]
    assert shown["no_sync"] == [f"{report['broken']['no_sync'][name]:.1%}" for name in ("exact", "walks", "ends")]
    assert report["model"]["answers"] == report["baseline"]["answers"] == 6
    assert set(report["broken"]) == {"none", "no_sync", "sync_unseen", "all_seen"}
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [answer["problem"]["instruction"] for answer in answers] == [
        problem.instruction for problem in problems(0, 0, 6, "small")
    ]


def test_both_models_are_required():
    with pytest.raises(PastaError, match=r"^config\.model\.path: empty; set it to the folder model/"):
        evaluate.run(ToyEvaluationSettings())
