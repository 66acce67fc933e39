"""The likelihood verifier with a real model: what it tells apart, and what it changes in an annotation."""

import functools
import json

import pytest

import configs.verifier
from launch import verifier
from pasta_jax.annotate import hiding
from pasta_jax.annotate import verifier as pipeline
from pasta_jax.annotate.dependence import twins
from pasta_jax.annotate.hiding import hidden_from
from pasta_jax.annotate.likelihood import cut, prune
from pasta_jax.annotate.settings import Weighing
from pasta_jax.lang.program import Chunk
from pasta_jax.runs.settings import changed
from pasta_jax.weights.model import Model
from tests.helpers.loading import load_model
from tests.helpers.requires import requires_smollm2

pytestmark = requires_smollm2


@functools.cache
def smollm2() -> Model:
    return load_model("smollm2_135m", "", stacked=True)


@pytest.fixture
def few_blocks(fully_compiled, monkeypatch):
    """Two forward passes, whose layers compile once."""
    monkeypatch.setattr(hiding, "BLOCKS", (64, 128))


def test_a_real_model_separates_dependent_from_independent_text(few_blocks, monkeypatch, capsys):
    """A sample of what the command measures."""
    monkeypatch.setattr(pipeline, "load", lambda source: smollm2())
    verifier.main(changed(configs.verifier.tiny(), pairs=4))
    out = capsys.readouterr().out.splitlines()
    report = json.loads(out[-1])
    assert report["pairs"] == report["all"]["pairs"] == 4
    assert report["main"]["pairs"] == report["sibling"]["pairs"] == 2
    assert report["all"]["auc"] >= 0.9
    groups = [["all", "4"], ["main", "2"], ["sibling", "2"], ["parallel", "30"]]
    assert [line.split()[:2] for line in out[:-1]] == groups


def test_a_real_model_fixes_what_needs_a_chunk_and_leaves_the_rest(few_blocks):
    model = smollm2()
    weighing = Weighing(max_cost=0.15, window=12, max_fixes=4, min_speedup=1.0, lengths=(192,))
    twin = twins(200, seed=0)[6]
    messages = [("user", twin.instruction)]
    dependent, evidence = prune(model, messages, twin.dependent, weighing)
    assert len(evidence["fixes"]) == 1
    pieces, plan = cut(dependent, model.tokenizer)
    with_fact = next(n for n, piece in enumerate(pieces) if twin.fact in piece.text)
    assert with_fact not in hidden_from(plan, len(pieces) - 1), "the last line sees the fact"
    assert dependent.strip() == twin.dependent.strip()
    independent, evidence = prune(model, messages, twin.independent, weighing)
    assert evidence["fixes"] == []
    assert [part.text for part in independent.parts if isinstance(part, Chunk)] == [
        part.text for part in twin.independent.parts if isinstance(part, Chunk)
    ]
