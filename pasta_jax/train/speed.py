"""How fast training is, beside what the device could do."""

import jax
import numpy as np

from pasta_jax.models.config import TransformerConfig

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
