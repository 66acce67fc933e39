"""What is said to be the paper's is the paper's."""

import math

from configs import sft
from pasta_jax.evaluate.published import PAPER
from pasta_jax.lang.structure import Positions
from pasta_jax.preference.settings import PreferenceSettings, SweepSettings


def test_supervised_training():
    settings = sft.gemma_7b()
    train, weights = settings.train, settings.weights
    assert (train.learning_rate, train.warmup, train.decay, train.weight_decay) == (1e-5, 0, "linear", 0.0)
    assert (settings.data.rows, train.epochs, train.steps, settings.strip_tags) == (8, 4, 0, False)
    assert {weights.main, weights.topic, weights.length, weights.chunk, weights.sync, weights.bracket} == {1.0}
    assert weights.legal == settings.data.stray == 0.0  # ours
    assert settings.positions == Positions("predicted")
    assert Positions("constant").constant == 40


def test_preference_training():
    settings = PreferenceSettings()
    assert (settings.rounds, settings.sample.count, settings.sample.temperature) == (2, 10, 1.0)
    assert (settings.score.efficiency, settings.score.floor) == ("speedup", 0.25)
    loss, train = settings.loss, settings.train
    assert (loss.loss, loss.alpha, loss.margin, loss.legal) == ("bonbon", 0.005, 0.0, 0.0)  # 0: that of the samples
    assert (train.learning_rate, train.decay, train.warmup) == (5e-7, "linear", 0)
    sweep = SweepSettings()
    assert (sweep.fields, sweep.choices) == (("score.quality_weight",), ((1.0, 2.0, 4.0, 8.0, math.inf),))


def test_the_published_figures_have_the_efficiencies_that_the_paper_states():
    stated = [1.0, 0.69, 0.79, 0.78, 0.81, 0.82, 0.86, 0.89, 0.81]
    assert [round(one.efficiency, 2) for one in PAPER] == stated
