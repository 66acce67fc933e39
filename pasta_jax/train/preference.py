"""Learning from pairs of answers, a better and a worse one, beside a frozen reference: BoNBoN, DPO, IPO.

Everything is a matter of sums of log-probabilities under PASTA's mask, positions and labels. The reference's are
numbers in the batch, computed once before training, so that no second model is held.
"""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.data.batch import Batch
from pasta_jax.errors import PastaError
from pasta_jax.train.loss import Measured, Scoring, model_params, token_losses

LOSSES = ("bonbon", "dpo", "ipo")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Pairs:
    """A batch of pairs: row b of `better` and of `worse` answer the same prompt, one record a row."""

    better: Batch
    worse: Batch
    reference_better: np.ndarray  # float32 [B]: the reference's log-probability of the answer
    reference_worse: np.ndarray
    weight: np.ndarray  # float32 [B]: 1, or 0 in a row that is padding


@dataclasses.dataclass(frozen=True)
class Preference:
    """Which loss, and its numbers; those of other losses are not read."""

    loss: str  # one of LOSSES
    alpha: float  # BoNBoN: the share of plain likelihood of the better answer
    margin: float  # BoNBoN: the log-ratio to reach; see best_of_n_margin
    beta: float  # DPO and IPO

    def __post_init__(self):
        if self.loss not in LOSSES:
            raise PastaError(f"loss {self.loss!r}: there is none of this name; choose one of {', '.join(LOSSES)}")
        if not 0 <= self.alpha <= 1:
            raise PastaError(f"alpha {self.alpha}: it must be from 0 to 1")
        if self.loss != "bonbon" and not self.beta > 0:
            raise PastaError(f"beta {self.beta}: it must be above 0")


def best_of_n_margin(n: int) -> float:
    """(n - 1) · H(n - 1): how far apart best-of-n and worst-of-n move two answers, in nats."""
    if n < 2:
        raise PastaError(f"{n} samples a prompt: a best and a worst need at least 2")
    return (n - 1) * math.fsum(1 / k for k in range(1, n))


def log_ratio(better, worse, reference_better, reference_worse):
    """How much more the model prefers the better answer than the reference does, in nats."""
    return (better - worse) - (reference_better - reference_worse)


def bonbon(better, ratio, alpha: float, margin: float):
    """Likelihood of the best answer, and a log-ratio of just `margin` between best and worst."""
    return -alpha * better + (1 - alpha) * (ratio - margin) ** 2


def dpo(ratio, beta: float):
    """Logistic loss on the log-ratio."""
    return -jax.nn.log_sigmoid(beta * ratio)


def ipo(ratio, beta: float):
    """A log-ratio of just 1 / (2 beta), over sums of log-probabilities, not means."""
    return (ratio - 1 / (2 * beta)) ** 2


def log_probabilities(scoring: Scoring, params: dict, batch: Batch):
    """float32 [B]: the log-probability of each row's labels, summed."""
    return -jnp.sum(token_losses(scoring, params, batch), axis=1)


def preference_loss(scoring: Scoring, asked: Preference) -> Callable:
    """loss(trainable, frozen, pairs) -> Measured, for the training loop."""

    def loss(trainable: dict, frozen: dict | None, pairs: Pairs) -> Measured:
        both = jax.tree.map(lambda a, b: jnp.concatenate([jnp.asarray(a), jnp.asarray(b)]), pairs.better, pairs.worse)
        better_B, worse_B = jnp.split(log_probabilities(scoring, model_params(scoring, trainable, frozen), both), 2)
        ratio_B = log_ratio(better_B, worse_B, pairs.reference_better, pairs.reference_worse)
        match asked.loss:
            case "bonbon":
                losses_B = bonbon(better_B, ratio_B, asked.alpha, asked.margin)
            case "dpo":
                losses_B = dpo(ratio_B, asked.beta)
            case "ipo":
                losses_B = ipo(ratio_B, asked.beta)
        shown = {
            "loss": losses_B,
            "log_ratio": ratio_B,
            "gain_better": better_B - pairs.reference_better,
            "gain_worse": worse_B - pairs.reference_worse,
            "prefers": (ratio_B > 0).astype(jnp.float32),
        }
        count = jnp.sum(pairs.weight)
        parts = {name: (jnp.sum(values * pairs.weight), count) for name, values in shown.items()}
        return Measured(parts, jnp.sum(both.record > 0))

    return loss
