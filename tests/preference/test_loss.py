"""Preference losses: against values worked out by hand, a NumPy implementation, and their effect on a model."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pasta_jax.errors import PastaError
from pasta_jax.preference.learn import score_examples
from pasta_jax.preference.loss import best_of_n_margin, bonbon, dpo, ipo, log_ratio, preference_loss
from pasta_jax.preference.settings import PreferenceLoss
from pasta_jax.train.loop import gradients
from pasta_jax.train.loss import log_probabilities
from pasta_jax.train.pairs import PairExample, PairFeed, pair_batch
from pasta_jax.weights.adapter import new_adapter
from pasta_jax.weights.settings import AdapterSettings
from tests.train.test_loss import LOSSES, SCORING, TAGS, params, records

LENGTHS = (64, 128, 192)
SCORE = jax.jit(functools.partial(log_probabilities, SCORING))


@functools.cache
def pairs() -> list[PairExample]:
    """Neighbouring answers of the toy task, with invented reference log-probabilities."""
    examples = [example for example, _ in records()]
    return [
        PairExample(one, other, -20.0 - n, -25.0 + n)
        for n, (one, other) in enumerate(zip(examples, examples[1:] + examples[:1], strict=True))
    ]


def test_the_margin_is_the_log_ratio_of_best_and_worst_of_n():
    assert round(best_of_n_margin(8), 4) == 18.15
    assert round(best_of_n_margin(10), 4) == 25.4607
    assert best_of_n_margin(2) == 1.0
    assert 1 / (2 * best_of_n_margin(8)) == pytest.approx(0.0275482, abs=1e-7)  # the released beta
    with pytest.raises(PastaError, match="at least 2"):
        best_of_n_margin(1)


@pytest.mark.parametrize("loss", ["bonbon", "dpo", "ipo"])
def test_losses_and_gradients_equal_those_of_numpy(loss):
    """Gradients with respect to log-probabilities, against derivatives worked out on paper."""
    better, worse, better_0, worse_0 = np.random.default_rng(3).uniform(-6, 0, (4, 16))
    ratio = (better - worse) - (better_0 - worse_0)
    # The loss, its derivative by the ratio, and that by the better answer apart from the ratio.
    value, slope, own = {
        "bonbon": (-0.3 * better + 0.7 * (ratio - 2.5) ** 2, 2 * 0.7 * (ratio - 2.5), -0.3),
        "dpo": (np.log(1 + np.exp(-0.7 * ratio)), -0.7 / (1 + np.exp(0.7 * ratio)), 0.0),
        "ipo": ((ratio - 1 / 1.4) ** 2, 2 * (ratio - 1 / 1.4), 0.0),
    }[loss]

    def ours(better, worse):
        ratio = log_ratio(better, worse, better_0, worse_0)
        if loss == "bonbon":
            return bonbon(better, ratio, 0.3, 2.5)
        return dpo(ratio, 0.7) if loss == "dpo" else ipo(ratio, 0.7)

    np.testing.assert_allclose(jax.jit(ours)(better, worse), value, rtol=1e-6, atol=1e-6)
    grads = jax.jit(jax.grad(lambda b, w: jnp.sum(ours(b, w)), argnums=(0, 1)))(better, worse)
    for actual, expected in zip(grads, (slope + own, -slope), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)


def test_log_probabilities_are_sums_of_token_losses_and_do_not_depend_on_neighbours_or_padding():
    examples = [example for example, _ in records()]
    apart = [score_examples(lambda batch: SCORE(params(), batch), [e], (192,), 1)[0] for e in examples]
    together = score_examples(lambda batch: SCORE(params(), batch), examples, LENGTHS, 3)
    np.testing.assert_allclose(together, apart, rtol=1e-5)
    batch = pair_batch(pairs()[:1], 192, 1)
    assert apart[0] == pytest.approx(-float(np.asarray(LOSSES(params(), batch.better), np.float64).sum()), rel=1e-6)
    with pytest.raises(PastaError, match="raise lengths"):
        score_examples(lambda batch: SCORE(params(), batch), examples, (16,), 1)


@pytest.mark.parametrize("loss", ["bonbon", *(pytest.param(one, marks=pytest.mark.slow) for one in ("dpo", "ipo"))])
def test_the_models_loss_is_the_mean_over_its_pairs(loss):
    settings = PreferenceLoss(loss, alpha=0.005, margin=best_of_n_margin(10), beta=0.1)
    batch = pair_batch(pairs()[:3], 192, 4)  # a row is padding
    sums = jax.jit(preference_loss(SCORING, settings))(params(), None, batch)
    lp = [SCORE(params(), side) for side in (batch.better, batch.worse)]
    ratio = log_ratio(*(np.asarray(x[:3], np.float64) for x in (*lp, batch.reference_better, batch.reference_worse)))
    expected = {"bonbon": lambda: bonbon(np.asarray(lp[0][:3]), ratio, settings.alpha, settings.margin)}
    expected |= {"dpo": lambda: dpo(ratio, 0.1), "ipo": lambda: ipo(ratio, 0.1)}
    total, count = (float(x) for x in sums.parts["loss"])
    assert count == 3
    assert total == pytest.approx(float(np.sum(expected[loss]())), rel=1e-5)
    assert int(sums.tokens) == sum(len(p.better) + len(p.worse) for p in pairs()[:3])


@pytest.mark.slow
@pytest.mark.usefixtures("fully_compiled")
@pytest.mark.parametrize("adapter", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_the_loss_falls_to_its_floor_on_a_problem_of_two_answers(adapter):
    """The log-ratio reaches the margin; what remains is alpha times the better answer's loss."""
    settings = PreferenceLoss("bonbon", alpha=0.005, margin=5.0, beta=0.0)
    base = params()
    frozen = base if adapter else None
    trainable = new_adapter(base, AdapterSettings(8, 16.0), TAGS, 0) if adapter else base
    better, worse = pairs()[0].better, pairs()[0].worse
    known = score_examples(lambda batch: SCORE(base, batch), [better, worse], (192,), 2)
    batch = pair_batch([PairExample(better, worse, *known)], 192, 1)
    loss, optimizer = preference_loss(SCORING, settings), optax.adam(3e-3)

    @jax.jit
    def step(trainable, moments):
        gradient, sums = gradients(loss, trainable, frozen, batch, 1)
        updates, moments = optimizer.update(gradient, moments)
        return optax.apply_updates(trainable, updates), moments, sums.parts

    moments, losses = optimizer.init(trainable), []
    for _ in range(150):
        trainable, moments, parts = step(trainable, moments)
        losses.append(float(parts["loss"][0]))
    after = float(parts["log_ratio"][0])
    assert losses[0] == pytest.approx(-0.005 * known[0] + 0.995 * 25.0, rel=1e-3)  # starts as the reference
    assert after == pytest.approx(5.0, abs=0.1)
    assert losses[-1] < 0.005 * abs(known[0]) + 0.02
    assert float(parts["prefers"][0]) == 1.0


