"""What judges of the preference stage are asked, and how many of them at a time."""

import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from configs import preference
from pasta_jax.data import repetition
from pasta_jax.data.pairs import Pair
from pasta_jax.judges import choice
from pasta_jax.judges.judge import TIE, Entry, Judge, Verdict
from pasta_jax.judges.llm import LLMJudge
from pasta_jax.lang import words
from pasta_jax.llm.client import Client
from pasta_jax.preference.artifacts import Artifact, Artifacts
from pasta_jax.preference.candidates import Candidate
from pasta_jax.preference.pair import PromptPair, pair
from pasta_jax.preference.report import compare
from pasta_jax.preference.sample import Answers
from pasta_jax.preference.score import score
from pasta_jax.preference.stage import Stage, judge_inputs
from pasta_jax.runs.settings import changed
from pasta_jax.toy import task
from tests.helpers.endpoint_server import Server, bad, endpoint
from tests.helpers.traces import TOKENIZER

ENDPOINT = {"url": "http://127.0.0.1:1/v1", "model": "a judge"}


def stage_with(judge: Judge, folder: Path, *prompts: Pair, **changes: object) -> Stage:
    settings = changed(preference.tiny(), judge={"kind": "llm", "endpoint": ENDPOINT, **changes})
    model = SimpleNamespace(tokenizer=TOKENIZER)
    return Stage(settings, Artifacts(folder), model, model, model, prompts, prompts, {}, judge)


def test_judges_read_the_system_message(tmp_path):
    asked = set()

    def judge(question: str, first: Entry, second: Entry):
        asked.add(question)
        return TIE

    prompts = Pair.of("Answer in French.", "Say hi", "Salut", "x"), Pair.of("", "Say no", "Non", "x")
    stage = stage_with(judge, tmp_path, *prompts)
    answer = Candidate(tuple(TOKENIZER.encode("Bonjour")), "Bonjour", 4, 4, 0, True, True)
    answers = [Artifact(tmp_path, [Answers(n, (answer,)) for n in range(2)], str(which)) for which in range(2)]
    expected = {"Answer in French.\n\nSay hi", "Say no"}
    assert [one.verdicts for one in score(stage, *answers).records] == [((TIE,) * 4,)] * 2
    assert asked == expected
    asked.clear()
    assert [one.verdicts for one in compare(stage, *answers).records] == [(TIE,) * 2] * 2
    assert asked == expected


def written(text: str, critical_path: int) -> Candidate:
    return Candidate(tuple(TOKENIZER.encode(text)), text, len(text), critical_path, 0, True, True)


def test_scores_and_pairs_by_hand(tmp_path):
    """Speedup over the baseline's own answer to the prompt, plus twice the quality of its verdicts: four, or where the
    prompt has no reference, two."""

    def longer(question: str, first: Entry, second: Entry) -> Verdict:
        return Verdict(0.8, 0.0) if len(first.text) > len(second.text) else Verdict(0.0, 0.8)

    prompts = Pair.of("", "Say much", "rrrr", "x"), Pair.of("", "Say more", "", "x")
    stage = stage_with(longer, tmp_path, *prompts)
    baseline = Artifact(tmp_path, [Answers(0, (written("bb", 20),)), Answers(1, (written("bbbb", 30),))], "baseline")
    several = [
        (written("aaa", 10), written("aaaaa", 40), written("a", 4)),
        (written("a", 10), written("aaaaaa", 60), written("aa", 15)),
    ]
    samples = Artifact(tmp_path, [Answers(number, answers) for number, answers in enumerate(several)], "samples")
    scores = score(stage, samples, baseline)
    assert [record.baseline_tokens for record in scores.records] == [20, 30]
    assert [[len(of) for of in record.verdicts] for record in scores.records] == [[4] * 3, [2] * 3]
    first, second = pair(stage, samples, scores).records
    assert first == PromptPair(0, 1, 0, (2.0, 0.5, 5.0), *map(pytest.approx, ((1.0, 12.8, 0.0), (4.0, 26.1, 5.0))))
    assert second == PromptPair(1, 1, 2, (3.0, 0.5, 2.0), *map(pytest.approx, ((0.0, 6.4, 0.0), (3.0, 13.3, 2.0))))


@pytest.mark.parametrize("step", [score, compare])
def test_a_language_model_is_asked_for_several_verdicts_at_a_time(tmp_path, step):
    """Of several prompts: each has a single answer here."""
    together = threading.Barrier(4)

    def judge(question: str, first: Entry, second: Entry):
        together.wait(timeout)
        return TIE

    prompts = [Pair.of("", f"Say {number}", "yes", "x") for number in range(8)]
    answer = Candidate(tuple(TOKENIZER.encode("no")), "no", 2, 2, 0, True, True)
    answers = [Artifact(tmp_path, [Answers(n, (answer,)) for n in range(8)], str(which)) for which in range(2)]
    timeout = 10
    assert len(step(stage_with(judge, tmp_path / "four", *prompts, concurrency=4), *answers).records) == 8
    timeout = 0.5
    with pytest.raises(threading.BrokenBarrierError):
        step(stage_with(judge, tmp_path / "three", *prompts, concurrency=3), *answers)


def test_an_interrupt_does_not_wait_for_retries(tmp_path, sigint):
    """An endpoint that is down is when a user presses Ctrl-C."""

    def respond(number: int, _: dict):
        if number == 1:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        return bad(503)

    answer = Candidate(tuple(TOKENIZER.encode("no")), "no", 2, 2, 0, True, True)
    answers = [Artifact(tmp_path, [Answers(0, (answer,))], str(which)) for which in range(2)]
    with Server(respond) as server:
        patient = endpoint(server.url, retries=100, backoff_s=0.02, max_backoff_s=0.02)
        judge = LLMJudge(Client(patient, tmp_path / "cache"), 3)
        with judge.client, pytest.raises(KeyboardInterrupt):
            score(stage_with(judge, tmp_path, Pair.of("", "Say no", "no", "x")), *answers)
        assert len(server.seen) < 50


@pytest.mark.parametrize("module", [choice, repetition, words, task])
def test_verdicts_are_keyed_by_all_code_that_they_come_from(tmp_path, monkeypatch, module):
    """`shorter` is a line of choice.py, and counts words; the toy task grades itself."""
    before = judge_inputs(preference.tiny())
    (tmp_path / "changed.py").write_text(Path(module.__file__).read_text() + "\n")
    monkeypatch.setattr(module, "__file__", str(tmp_path / "changed.py"))
    assert judge_inputs(preference.tiny()) != before
