"""Real weights against an independent runtime: llama.cpp on the same weights in float32."""

import numpy as np
import pytest

from pasta_jax.decode.generate import DecodeConfig, Request, generate
from pasta_jax.decode.sampling import Sampling
from pasta_jax.models import weights
from pasta_jax.models.config import PRESETS
from pasta_jax.models.weights import load_model, same_architecture
from tests.models import uncached
from tests.requires import requires_gemma, requires_smollm2

pytestmark = pytest.mark.usefixtures("fully_compiled")
# The same slots for all, to compile few programs.
SETTINGS = DecodeConfig(lanes=4, rows=1, slots=256)
MODELS = [pytest.param("smollm2_135m", marks=requires_smollm2), pytest.param("gemma3_270m", marks=requires_gemma)]
# (prompt, ids, three logits of the last token, 16 greedy tokens)
GOLDENS = {
    "smollm2_135m": [
        (
            "The capital of France is",
            [504, 3575, 282, 4649, 314],
            {7042: 17.373, 260: 14.888, 4528: 13.245},
            [7042, 30, 198, 198, 504, 2988, 314, 42, 216, 34, 32, 33, 40, 29, 32, 33],
        ),
    ],
    "gemma3_270m": [
        (
            "The capital of France is",
            [2, 818, 5279, 529, 7001, 563],
            {506: 19.092, 496: 18.547, 9079: 18.266},
            [506, 5279, 529, 506, 2891, 529, 7001, 236761, 1030, 563, 506, 7488, 3207, 528, 7001, 532],
        ),
        (
            "Once upon a time, there was a little girl named Lily who",
            [2, 14946, 3324, 496, 990, 236764, 993, 691, 496, 2268, 3953, 7489, 60708, 1015],
            {9312: 23.654, 691: 23.555, 11742: 22.790},
            [9312, 531, 1441, 607, 1116, 64134, 236761, 2625, 9312, 531, 1441, 607, 1116, 64134, 532, 1304],
        ),
    ],
}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    """Each real model; the tests of one model run together, so that one is in memory at a time."""
    return load_model(request.param, "")


def ask(ids, tokens, **changes):
    return Request(tuple(ids), tokens, changes.pop("sampling", Sampling()), True, 8, 600)


def test_presets_match_the_files(model):
    assert same_architecture(model.config, PRESETS[model.name])
    assert model.config.vocab == model.tokenizer.model_vocab


def test_goldens(model):
    for prompt, ids, top, greedy in GOLDENS[model.name]:
        assert model.tokenizer.prompt_ids(prompt) == ids
        logits = uncached(model, ids)[-1]
        for token, expected in top.items():
            assert logits[token] == pytest.approx(expected, abs=0.03)
        assert generate(model, [ask(ids, 16)], SETTINGS)[0].trace.token.tolist() == greedy


@requires_smollm2
@pytest.mark.slow
def test_our_own_products_give_the_same_tokens(monkeypatch):
    monkeypatch.setattr(weights, "is_available", lambda: True)
    model = load_model("smollm2_135m", "", only_decoding=True)
    assert "panels" in model.params["embed"]
    for _, ids, _, greedy in GOLDENS[model.name]:
        assert generate(model, [ask(ids, 16)], SETTINGS)[0].trace.token.tolist() == greedy


RAGGED = (
    "The capital of France is",
    "Once upon a time, there was a little girl named Lily who",
    "1, 2, 3,",
    "Water boils at one hundred degrees. Ice melts",  # no prompt is over 16 tokens: one prefill to compile
)


def test_a_ragged_batch_equals_the_uncached_model(model):
    """64 generated tokens per prompt. That cached logits equal uncached ones is shown on real text in test_replay.py,
    and that lanes change no token in test_generate.py; here each sampled token must be the uncached model's likeliest,
    within rounding."""
    prompts = [model.tokenizer.prompt_ids(text) for text in RAGGED]
    together = generate(model, [ask(ids, 64) for ids in prompts], SETTINGS)
    answers = [result.trace.token.tolist() for result in together]
    tags = model.tokenizer.tags
    for ids, answer in zip(prompts, answers, strict=True):
        logits = uncached(model, ids + answer)[len(ids) - 1 : -1]
        logits[:, tags.base : tags.end] = -np.inf  # never sampled in sequential answers
        np.testing.assert_allclose(logits[np.arange(len(answer)), answer], logits.max(1), atol=1e-4, rtol=0)


def test_answers_are_sensible(model):
    """The demo's question, and one for a model that was not trained to chat."""
    healthy = model.tokenizer.chat([("user", "Give three tips for staying healthy.")])
    capital = model.tokenizer.prompt_ids("Question: What is the capital of France? Answer:")
    ids, tokens, beginning, finish = {
        "smollm2_135m": (healthy, 100, "1. Stay hydrated", "stop"),
        "gemma3_270m": (capital, 4, " Paris", "length"),
    }[model.name]
    result = generate(model, [ask(ids, tokens)], SETTINGS)[0]
    assert result.text.startswith(beginning)
    assert result.finish_reason == finish
