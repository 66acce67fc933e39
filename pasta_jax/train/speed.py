"""Training speed, and the devices' published peak to compare it with."""

import functools
import resource
import sys
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.data.packing import Batch
from pasta_jax.device.devices import share_of_chip
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.parameters import share_used
from pasta_jax.models.sharding import mesh_of, shard_rows
from pasta_jax.train.loop import train_step, where_it_is
from pasta_jax.train.loss import KINDS, Scoring, sft_loss
from pasta_jax.train.optimizer import new_optimizer
from pasta_jax.train.settings import TrainingSettings
from pasta_jax.train.state import Params, new_state
from pasta_jax.train.trainable import Trainable, place


def peak_flops(devices: Sequence[jax.Device]) -> float | None:
    """Operations per second of all devices together; None if no peak is published, as for a CPU."""
    chip = share_of_chip(devices)
    return None if chip is None else chip.tflops * 1e12 * len(devices)


def flops_per_token(params: Params, config: TransformerConfig, length: int, adapter: bool) -> float:
    """Operations per token of a training step, forward and backward; recomputation doesn't count.

    Matrices: per weight 2 in the forward pass, 2 for the inputs' gradient and, if the weight is trained, 2 for its own.
    Attention: as if each token saw half of its row.
    Of experts, only the active ones compute.
    """
    leaves = jax.tree_util.tree_leaves_with_path(params)
    matrices = sum(share_used(path, params, config) * int(np.prod(leaf.shape)) for path, leaf in leaves)
    attention = 2 * config.layers * config.heads * config.head_dim * length
    return (4 if adapter else 6) * matrices + 3 * attention


def step_runner(
    start: Trainable, rows: int, length: int, steps: int, scoring: Scoring, settings: TrainingSettings
) -> Callable[[], float]:
    """A function that trains for `steps` steps and returns the milliseconds of one.

    The data are random tokens; each row is one record without tags.
    """
    model, rng = start.model, np.random.default_rng(0)
    token = rng.integers(0, model.tokenizer.vocab_size, (rows, length + 1)).astype(np.int32)
    order = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
    zero, one = np.zeros_like(order), np.ones_like(order)
    batch = Batch(token[:, :-1], token[:, 1:], position=order, chunk=zero, epoch=zero, main=order + 1, record=one)
    optimizer = new_optimizer(settings, steps=10**6)
    step = functools.partial(train_step, loss=sft_loss(scoring, (1.0,) * len(KINDS)), optimizer=optimizer, accumulate=1)
    # A copy of the weights, because a step donates its argument's memory.
    mesh = mesh_of(model.params)
    states = [place(new_state(jax.tree.map(jnp.copy, start.params), optimizer, seed=0), mesh)]
    batch = shard_rows(batch, mesh)
    step = jax.jit(step, donate_argnums=0, out_shardings=where_it_is(states[0]))

    def once() -> float:
        state = states.pop()
        state, _ = jax.block_until_ready(step(state, start.frozen, batch))  # warm-up
        began = time.perf_counter()
        for _ in range(steps):
            state, report = step(state, start.frozen, batch)
        jax.block_until_ready((state, report))
        states.append(state)
        return 1e3 * (time.perf_counter() - began) / steps

    return once


def peak_gb() -> float:
    """Peak memory in GB: of this process's first device if it keeps statistics, else of this process."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        return stats["peak_bytes_in_use"] / 1e9
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
