"""Real weights against an independent runtime: llama.cpp on the same weights in float32."""

import dataclasses
import functools

import numpy as np
import pytest

from pasta_jax.decode.generate import generate
from pasta_jax.decode.request import Request, Result
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.models.config import PRESETS
from pasta_jax.models.kernels.cpu import library as kernels
from pasta_jax.models.parameters import stack
from pasta_jax.weights.load import difference
from pasta_jax.weights.model import Model
from tests.helpers.loading import load_model
from tests.helpers.models import uncached
from tests.helpers.requires import requires_gemma, requires_smollm2

compiled_as_for_users = pytest.mark.usefixtures("fully_compiled")
TOKENS = 32
SETTINGS = DecodeConfig(lanes=5, rows=1, slots=256, prefill_chunk=16)  # prompts in chunks of one length: one program
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


RAGGED = (
    "The capital of France is",
    "Once upon a time, there was a little girl named Lily who",
    "1, 2, 3,",
    "Water boils at one hundred degrees. Ice melts",
)


@pytest.fixture(scope="module", params=MODELS)
def name(request) -> str:
    """Each real model; the tests of one model run together, so that one is in memory at a time."""
    return request.param


@functools.lru_cache(maxsize=1)
def model_of(name: str) -> Model:
    """A real model with its layers unrolled, as users have them."""
    return load_model(name, "")


def sensible(model: Model) -> tuple[list[int], int, str, str]:
    """The demo's question, and one for a model that was not trained to chat: ids, tokens, beginning, finish."""
    if model.name == "smollm2_135m":
        return model.tokenizer.chat([("user", "Give three tips for staying healthy.")]), 100, "1. Stay hydrated", "stop"
    return model.tokenizer.prompt_ids("Question: What is the capital of France? Answer:"), 4, " Paris", "length"


def ask(ids: list[int], tokens: int) -> Request:
    return Request(tuple(ids), tokens, sequential=True)


@functools.lru_cache(maxsize=1)
def answers(name: str) -> list[Result]:
    """The answers to `RAGGED`, `TOKENS` each, and the sensible one: one batch, so that one loop is compiled."""
    model = model_of(name)
    ids, tokens, *_ = sensible(model)
    requests = [ask(model.tokenizer.prompt_ids(text), TOKENS) for text in RAGGED]
    return generate(model, [*requests, ask(ids, tokens)], SETTINGS)


@functools.lru_cache(maxsize=1)
def logits(name: str) -> list[np.ndarray]:
    """For each of `RAGGED`, those that its answer is drawn from, without a pool; stacked layers compile once."""
    model = model_of(name)
    model = dataclasses.replace(model, params=stack(model.params))
    prompts = [model.tokenizer.prompt_ids(text) for text in RAGGED]
    pairs = [(len(ids), ids + one.trace.token.tolist()) for ids, one in zip(prompts, answers(name), strict=False)]
    return [uncached(model, ids, at=range(length - 1, length - 1 + TOKENS)) for length, ids in pairs]


def test_presets_match_the_files(name):
    model = model_of(name)
    assert not difference(model.config, PRESETS[name])
    assert model.config.vocab == model.tokenizer.model_vocab


@compiled_as_for_users
def test_goldens(name):
    for prompt, ids, top, greedy in GOLDENS[name]:
        assert model_of(name).tokenizer.prompt_ids(prompt) == ids
        number = RAGGED.index(prompt)
        for token, expected in top.items():
            assert logits(name)[number][0, token] == pytest.approx(expected, abs=0.03)
        assert answers(name)[number].trace.token[:16].tolist() == greedy


@compiled_as_for_users
def test_a_ragged_batch_equals_the_uncached_model(name):
    """That cached logits equal uncached ones is shown on real text in test_replay.py, and that lanes change no token
    in test_sampled_programs.py; here each sampled token must be the uncached model's likeliest, within rounding."""
    tags = model_of(name).tokenizer.tags
    for result, drawn_from_NxV in zip(answers(name), logits(name), strict=False):
        answer, logits_NxV = result.trace.token, drawn_from_NxV.copy()
        assert len(answer) > 1
        logits_NxV[:, tags.base : tags.end] = -np.inf  # never sampled in sequential answers
        ours_N = logits_NxV[np.arange(len(answer)), answer]
        np.testing.assert_allclose(ours_N, logits_NxV[: len(answer)].max(1), atol=1e-4, rtol=0)


@compiled_as_for_users
def test_answers_are_sensible(name):
    *_, beginning, finish = sensible(model_of(name))
    assert answers(name)[-1].text.startswith(beginning)
    assert answers(name)[-1].finish_reason == finish


@requires_smollm2
@pytest.mark.slow
@pytest.mark.skipif(kernels.library() is None, reason="needs a C++ compiler")
def test_our_own_products_give_the_same_tokens(kernels_on_simulated_devices):
    model = load_model("smollm2_135m", "", only_decoding=True)
    assert "panels" in model.params["embed"]
    for _, ids, _, greedy in GOLDENS[model.name]:
        assert generate(model, [ask(ids, 16)], SETTINGS)[0].trace.token.tolist() == greedy
