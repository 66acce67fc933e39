"""Systems: where their models come from; and the answers of one, kept and read again."""

import dataclasses
from unittest.mock import Mock

import numpy as np
import pytest

from pasta_jax.decode.request import Request
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.errors import PastaError
from pasta_jax.evaluate import run
from pasta_jax.evaluate.answers import SystemAnswer
from pasta_jax.evaluate.questions import Question
from pasta_jax.evaluate.run import sources_of
from pasta_jax.evaluate.settings import EvaluateSettings, SkeletonOptions
from pasta_jax.evaluate.systems import Task, answer_all
from pasta_jax.tokenizers.template import Template
from pasta_jax.weights.rules import Rules
from pasta_jax.weights.settings import ModelSource
from tests.helpers.traces import tiny_model

QUESTIONS = [Question("set", number, text, "") for number, text in enumerate(("Why?", "Name two.", "Who?"))]
TEMPLATE = Request((), 10, sequential=False, rules=Rules(temperature=1.0))


def test_a_rival_is_the_baseline_or_what_is_named():
    settings = EvaluateSettings(systems=("skeleton", "baseline"))
    assert sources_of(settings)["skeleton"] == settings.baseline
    other = ModelSource("smollm2_135m", adapter="mine")
    assert sources_of(dataclasses.replace(settings, rival=other))["skeleton"] == other
    with pytest.raises(PastaError, match=r"config\.rival\.adapter: .*set config\.rival\.preset"):
        sources_of(dataclasses.replace(settings, rival=ModelSource(adapter="mine")))


def test_every_model_needs_a_drafter_where_one_drafts(monkeypatch):
    monkeypatch.setattr(run, "load", lambda *_, **__: tiny_model())
    settings = EvaluateSettings(systems=("baseline",), decoding=DecodeConfig(1, 2, 0, draft="drafter"))
    with pytest.raises(PastaError, match=r"no model named: set --config\.baseline\.path"):
        run.tasks_of(dataclasses.replace(settings, baseline=ModelSource()))
    with pytest.raises(PastaError, match="of the system baseline, has no drafter; set one beside each model"):
        run.tasks_of(settings)
    with pytest.raises(PastaError, match=r"config\.model\.drafter=x: is not used"):
        run.tasks_of(EvaluateSettings(model=ModelSource("smollm2_135m", drafter="x")))


def test_answers_depend_on_the_drafter_and_on_a_files_template():
    plain, config = tiny_model(), DecodeConfig(1, 2, 0, draft="drafter")

    def about(jinja: str, *, drafter: float) -> dict:
        template = Template({}, frozenset())
        tokenizer = Mock(wraps=plain.tokenizer, template=template, jinja=jinja, tags=plain.tokenizer.tags)
        params = plain.params | {"drafter": {"table": np.float32([drafter])}}
        model = dataclasses.replace(plain, tokenizer=tokenizer, params=params)
        return Task("model", model, TEMPLATE, config, SkeletonOptions(), unmasked=0).depends_on()

    first, drafted, templated = about("a", drafter=0), about("a", drafter=1), about("b", drafter=0)
    assert {name for name in first if first[name] != drafted[name]} == {"drafter"}
    assert {name for name in first if first[name] != templated[name]} == {"template"}


def test_a_question_without_ids_is_named():
    model = tiny_model()
    tokenizer = Mock(wraps=model.tokenizer, chat=Mock(side_effect=PastaError("no id for it; leave it out")))
    named = dataclasses.replace(model, tokenizer=tokenizer)
    task = Task("model", named, TEMPLATE, DecodeConfig(1, 2, 0), SkeletonOptions(), unmasked=0)
    with pytest.raises(PastaError, match=r"^set: prompt 2: no id for it; leave it out"):
        task.request(QUESTIONS[2])


@pytest.mark.slow
@pytest.mark.usefixtures("few_programs")
def test_answers_that_an_earlier_run_did_not_measure_without_the_mask_are_measured(tmp_path):
    def answers(unmasked: int) -> list[SystemAnswer]:
        config = DecodeConfig(lanes=1, rows=2, slots=512)
        return answer_all(
            Task("model", tiny_model(), TEMPLATE, config, SkeletonOptions(), unmasked), QUESTIONS, tmp_path
        )

    before, after = answers(0), answers(2)
    assert [answer.malformed_unmasked is None for answer in before] == [True, True, True]
    assert [answer.malformed_unmasked is None for answer in after] == [False, False, True]
    assert [answer.fed for answer in after] == [answer.fed for answer in before]
    assert answers(1) == after
