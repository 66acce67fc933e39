"""The oracle's choice of a token from logits: by plain sorting, for one token at a time."""

import jax
import numpy as np

from pasta_jax.weights.rules import Rules


def pick(logits_V: np.ndarray, legal_V: np.ndarray, rules: Rules, thread: int, number: int) -> int:
    """The next token, sampled by plain sorting."""
    if rules.temperature == 0:
        return int(np.argmax(np.where(legal_V, logits_V, -np.inf)))
    scaled_V = np.where(legal_V, logits_V / np.float32(rules.temperature), -np.inf)
    return int(_categorical(keep(scaled_V, rules.top_k, rules.top_p), np.uint32(rules.seed), thread, number))


def keep(logits_V: np.ndarray, top_k: int, top_p: float) -> np.ndarray:
    """-inf for all but the k most likely, then all but the fewest of those that hold the mass p; ties stay together."""
    order_V = np.sort(logits_V)[::-1]
    if top_k:
        logits_V = np.where(logits_V >= order_V[min(top_k, len(order_V)) - 1], logits_V, -np.inf)
    if top_p < 1:
        order_V = np.sort(logits_V)[::-1]
        weight_V = np.exp(order_V - order_V[0], dtype=np.float64)
        held_V = np.cumsum(weight_V) / np.sum(weight_V)
        logits_V = np.where(logits_V >= order_V[np.argmax(held_V >= top_p)], logits_V, -np.inf)
    return logits_V


@jax.jit
def _categorical(logits_V: jax.Array, seed: jax.Array, thread: jax.Array, number: jax.Array) -> jax.Array:
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), thread), number)
    return jax.random.categorical(key, logits_V)
