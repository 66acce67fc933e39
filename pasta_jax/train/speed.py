"""How fast training is, beside what the device could do."""

import functools
import resource
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.data.batch import Batch
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.weights import Model
from pasta_jax.train.loop import train_step
from pasta_jax.train.loss import KINDS, Scoring, sft_loss
from pasta_jax.train.optimizer import Plan, new_optimizer
from pasta_jax.train.state import new_state

# Published dense bfloat16 peaks, in 10^12 operations a second, by jax.Device.device_kind.
PEAKS = {
    "NVIDIA A100": 312,
    "NVIDIA H100": 989,
    "NVIDIA H200": 989,
    "TPU v4": 275,
    "TPU v5 lite": 197,
    "TPU v5e": 197,
    "TPU v5p": 459,
    "TPU v5": 459,
    "TPU v6 lite": 918,
    "TPU v6e": 918,
}


def peak_flops(devices) -> float | None:
    """Operations a second of all devices together; None where no peak is published, as for a CPU."""
    kind = devices[0].device_kind
    fitting = [name for name in PEAKS if kind.startswith(name)]
    return PEAKS[max(fitting, key=len)] * 1e12 * len(devices) if fitting else None


def flops_per_token(params, config: TransformerConfig, length: int, adapter: bool) -> float:
    """Operations of a training step for each token: forwards and backwards, nothing computed twice counted twice.

    Matrices: 2 a weight forwards, 2 for the inputs' gradient and, where the weights are trained, 2 for theirs.
    Attention: as if each token saw half of its row.
    """
    table = config.vocab * config.embed
    size = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))
    matrices = size - (table if not config.tied_head else 0)  # one of two tables is only looked up
    attention = 2 * config.layers * config.heads * config.head_dim * length
    return (4 if adapter else 6) * matrices + 3 * attention


def step_runner(model: Model, rows: int, length: int, steps: int, scoring: Scoring, plan: Plan) -> Callable[[], float]:
    """Steps over all parameters on random tokens, each row one record without tags; milliseconds of one."""
    rng = np.random.default_rng(0)
    token = rng.integers(0, model.tokenizer.vocab_size, (rows, length + 1)).astype(np.int32)
    order = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
    zero, one = np.zeros_like(order), np.ones_like(order)
    batch = Batch(token[:, :-1], token[:, 1:], position=order, chunk=zero, epoch=zero, main=order + 1, record=one)
    optimizer = new_optimizer(plan)
    step = functools.partial(train_step, loss=sft_loss(scoring, (1.0,) * len(KINDS)), optimizer=optimizer, accumulate=1)
    step = jax.jit(step, donate_argnums=0)
    # Weights of its own, since a step takes its argument's memory.
    held = [new_state(jax.tree.map(jnp.copy, model.params), optimizer, seed=0)]

    def once() -> float:
        state = held.pop()
        state, _ = jax.block_until_ready(step(state, None, batch))  # warms up
        began = time.perf_counter()
        for _ in range(steps):
            state, seen = step(state, None, batch)
        jax.block_until_ready((state, seen))
        held.append(state)
        return 1e3 * (time.perf_counter() - began) / steps

    return once


def peak_gb() -> float:
    """The most memory this process has had: of its first device where that counts, else of the process."""
    stats = jax.devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        return stats["peak_bytes_in_use"] / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
