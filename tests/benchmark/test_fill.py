"""The extraction set states its own answers, and the benchmark of fields compares the same values in every way."""

import dataclasses

import pytest

from pasta_jax.benchmark import fill
from pasta_jax.benchmark.facts import CATALOGUE, extraction
from pasta_jax.benchmark.settings import BenchmarkSettings, FillBenchmark
from pasta_jax.fields.schema import form_of
from pasta_jax.fields.settings import FillOptions
from tests.helpers.traces import tiny_model


@pytest.mark.parametrize("facts", [1, 16, len(CATALOGUE)])
def test_a_text_states_each_fact_once(facts):
    made, again, other = extraction(facts, 3), extraction(facts, 3), extraction(facts, 4)
    assert made == again != other
    assert list(made.answers) == [leaf.name for leaf in form_of(made.schema).leaves]
    for name, value in made.answers.items():
        if not isinstance(value, bool) and made.schema["properties"][name].get("format") != "date":
            assert f" {value}" in f" {made.text}"
    assert fill.share_right(made, made.answers) == 1
    wrong = made.answers | {next(iter(made.answers)): "x"}
    assert fill.share_right(made, wrong) == pytest.approx(1 - 1 / facts)


@pytest.mark.usefixtures("few_programs")
def test_fields_are_as_right_forked_as_in_requests_of_their_own(monkeypatch):
    monkeypatch.setattr(fill, "load_or_make", lambda settings: tiny_model())
    options = FillBenchmark(facts=(2,), texts=2, options=FillOptions(max_tokens=6, instruction="?"))
    report = fill.measure(dataclasses.replace(BenchmarkSettings(), fill=options))
    by_way = report["facts"][2]
    assert by_way["forked"]["exact"] == by_way["separate"]["exact"]
    assert by_way["forked"]["incomplete"] == by_way["separate"]["incomplete"]
    assert by_way["forked"]["prompt_tokens"] < by_way["separate"]["prompt_tokens"]
    assert by_way["forked"]["times_forked"] == 1
