"""The smallest shape, and random weights made by NumPy (jax.random would compile a program for every leaf)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.models import transformer
from pasta_jax.models.config import Rope, TransformerConfig

TINY = TransformerConfig(
    vocab=384,
    layers=1,
    embed=8,
    ff=8,
    heads=1,
    kv_heads=1,
    head_dim=4,
    context=512,
    rope=Rope(10_000.0),
    norm_eps=1e-6,
    activation="gelu",
    tied_head=True,
)


def random_params(config, seed: int, scale: float = 0.3, stacked: bool = False):
    """A parameter tree whose scale is large enough to reveal wrong masks, ropes or norms."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(functools.partial(transformer.init, config, stacked=stacked), jax.random.key(0))
    return jax.tree.map(lambda s: (rng.standard_normal(s.shape) * scale).astype(np.float32), shapes)


@functools.partial(jax.jit, static_argnames="config")
def _forward(params, tokens_1xT, at_N, config):
    place = jnp.arange(tokens_1xT.shape[1])[None]
    hidden_1xTxE = transformer.trunk(params, config, tokens_1xT, place, transformer.causal(place), place)[0]
    return transformer.logits(params, config, hidden_1xTxE[:, at_N])[0]


def uncached(model, ids, config=None, at=None):
    """Logits [N, V] of a sequence without a pool, at some places (None: all); padded at the end, which causality hides,
    to compile few shapes."""
    padded = np.zeros((1, -(-len(ids) // 128) * 128), np.int32)
    padded[0, : len(ids)] = ids
    at_N = np.arange(padded.shape[1]) if at is None else np.asarray(at)
    return np.array(_forward(model.params, padded, at_N, config=config or model.config)[: len(ids)])
