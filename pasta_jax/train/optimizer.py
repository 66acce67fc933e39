"""AdamW with gradient clipping and a linear schedule; weight decay is decided explicitly for every leaf."""

import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from pasta_jax.errors import PastaError
from pasta_jax.train.settings import OptimizerSettings
from pasta_jax.train.state import Params

# The end of a leaf's path, and whether it decays; the first matching pattern decides.
DECAYS: tuple[tuple[str, bool], ...] = (
    (r"\w+_norm/weight", False),  # a norm's neutral value is 1, not 0
    (r"tag_rows/(embed|head)", False),  # only a token's own row gets a gradient, decay would shrink all rows
    (r"(embed|head|layer_embed)", False),
    (r"bias", False),
    (r"(sinks|scale)/weight", False),
    (r"kernel", True),
    (r"score", True),  # of a reward model
    (r"lora_[ab]", True),
)


def schedule(settings: OptimizerSettings, steps: int) -> Callable[[int | jax.Array], jax.Array]:
    """The learning rate of a step, counted from 0: a rise over `warmup` steps, then decay to 0 at `steps`."""
    warmup = min(settings.warmup, steps // 2)

    def learning_rate(step: int | jax.Array) -> jax.Array:
        up = (step + 1) / (warmup + 1)
        left = (steps - step) / (steps - warmup)
        match settings.decay:
            case "linear":
                down = left
            case "cosine":
                down = (1 - jnp.cos(jnp.pi * jnp.clip(left, 0.0, 1.0))) / 2
            case "constant":
                down = 1.0
        return settings.learning_rate * jnp.clip(jnp.minimum(up, down), 0.0, 1.0)

    return learning_rate


def decay_mask(trainable: Params) -> Params:
    """A bool for every leaf; a leaf that no pattern matches is an error."""

    def decays(path: tuple, _) -> bool:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        for pattern, decay in DECAYS:
            if re.search(rf"(^|/){pattern}$", name):
                return decay
        raise PastaError(
            f"{name}: no pattern decides whether it decays; add one to DECAYS in pasta_jax/train/optimizer.py"
        )

    return jax.tree_util.tree_map_with_path(decays, trainable)


def new_optimizer(settings: OptimizerSettings, steps: int) -> optax.GradientTransformation:
    """Clip, then AdamW. No injected learning rate: optax would take the mask for a schedule and decay nothing."""
    rate, decay = schedule(settings, steps), settings.weight_decay
    adamw = optax.adamw(rate, settings.b1, settings.b2, settings.eps, weight_decay=decay, mask=decay_mask)
    return optax.chain(optax.clip_by_global_norm(settings.clip), adamw)
