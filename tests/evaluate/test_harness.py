"""lm-evaluation-harness itself on our model class: a task's scores as of transformers, and as of uncached passes."""

import dataclasses
import importlib
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from pasta_jax.decode.request import Request
from pasta_jax.errors import PastaError
from pasta_jax.evaluate.likelihood import log_probability
from pasta_jax.toy.tokenizer import toy_tokenizer
from pasta_jax.weights.load import export_model
from pasta_jax.weights.model import Model
from pasta_jax.weights.rules import Defaults
from tests.helpers import harness_task
from tests.helpers.models import random_params, uncached
from tests.helpers.requires import requires_dev
from tests.helpers.traces import tiny_model
from tests.weights.test_export import LLAMA


@pytest.fixture(scope="module")
def harness():
    return importlib.import_module("pasta_jax.evaluate.harness")


@requires_dev("lm_eval")
@pytest.mark.extended
@pytest.mark.filterwarnings("ignore")
def test_a_task_has_the_scores_of_transformers(harness, tmp_path):
    params = jax.device_put(random_params(LLAMA, 1))
    export_model(Model("toy", LLAMA, params, toy_tokenizer()), tmp_path / "model")
    ours = harness_task.evaluate("pasta_jax", f"source={tmp_path / 'model'}", tmp_path)
    theirs = harness_task.evaluate("hf", f"pretrained={tmp_path / 'model'},dtype=float32,device=cpu", tmp_path)
    assert ours[0] == theirs[0]
    np.testing.assert_allclose(ours[1], theirs[1], atol=1e-4)
    assert np.std(ours[1]) > 1


@requires_dev("lm_eval")
def test_continuations_are_scored_as_by_an_uncached_pass(harness):
    model = tiny_model()
    lm = harness.PastaLM(model=model)
    context, continuation = lm.tok_encode("What is it? ", add_special_tokens=False), [97, 98, 99]
    logits = uncached(model, [*context, *continuation])
    log = np.asarray(jax.nn.log_softmax(logits, axis=-1))
    places = range(len(context) - 1, len(context) + 2)
    expected = sum(log[place, id] for place, id in zip(places, continuation, strict=True))
    likeliest = int(logits[len(context) - 1].argmax())
    (total, greedy), (_, is_likeliest) = lm._loglikelihood_tokens(
        [(None, context, continuation), (None, context, [likeliest])]
    )
    assert total == pytest.approx(expected, abs=1e-4)
    assert (greedy, is_likeliest) == (False, True)
    whole, longer = "ab" * 20, "ab" * 300  # the latter in two windows: 511 tokens, then 89 after 423
    rolling = lm.loglikelihood_rolling([SimpleNamespace(args=(text,)) for text in (whole, longer)])
    ids = [lm.prefix_token_id, *longer.encode()]
    pieces = [(ids[:1], ids[1:41]), (ids[:1], ids[1:512]), (ids[89:512], ids[512:])]
    first, *others = (log_probability(model, *piece)[0] for piece in pieces)
    assert rolling == pytest.approx([first, sum(others)], abs=1e-3)


@requires_dev("lm_eval")
def test_generated_text_ends_at_the_first_stop_text(harness):
    assert harness._until("one\ntwo. three", {"until": [".", "\n"]}) == "one"
    assert harness._until("one", {"until": "two"}) == harness._until("one", {}) == "one"
    request = harness.PastaLM(model=tiny_model())._request("x" * 600, {"max_gen_toks": 100, "until": ["."]})
    assert len(request.prompt_ids) + 100 == 512  # the end of a context that is too long
    assert (request.rules.temperature, request.sequential) == (0.0, True)


@requires_dev("lm_eval")
def test_rules_are_the_tasks_over_the_models_own_and_repeats_draw_for_themselves(harness, monkeypatch):
    own = Defaults(temperature=0.7, top_p=0.8, max_topic_words=3)
    lm = harness.PastaLM(model=dataclasses.replace(tiny_model(), defaults=own))
    for options, expected in (
        ({}, (256, 0.0, 1.0)),
        ({"max_new_tokens": 9, "temperature": 0.5}, (9, 0.5, 1.0)),
        ({"max_tokens": 9, "do_sample": True, "top_p": 0.5, "top_k": 7}, (9, 1.0, 0.5)),
        ({"do_sample": False, "temperature": 0.5}, (256, 0.0, 1.0)),
    ):
        request = lm._request("x", options)
        assert (request.max_tokens, request.rules.temperature, request.rules.top_p) == expected
        assert (request.rules.max_topic_words, request.rules.top_k) == (3, options.get("top_k", 0))
    asked = []
    monkeypatch.setattr(harness, "generate", lambda model, requests, config: asked.extend(requests) or [])
    lm.generate_until([])
    monkeypatch.setattr(harness, "_until", lambda *_: "")
    monkeypatch.setattr(harness, "generate", lambda _, requests, __: asked.extend(requests) or requests)
    monkeypatch.setattr(Request, "text", "", raising=False)
    lm.generate_until([SimpleNamespace(args=("x", {"do_sample": True}))] * 3)
    assert [request.rules.seed for request in asked] == [0, 1, 2]


PASSED = ("batch_size", "max_batch_size", "device", "trust_remote_code")


@requires_dev("lm_eval")
def test_an_argument_that_is_not_known_is_refused(harness):
    """Another model would be measured than the one that is meant."""
    with pytest.raises(PastaError, match="model_args: pretrained: unknown; choose from source, adapter"):
        harness.PastaLM(model=tiny_model(), pretrained="/models/x", **dict.fromkeys(PASSED))
    assert harness.PastaLM(model=tiny_model(), **dict.fromkeys(PASSED)).model.name == "tiny"


def test_without_the_package_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval.__main__", None)
    monkeypatch.delitem(sys.modules, "pasta_jax.evaluate.harness", raising=False)
    with pytest.raises(PastaError, match=r"lm-eval: .*; install it in this environment: pip install lm-eval"):
        importlib.import_module("pasta_jax.evaluate.harness")
