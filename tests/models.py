"""Random weights for tests, made by NumPy (jax.random would compile a program for every leaf)."""

import functools

import jax
import numpy as np

from pasta_jax.models import transformer


def random_params(config, seed: int, scale: float = 0.3, stacked: bool = False):
    """A parameter tree large enough in scale that wrong masks, ropes or norms show."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(functools.partial(transformer.init, config, stacked=stacked), jax.random.key(0))
    return jax.tree.map(lambda s: (rng.standard_normal(s.shape) * scale).astype(np.float32), shapes)
