"""The loss of legal ids: its table against the grammar of decoding, its value and gradient against a softmax."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pasta_jax.decode.grammar import allow
from pasta_jax.decode.sampling import FORBIDDEN
from pasta_jax.decode.state import LoopSpec, arrays
from pasta_jax.lang.grammar import CHUNK, FORK, MAIN, SYNC, TOPIC
from pasta_jax.lang.structure import NO_LABEL, PREDICTED
from pasta_jax.preference.loss import preference_loss
from pasta_jax.preference.settings import PreferenceLoss
from pasta_jax.train.legal import Grammar
from pasta_jax.train.loop import gradients
from pasta_jax.train.loss import kinds, label_losses, sft_loss, sliced_losses
from pasta_jax.train.pairs import PairExample, pair_batch
from pasta_jax.weights.rules import Rules
from tests.train.test_loss import (
    CONFIG,
    EVEN,
    SCORING,
    TAGS,
    TOKENIZER,
    hidden_and_labels,
    params,
    records,
    row,
)

STOPS = (TOKENIZER.end_of_turn, TOKENIZER.bos)  # most tokenizers have two
GRAMMAR = Grammar(TAGS, STOPS)
PLACES = (MAIN, TOPIC, CHUNK)  # of labels
IDS = [*range(TAGS.base, TAGS.end), *STOPS]
SPEC = LoopSpec(TAGS, STOPS, CONFIG.vocab, 2, (1, 2), (), PREDICTED, 64)


def test_the_same_ids_are_legal_as_in_decoding():
    """[ASYNC] too, which the interpreter writes and no thread samples."""
    rules = jax.tree.map(lambda value: jnp.full(3, value), arrays(Rules()))
    state, tags = jnp.array([MAIN, TOPIC, CHUNK]), jnp.full(3, FORK | SYNC)
    logits = allow(jnp.zeros((3, CONFIG.vocab)), SPEC, state, tags, rules)
    np.testing.assert_array_equal(GRAMMAR.illegal()[state], np.asarray(logits)[:, IDS] <= FORBIDDEN)


def test_the_place_of_a_label_is_where_it_would_be_sampled():
    """Every label of real programs is legal in its place, and all three places occur."""
    batch = row([example for example, _ in records()])
    place = np.asarray(GRAMMAR.places(kinds(batch, TAGS)))
    illegal = GRAMMAR.illegal()
    for label, at in zip(batch.label[batch.label != NO_LABEL], place[batch.label != NO_LABEL], strict=True):
        assert label not in IDS or not illegal[at][IDS.index(label)]
    assert set(place[batch.label != NO_LABEL]) == {*PLACES}
    np.testing.assert_array_equal(place[(batch.chunk > 0) & (batch.label != NO_LABEL)], CHUNK)


@pytest.mark.slow
def test_its_value_and_gradient_are_those_of_a_softmax():
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(0, 3, (2, 9, CONFIG.vocab)), jnp.float32)
    place = jnp.asarray(rng.choice(PLACES, (2, 9)))

    def ours(logits):
        return jnp.sum(GRAMMAR.losses(logits, jax.nn.logsumexp(logits, axis=2), place))

    def plain(logits):
        illegal = np.zeros((2, 9, CONFIG.vocab), bool)
        illegal[:, :, IDS] = GRAMMAR.illegal()[np.asarray(place)]
        return -jnp.sum(jnp.log(jnp.sum(jnp.where(illegal, 0.0, jax.nn.softmax(logits)), axis=2)))

    for one, other in zip(*(jax.jit(jax.value_and_grad(f))(logits) for f in (ours, plain)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-6)
    certain = jnp.full((1, 1, CONFIG.vocab), -50.0).at[0, 0, TAGS.end_async].set(50.0)
    of_certain = jax.value_and_grad(lambda x: jnp.sum(GRAMMAR.losses(x, x.max(axis=2), jnp.array([[MAIN]]))))
    value, slope = jax.jit(of_certain)(certain)
    assert 10 < value < 20
    assert np.all(np.isfinite(slope))
    nearly = jnp.clip(certain, -10.0, 10.0)[0, 0]  # where it is worst, it still says what is better
    slope = jax.jit(jax.grad(lambda x: GRAMMAR.losses(x[None, None], jax.nn.logsumexp(x), jnp.array([[MAIN]]))[0, 0]))
    assert np.all(slope(nearly)[np.array([*b"ab"])] < -1e-4)


@pytest.mark.slow
def test_it_is_added_to_the_loss_by_its_weight():
    batch = row([example for example, _ in records()])
    losses = sft_loss(SCORING, EVEN), sft_loss(SCORING, EVEN, grammar=GRAMMAR, legal=4.0)
    without, parts = (jax.jit(loss)(params(), None, batch).parts for loss in losses)
    (loss, weight), (legal, labels) = parts["loss"], parts["loss_legal"]
    assert labels == np.sum(batch.label != NO_LABEL)
    assert legal / labels > 0.01  # of random weights
    np.testing.assert_allclose(loss / weight, without["loss"][0] / without["loss"][1] + 4 * legal / labels, rtol=1e-5)


@pytest.mark.slow
def test_accumulated_gradients_are_those_of_the_whole_batch():
    """With unequal weights too: the parts' labels are of different kinds and numbers."""
    rows = [row([example]) for example, _ in records()]
    batch = jax.tree.map(lambda *fields: np.concatenate(fields), *rows)
    loss = sft_loss(SCORING, (1.0, 3.0, 2.0, 0.5, 1.0), bracket=2.0, grammar=GRAMMAR, legal=32.0)
    whole, parts = (jax.jit(functools.partial(gradients, loss, accumulate=n))(params(), None, batch) for n in (1, 4))
    np.testing.assert_allclose(parts[1].parts["loss"], whole[1].parts["loss"], rtol=1e-5)
    size = optax.tree.norm(whole[0])
    assert optax.tree.norm(jax.tree.map(jnp.subtract, parts[0], whole[0])) < 1e-5 * size


def test_slices_keep_each_loss_with_its_token():
    x, label = hidden_and_labels()
    place = np.random.default_rng(0).choice(PLACES, label.shape).astype(np.int32)
    of = {
        size: sliced_losses(dataclasses.replace(SCORING, slice=size), params(), x, label, GRAMMAR, place)
        for size in (7, 50)
    }
    np.testing.assert_allclose(of[7], of[50], atol=1e-5)
    assert np.all(np.asarray(of[50])[label != NO_LABEL] > 0)


@pytest.mark.slow
def test_preference_adds_it_summed_over_both_answers():
    better, worse = (example for example, _ in records()[:2])
    batch = pair_batch([PairExample(better, worse, 0.0, 0.0)] * 2, 192, 3)  # the last row is padding
    settings = PreferenceLoss("bonbon", alpha=0.005, margin=5.0, beta=0.0, legal=3.0)
    without, parts = (
        jax.jit(preference_loss(SCORING, settings, *grammar))(params(), None, batch).parts
        for grammar in ((), (GRAMMAR,))
    )
    of_labels = jax.jit(lambda side: label_losses(SCORING, params(), side, GRAMMAR)[0, :, 1])
    apart = sum(np.sum(of_labels(side)) for side in (batch.better, batch.worse))
    assert "loss_legal" not in without
    legal, pairs = parts["loss_legal"]
    np.testing.assert_allclose(legal / pairs, apart / 2, rtol=1e-5)
    np.testing.assert_allclose(parts["loss"][0] / pairs, without["loss"][0] / pairs + 3 * apart, rtol=1e-5)
