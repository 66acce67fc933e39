"""Preference losses over pairs of a better and a worse answer, relative to a frozen reference: BoNBoN, DPO, IPO.

All three depend only on summed log-probabilities under PASTA's mask, positions and labels. The reference's are numbers
in the batch, computed once before training, so that no second model is kept in memory.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.errors import PastaError
from pasta_jax.preference.settings import PreferenceLoss
from pasta_jax.train.legal import Grammar
from pasta_jax.train.loss import Loss, LossSums, Scoring, label_losses, model_params
from pasta_jax.train.pairs import PairBatch
from pasta_jax.train.state import Params

Array = jax.Array | np.ndarray | float


def best_of_n_margin(n: int) -> float:
    """(n - 1) · H(n - 1): the log-ratio between best-of-n and worst-of-n sampling, in nats."""
    if n < 2:
        raise PastaError(f"{n} samples per prompt: a best and a worst one need at least 2")
    return (n - 1) * math.fsum(1 / k for k in range(1, n))


def log_ratio(better: Array, worse: Array, reference_better: Array, reference_worse: Array) -> Array:
    """How much more strongly the model prefers the better answer than the reference does, in nats."""
    return (better - worse) - (reference_better - reference_worse)


def bonbon(better: Array, ratio: Array, alpha: float, margin: float) -> Array:
    """Negative log-likelihood of the best answer, plus the squared distance of the log-ratio from `margin`."""
    return -alpha * better + (1 - alpha) * (ratio - margin) ** 2


def dpo(ratio: Array, beta: float) -> Array:
    """Logistic loss on the log-ratio."""
    return -jax.nn.log_sigmoid(beta * ratio)


def ipo(ratio: Array, beta: float) -> Array:
    """Squared distance of the log-ratio from 1 / (2 beta); log-probabilities are summed, not averaged."""
    return (ratio - 1 / (2 * beta)) ** 2


def preference_loss(scoring: Scoring, settings: PreferenceLoss, grammar: Grammar | None = None) -> Loss:
    """The mean loss over the pairs of a PairBatch.

    With a grammar, `settings.legal` times the loss of legal ids is added. Both answers are the model's own, sampled
    under the grammar mask, so they have the places where it would break the grammar: supervised records don't.
    """

    def loss(trainable: Params, frozen: Params | None, pairs: PairBatch, _: PairBatch | None = None) -> LossSums:
        both = jax.tree.map(lambda a, b: jnp.concatenate([jnp.asarray(a), jnp.asarray(b)]), pairs.better, pairs.worse)
        of_labels = label_losses(scoring, model_params(scoring, trainable, frozen), both, grammar)
        of_answers, illegal = jnp.moveaxis(jnp.sum(of_labels, axis=1), 1, 0)
        better_B, worse_B = jnp.split(-of_answers, 2)
        ratio_B = log_ratio(better_B, worse_B, pairs.reference_better, pairs.reference_worse)
        match settings.loss:
            case "bonbon":
                losses_B = bonbon(better_B, ratio_B, settings.alpha, settings.margin)
            case "dpo":
                losses_B = dpo(ratio_B, settings.beta)
            case "ipo":
                losses_B = ipo(ratio_B, settings.beta)
        illegal_B = sum(jnp.split(illegal, 2))
        figures = {
            "loss": losses_B + settings.legal * illegal_B,
            "log_ratio": ratio_B,
            "gain_better": better_B - pairs.reference_better,
            "gain_worse": worse_B - pairs.reference_worse,
            "prefers": (ratio_B > 0).astype(jnp.float32),
        }
        if grammar is not None:
            figures["loss_legal"] = illegal_B / 2  # per answer: minus the log-probability of being well-formed
        count = jnp.sum(pairs.weight)
        parts = {name: (jnp.sum(values * pairs.weight), count) for name, values in figures.items()}
        return LossSums(parts, jnp.sum(both.record > 0))

    return loss
