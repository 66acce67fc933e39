"""TrainState: all that a training run carries from step to step, as plain data."""

import dataclasses

import jax
import jax.numpy as jnp
import optax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """What a checkpoint holds. Parameters that don't change are handed beside it, not in it.

    Data is a pure function of (seed, step), so these two are also the data's position.
    """

    trainable: dict  # float32: all parameters, or an adapter
    optimizer: optax.OptState
    step: jax.Array  # int32: optimizer steps done, and the number of the next batch
    seed: jax.Array  # uint32: of the order of the data


def new_state(trainable: dict, optimizer: optax.GradientTransformation, seed: int) -> TrainState:
    """Before the first step. Master weights are float32 whatever the model computes in."""
    trainable = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), trainable)
    return TrainState(trainable, optimizer.init(trainable), jnp.int32(0), jnp.uint32(seed))
