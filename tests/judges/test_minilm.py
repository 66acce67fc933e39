"""The embedding model: published similarities, padding, a limit, a cache."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from pasta_jax.data.pairs import Pair
from pasta_jax.data.sources import read
from pasta_jax.files import packages
from pasta_jax.judges import minilm
from pasta_jax.judges.minilm import LENGTHS, cosine, encode, load_minilm, padded
from tests.helpers.requires import requires_data, requires_minilm

HAPPY = "That is a happy person"


@requires_minilm
@pytest.mark.parametrize(
    ("other", "similarity"),
    [("That is a happy dog", 0.695), ("That is a very happy person", 0.943), ("Today is a sunny day", 0.257)],
)
def test_similarities_equal_the_published_ones(other, similarity):
    assert cosine(load_minilm(), HAPPY, other) == pytest.approx(similarity, abs=6e-4)


@pytest.mark.usefixtures("fully_compiled")
@requires_minilm
@requires_data
def test_a_question_is_most_similar_to_its_own_answer():
    pairs = [pair for pair in read("alpaca_eval") if isinstance(pair, Pair)][:64]
    embed = load_minilm()
    close = embed([pair.instruction for pair in pairs]) @ embed([pair.response for pair in pairs]).T
    assert list(close.argmax(1)) == list(range(64))
    assert np.diag(close).mean() == pytest.approx(0.70, abs=0.01)
    assert (close.sum() - np.trace(close)) / (64 * 63) == pytest.approx(0.02, abs=0.01)


@requires_minilm
def test_texts_are_cut_at_the_limit_and_computed_once(monkeypatch):
    embed, long = load_minilm.__wrapped__(), "owl " * LENGTHS[-1]
    vectors = embed([long, HAPPY, long + "and this lies beyond", ""])
    assert vectors.shape == (4, 384)
    np.testing.assert_array_equal(vectors[0], vectors[2])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    monkeypatch.setattr(minilm, "encode", None)
    np.testing.assert_array_equal(embed([HAPPY, long, HAPPY]), vectors[[1, 0, 1]])


@requires_minilm
def test_padding_changes_nothing():
    params = load_file(packages.path("minilm"))
    tokens, mask = padded([101, 2054, 102])
    assert tokens.shape == mask.shape == (16,)
    alone = np.asarray(encode(params, tokens[:3], mask[:3]))
    tokens[3:] = 8
    np.testing.assert_allclose(encode(params, tokens, mask), alone, atol=1e-5)
