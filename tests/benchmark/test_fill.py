"""The extraction set states its own answers, and the benchmark of fields compares the same values in every way."""

import dataclasses
import json

import pytest

from pasta_jax.benchmark import fill
from pasta_jax.benchmark.facts import CATALOGUE, extraction
from pasta_jax.benchmark.settings import BenchmarkSettings, FillBenchmark
from pasta_jax.device import platform
from pasta_jax.errors import PastaError
from pasta_jax.fields.schema import form_of
from pasta_jax.fields.settings import FillOptions
from pasta_jax.models.kernels.cpu import library
from pasta_jax.weights.settings import ModelSource
from pasta_jax.weights.source import load
from tests.helpers.requires import requires_dev, requires_smollm2
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
def test_fields_are_as_right_forked_as_in_requests_of_their_own(monkeypatch, tmp_path):
    monkeypatch.setattr(fill, "load_or_make", lambda settings: tiny_model())
    options = FillOptions(max_tokens=6, instruction="?")
    options = FillBenchmark(facts=(2,), texts=2, options=options, records=str(tmp_path / "took.jsonl"))
    settings = dataclasses.replace(BenchmarkSettings(), fill=options)
    report = fill.measure(settings, with_peers=False)
    by_way = report["facts"][2]
    for line in (tmp_path / "took.jsonl").read_text().splitlines()[1:]:
        took = json.loads(line)["took"]
        assert took["forked"]["values"] == took["separate"]["values"]
        assert took["forked"]["incomplete"] == took["separate"]["incomplete"]
    assert by_way["forked"]["prompt_tokens"] < by_way["separate"]["prompt_tokens"]
    assert by_way["forked"]["times_forked"] == 1
    monkeypatch.setattr(fill, "_filled", lambda *_: pytest.fail("measured again"))
    assert fill.measure(settings, with_peers=False) == report
    with monkeypatch.context() as other:
        other.setattr(library, "version", lambda: "newer")
        with pytest.raises(PastaError, match="library"):
            fill.measure(settings, with_peers=False)
    monkeypatch.setattr(platform, "machine", lambda: "another")
    with pytest.raises(PastaError, match="machine"):
        fill.measure(settings, with_peers=False)


@requires_dev("xllamacpp")
@requires_smollm2
@pytest.mark.extended
def test_llama_cpp_reads_the_same_fields():
    source = ModelSource("smollm2_135m", dtype="q4", bits=8)
    model, text = load(source, only_decoding=True), extraction(4, 0)
    with fill.llama_cpp(model, FillBenchmark(slots=2)) as ways:
        alone, together = (way(text) for way in ways.values())
    ours = fill.separate(model, FillOptions(max_tokens=32))(text)
    assert alone.incomplete == together.incomplete == 0
    assert alone.computed < min(together.computed, ours.computed)
    assert alone.right == pytest.approx(ours.right, abs=0.1)
