"""TrainState: everything that a training run carries from step to step, as plain data."""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from pasta_jax.models.parameters import Params


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """What a checkpoint holds. Frozen parameters are passed separately and are not part of it.

    Data is a pure function of (seed, step), so these two fields are also the position in the data.
    """

    trainable: Params  # float32: all parameters, or an adapter
    optimizer: optax.OptState
    step: jax.Array  # int32: optimizer steps done, which is also the number of the next batch
    seed: jax.Array  # uint32: decides the order of the data


def new_state(trainable: Params, optimizer: optax.GradientTransformation, seed: int) -> TrainState:
    """The state before the first step. Master weights are float32 whatever the model computes in."""
    trainable = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), trainable)
    return TrainState(trainable, optimizer.init(trainable), jnp.int32(0), jnp.uint32(seed))
