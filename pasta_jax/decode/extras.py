"""What a request may ask for besides its rules: a bias on the logits of some ids, and log-probabilities of its tokens.

Log-probabilities are those of the distribution that tokens are drawn from, at temperature 1 and before top_k, top_p and
min_p: ids that the grammar forbids have none, and penalties and biases count. They are kept by the slot of the token
before, so that a thread's n-th token finds its own there.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pasta_jax.models.pool import put

BIASES = 64  # ids of a request whose logits may be changed
TOP = 20  # likeliest ids whose log-probabilities are kept: OpenAI's limit
NO_ID = np.iinfo(np.int32).max


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Scores:
    """Of drawn ids; each array also has an axis of K likeliest ids, or none."""

    own: jax.Array  # float32 [...]: of the id that was drawn
    top: jax.Array  # float32 [..., K], the likeliest first
    ids: jax.Array  # int32 [..., K]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Extras:
    """Of every lane's request."""

    scored: jax.Array  # bool [B]: it asks for log-probabilities
    bias_id: jax.Array  # int32 [B, BIASES]; beyond the vocabulary: none
    bias: jax.Array  # float32 [B, BIASES]
    scores: Scores  # [B, S]


def no_extras(lanes: int, slots: int) -> Extras:
    """Of lanes whose requests ask for nothing."""
    scores = Scores(
        own=jnp.zeros((lanes, slots)),
        top=jnp.zeros((lanes, slots, TOP)),
        ids=jnp.zeros((lanes, slots, TOP), jnp.int32),
    )
    none = jnp.full((lanes, BIASES), NO_ID, jnp.int32)
    return Extras(jnp.zeros(lanes, bool), none, jnp.zeros((lanes, BIASES)), scores)


def fields_of(bias: Sequence[tuple[int, float]], scored: bool) -> dict[str, np.ndarray]:
    """A request's fields of Extras; `bias` has at most BIASES ids."""
    ids, values = np.full(BIASES, NO_ID, np.int32), np.zeros(BIASES, np.float32)
    for at, (id, value) in enumerate(bias):
        ids[at], values[at] = id, value
    return {"scored": np.bool_(scored), "bias_id": ids, "bias": values}


def biased(extras: Extras, logits_NxV: jax.Array, lane_N: jax.Array, feeds_N: jax.Array) -> jax.Array:
    """The logits with the biases of each row that feeds."""

    def added() -> jax.Array:
        row_Nx1 = jnp.arange(len(lane_N))[:, None]
        return logits_NxV.at[row_Nx1, extras.bias_id[lane_N]].add(extras.bias[lane_N], mode="drop")

    return lax.cond(jnp.any((extras.bias[lane_N] != 0) & feeds_N[:, None]), added, lambda: logits_NxV)


def scores_of(
    extras: Extras, logits_NxV: jax.Array, token_N: jax.Array, lane_N: jax.Array, feeds_N: jax.Array
) -> Scores:
    """Of the ids that were drawn from these logits; nothing is computed if no row that feeds asks for it."""

    def scored() -> Scores:
        all_N = jax.nn.logsumexp(logits_NxV, axis=1)
        own_N = jnp.take_along_axis(logits_NxV, token_N[:, None], axis=1)[:, 0]
        top_NxK, ids_NxK = lax.top_k(logits_NxV, TOP)
        return Scores(own_N - all_N, top_NxK - all_N[:, None], ids_NxK.astype(jnp.int32))

    def none() -> Scores:
        return jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), jax.eval_shape(scored))

    return lax.cond(jnp.any(extras.scored[lane_N] & feeds_N), scored, none)


def keep_scores(extras: Extras, at: tuple[jax.Array, ...], scores: Scores) -> Extras:
    """The extras with scores at these slots; those out of range are dropped."""
    return dataclasses.replace(extras, scores=put(extras.scores, at, **vars(scores)))
