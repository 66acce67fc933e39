"""A drafter: a small recurrent network that guesses what follows the token that a thread has just sampled.

    r_0 = the final hidden state that the token was sampled from
    r_n = r_(n-1) + outward · silu(inward · [r_(n-1) / rms; e_n / rms])

where e_n is the embedding of the n-th token after that state's. The head's rows of frequent ids times r_n are logits of
the token after these n, as the head times r_0 are of the first.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.parts import inputs_of, of_size_one, scaled, soft_cap, times

EPS = 1e-6


def advanced(drafter: Mapping[str, Any], r_NxE: jax.Array, embedded_NxE: jax.Array) -> jax.Array:
    """The states [N, E] after one more token."""
    both_Nx2E = jnp.concatenate([of_size_one(r_NxE, EPS), of_size_one(embedded_NxE, EPS)], axis=1)
    wide_NxW = jax.nn.silu(times(both_Nx2E.astype(r_NxE.dtype), drafter["inward"], inputs_of(drafter["outward"])))
    return r_NxE + times(wide_NxW, drafter["outward"], r_NxE.shape[1]).astype(r_NxE.dtype)


def guessed(drafter: Mapping[str, Any], config: TransformerConfig, r_NxE: jax.Array) -> jax.Array:
    """Logits [N, len(ids)] of the next token, of the drafter's ids only."""
    logits_NxI = times(r_NxE, drafter["table"], len(drafter["ids"]))
    return soft_cap(scaled(logits_NxI, 1 / config.logit_divisor), config.logit_cap)
