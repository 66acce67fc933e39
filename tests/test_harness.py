"""The model class for lm-evaluation-harness, against a stand-in for its package: scores as of uncached passes."""

import importlib
import sys
import types
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from pasta_jax.errors import PastaError
from tests.models import uncached
from tests.traces import tiny_model

FILES = ("lm_eval", "lm_eval.__main__", "lm_eval.api", "lm_eval.api.model", "lm_eval.api.registry")


@pytest.fixture
def harness(monkeypatch):
    """The module, with the names that it needs of the package."""
    for name in FILES:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["lm_eval.__main__"].cli_evaluate = lambda: None
    sys.modules["lm_eval.api.model"].TemplateLM = object
    sys.modules["lm_eval.api.registry"].register_model = lambda name: lambda cls: cls
    monkeypatch.delitem(sys.modules, "pasta_jax.harness", raising=False)
    yield importlib.import_module("pasta_jax.harness")
    sys.modules.pop("pasta_jax.harness", None)


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
    [rolling] = lm.loglikelihood_rolling([SimpleNamespace(args=("ab",))])
    first = lm._score([lm.prefix_token_id], [97])[0]
    assert rolling == pytest.approx(first + lm._score([lm.prefix_token_id, 97], [98])[0], abs=1e-4)


def test_generated_text_ends_at_the_first_stop_text(harness):
    assert harness._until("one\ntwo. three", {"until": [".", "\n"]}) == "one"
    assert harness._until("one", {"until": "two"}) == harness._until("one", {}) == "one"
    request = harness.PastaLM(model=tiny_model())._request("x" * 600, {"max_gen_toks": 100, "until": ["."]})
    assert len(request.prompt_ids) + 100 == 512  # the end of a context that is too long
    assert (request.sampling.temperature, request.sequential) == (0.0, True)


def test_without_the_package_the_error_names_it(monkeypatch):
    for name in FILES:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "pasta_jax.harness", raising=False)
    with pytest.raises(PastaError, match=r"lm-eval: .*; install it in this environment: pip install lm-eval"):
        importlib.import_module("pasta_jax.harness")
