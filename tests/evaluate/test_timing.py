"""Speed by the clock: which run counts, what is kept for a later one, and ratios over the baseline."""

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest

from pasta_jax.decode.request import Request
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.errors import PastaError
from pasta_jax.evaluate import timing as evaluate_speed
from pasta_jax.evaluate.questions import Question
from pasta_jax.evaluate.settings import SkeletonOptions, System
from pasta_jax.evaluate.systems import Task
from pasta_jax.evaluate.timing import Throughput, Timed, Timing, realised, time_answers, time_together
from pasta_jax.weights.rules import Rules
from tests.evaluate.test_figures import answer
from tests.helpers.traces import tiny_model

QUESTIONS = [Question("set", number, f"Question {number}?", "") for number in range(3)]
TEMPLATE = Request((), 9, sequential=False, rules=Rules(max_topic_tokens=12, max_chunk_tokens=9))


def task(system: System, lanes: int = 4) -> Task:
    config = DecodeConfig(lanes=lanes, rows=2, slots=0)
    return Task(system, tiny_model(), TEMPLATE, config, SkeletonOptions(2, 8, 6, "none"), unmasked=3)


@pytest.fixture
def clock(monkeypatch):
    """Answers that take 10 s each in a system's first run, of which 4 are compiling, then 2, then 3, and so on."""
    clock = SimpleNamespace(now=0.0, compiling=0.0, runs=[], died=False)
    monkeypatch.setattr(evaluate_speed, "clock", lambda: clock.now - clock.compiling)

    def seconds_of(system: System) -> float:
        before = clock.runs.count(system)
        clock.runs.append(system)
        return before + 1 if before else 10

    def answers(self: Task, questions: list[Question]):
        assert self.unmasked == 0
        if clock.died:
            raise KeyboardInterrupt
        each = seconds_of(self.system)
        for question in questions:
            clock.now += each
            clock.compiling += 4 * (each == 10)
            yield question, answer(question.number, question.text, tokens=100, text_tokens=50)

    def alone(self: Task, question: Question):
        return answer(question.number, question.text, prefill_seconds=0.25, decode_seconds=seconds_of(self.system))

    monkeypatch.setattr(Task, "answers", answers)
    monkeypatch.setattr(Task, "alone", alone)
    return clock


def test_throughput_is_that_of_the_second_run(clock, tmp_path):
    found = time_together([task("model"), task("skeleton"), task("baseline")], QUESTIONS, tmp_path)
    assert found == dict.fromkeys(("model", "baseline"), Throughput(3, 4, 6.0, 25.0))  # 3 answers of 2 s, 50 tokens
    assert clock.runs == ["model", "model", "baseline", "baseline"]


def test_throughput_of_an_earlier_run_is_read(clock, tmp_path):
    both = [task("model"), task("baseline")]
    clock.runs.append("model")  # the one run that model can finish before the end
    runs = itertools.count()
    before = evaluate_speed.Progress.add

    def dies(progress, *arguments):
        clock.died = next(runs) >= 5  # with model's second run
        before(progress, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate_speed.Progress, "add", dies)
        with pytest.raises(KeyboardInterrupt):
            time_together(both, QUESTIONS, tmp_path)
    clock.died = False
    found = time_together(both, QUESTIONS, tmp_path)
    assert clock.runs[1:] == ["model", "model", "baseline", "baseline"]
    assert found["model"].seconds == 9.0
    assert time_together(both, QUESTIONS, tmp_path) == found
    assert len(clock.runs) == 5


def test_speeds_measured_otherwise_are_refused_by_name(clock, tmp_path, monkeypatch):
    time_together([task("model")], QUESTIONS, tmp_path)
    with pytest.raises(PastaError, match=r"throughput\.jsonl: begun with lanes=4, now 5"):
        time_together([task("model", lanes=5)], QUESTIONS, tmp_path)
    with pytest.raises(PastaError, match="begun with answers=3, now 2"):
        time_together([task("model")], QUESTIONS[:2], tmp_path)
    assert time_together([task("unshared")], QUESTIONS, tmp_path / "none") == {}
    time_answers([task("model")], QUESTIONS, 1, tmp_path)
    with pytest.raises(PastaError, match=r"timings\.jsonl: begun with rounds=1, now 2"):
        time_answers([task("model")], QUESTIONS, 2, tmp_path)
    with pytest.raises(PastaError, match=r"timings\.jsonl: of other prompts"):
        time_answers([task("model")], QUESTIONS[1:], 1, tmp_path)
    monkeypatch.setattr(evaluate_speed.platform, "machine", lambda: "another")
    with pytest.raises(PastaError, match=r"timings\.jsonl: begun with machine=.*, now another"):
        time_answers([task("model")], QUESTIONS, 1, tmp_path)


def test_systems_alternate_and_the_median_of_all_runs_but_the_first_counts(clock, tmp_path: Path):
    both = [task("model"), task("baseline")]
    [timing] = time_answers(both, QUESTIONS[:1], 3, tmp_path)
    assert clock.runs == ["model", "baseline"] * 4
    assert {system: one.seconds for system, one in timing.systems.items()} == {"model": 3.25, "baseline": 3.25}
    timings = time_answers(both, QUESTIONS[:2], 3, tmp_path)
    assert (timings[0], len(clock.runs)) == (timing, 16)  # the first was read


def test_realised_speedup_of_timings():
    def timing(number: int, seconds: float, chunks: int, steps: int = 10) -> Timing:
        return Timing(number, "", {"model": Timed(seconds, steps, chunks), "baseline": Timed(4.0, 40, 0)})

    result = realised([timing(0, 1.0, 2), timing(1, 4.0, 0, 40), timing(2, 1.0, 1, steps=0)], "model")
    assert (result.prompts, result.forked) == (2, 1)
    assert (result.speedup, result.theoretical) == pytest.approx((2, 2))
    assert (result.speedup_of_forked, result.theoretical_of_forked) == pytest.approx((4, 4))
    assert realised([timing(0, 4.0, 0)], "model").speedup_of_forked is None
    assert realised([timing(0, 1.0, 1, steps=0)], "model") is None
