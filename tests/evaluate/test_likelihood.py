"""Answers that the baseline reads: their log-probabilities, against uncached passes over whole conversations."""

import dataclasses

import jax
import numpy as np
import pytest

from pasta_jax.decode.request import Request
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.errors import PastaError
from pasta_jax.evaluate import likelihood
from pasta_jax.evaluate.questions import Question
from pasta_jax.evaluate.settings import SkeletonOptions
from pasta_jax.evaluate.systems import Task
from pasta_jax.weights.rules import Rules
from tests.evaluate.test_figures import answer
from tests.helpers.models import uncached
from tests.helpers.traces import tiny_model

QUESTIONS = [Question("set", number, text, "") for number, text in enumerate(("Why?", "Name two."))]
TEXTS = {"model": ("no", "no"), "untagged": ("Because.", ""), "baseline": ("It is so.", "a, b")}


def task(system: str, sequential: bool = True) -> Task:
    template = Request((), 10, sequential, Rules())
    return Task(system, tiny_model(), template, DecodeConfig(lanes=1, rows=1), SkeletonOptions(), unmasked=0)


@pytest.fixture
def read(tmp_path):
    tasks = [task("model", sequential=False), task("untagged"), task("baseline")]

    def read(tasks=tasks, questions=QUESTIONS):
        answers = {
            system: [
                answer(one.number, one.text, text=text, prompts=one.prompts, finished=system == "baseline")
                for one, text in zip(questions, texts, strict=True)
            ]
            for system, texts in TEXTS.items()
        }
        return likelihood.read_answers(tasks, answers, questions, tmp_path)

    return read


def expected(question: Question, text: str, finished: bool) -> float:
    model = tiny_model()
    prompt, ids = model.tokenizer.chat(question.messages), model.tokenizer.encode(text)
    ids = [*ids, model.tokenizer.end_of_turn] if finished else ids
    log = np.asarray(jax.nn.log_softmax(uncached(model, [*prompt, *ids]), axis=-1))
    return float(np.mean([log[len(prompt) - 1 + place, id] for place, id in enumerate(ids)]))


def test_the_baseline_reads_answers_without_forks_as_its_own_context_has_them(read):
    found = read()
    assert found.keys() == {"untagged", "baseline"}  # a forked answer's order is not that of a text
    assert found["untagged"].keys() == {0}  # the other one is empty
    assert found["untagged"][0] == pytest.approx(expected(QUESTIONS[0], "Because.", False), abs=1e-3)
    assert found["baseline"][1] == pytest.approx(expected(QUESTIONS[1], "a, b", True), abs=1e-3)
    compared = likelihood.compared(found["untagged"], found["baseline"])
    assert compared["nats_over_baseline"] == {0: pytest.approx(found["untagged"][0] - found["baseline"][0])}


def test_answers_to_another_set_have_their_own(read):
    first = read()
    others = [dataclasses.replace(question, prompts="other", text="Who?") for question in QUESTIONS]
    assert read(questions=others)["baseline"][0] == pytest.approx(expected(others[0], "It is so.", True), abs=1e-3)
    assert read() == first


def test_a_text_longer_than_the_context_is_refused():
    model = tiny_model()
    ids = [97] * model.config.context
    whole, _ = likelihood.log_probability(model, [98], ids[2:])
    assert likelihood.log_probability(model, [99, 98], ids[2:])[0] != whole  # one before it fits
    assert likelihood.log_probability(model, [97, 99, 98], ids[2:])[0] == pytest.approx(
        likelihood.log_probability(model, [99, 98], ids[2:])[0]
    )
    with pytest.raises(PastaError, match="don't fit into its context"):
        likelihood.log_probability(model, [98], ids)


def test_what_was_read_is_kept_and_belongs_to_its_models(read, monkeypatch):
    found = read()
    monkeypatch.setattr(likelihood, "log_probability", lambda *_: pytest.fail("read twice"))
    assert read() == found
    other = dataclasses.replace(tiny_model(), name="another")
    with pytest.raises(PastaError, match=r"likelihood\.jsonl: .*reader"):
        read([task("untagged"), dataclasses.replace(task("baseline"), model=other)])