def test_batches_hold_every_pair_once_an_epoch_and_depend_on_seed_and_step_alone():
    feed = PairFeed(pairs(), LENGTHS, rows=2)
    steps = feed.steps(0, 1)
    seen = []
    for step in range(steps):
        batch = feed.batch(0, step)
        assert batch.better.token.shape == batch.worse.token.shape
        assert batch.better.token.shape[0] == 2
        seen += batch.reference_better[batch.weight > 0].tolist()
        assert (batch.better.record[batch.weight == 0] == 0).all()
        again = PairFeed(pairs(), LENGTHS, rows=2).batch(0, step)
        jax.tree.map(np.testing.assert_array_equal, batch, again)
        shares = [PairFeed(pairs(), LENGTHS, 2, host, hosts=2).batch(0, step) for host in range(2)]
        jax.tree.map(lambda whole, *own: np.testing.assert_array_equal(whole, np.concatenate(own)), batch, *shares)
    assert sorted(seen) == sorted(pair.reference_better for pair in pairs())
    shortest = min(map(len, pairs()))
    assert PairFeed(pairs(), (shortest,), rows=2).dropped == sum(len(pair) > shortest for pair in pairs())
    with pytest.raises(PastaError, match="raise rows"):
        pair_batch(pairs()[:2], 192, 1)
