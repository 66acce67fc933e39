"""Systems: where their models come from; and the answers of one, kept and read again."""

import dataclasses

import pytest

from pasta_jax.decode.request import Request
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.errors import PastaError
from pasta_jax.evaluate.answers import SystemAnswer
from pasta_jax.evaluate.questions import Question
from pasta_jax.evaluate.run import sources_of
from pasta_jax.evaluate.settings import EvaluateSettings, SkeletonOptions
from pasta_jax.evaluate.systems import Task, answer_all
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
