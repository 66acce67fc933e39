"""AdamW under a clipped gradient and a linear schedule; which leaves decay is said for every one of them."""

import dataclasses
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from pasta_jax.errors import PastaError

# The end of a leaf's path and whether weight decay pulls at it; the first pattern that fits decides.
DECAYS: tuple[tuple[str, bool], ...] = (
    (r"\w+_norm/weight", False),  # 1 is a norm's rest, not 0
    (r"tag_rows/(embed|head)", False),  # a row is touched by its own token only, decay would touch all
    (r"(embed|head)", False),
    (r"kernel", True),
    (r"lora_[ab]", True),
)


@dataclasses.dataclass(frozen=True)
class Plan:
    """How far and how fast to go."""

    steps: int  # optimizer steps of the whole run; the learning rate ends there at 0
    learning_rate: float  # at the end of the warm-up
    warmup: int  # steps that climb to it
    weight_decay: float
    clip: float  # greatest global norm of a gradient
    b1: float
    b2: float
    eps: float

    def __post_init__(self):
        if not 0 <= self.warmup < self.steps:
            raise PastaError(f"warmup {self.warmup}: it must be from 0 to below steps ({self.steps})")
        if self.clip <= 0:
            raise PastaError(f"clip {self.clip}: it must be above 0; give a large one to clip nothing")


def schedule(plan: Plan) -> Callable:
    """The learning rate of a step, counted from 0: up in `warmup` steps, then straight down to 0 behind the last."""

    def rate(step):
        up = (step + 1) / (plan.warmup + 1)
        down = (plan.steps - step) / (plan.steps - plan.warmup)
        return plan.learning_rate * jnp.clip(jnp.minimum(up, down), 0.0, 1.0)

    return rate


def decay_mask(trainable):
    """bool for every leaf; a leaf that no pattern fits is an error."""

    def decays(path, _) -> bool:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        for pattern, answer in DECAYS:
            if re.search(rf"(^|/){pattern}$", name):
                return answer
        raise PastaError(f"{name}: nothing says whether it decays; add it to DECAYS in pasta_jax/train/optimizer.py")

    return jax.tree_util.tree_map_with_path(decays, trainable)


def new_optimizer(plan: Plan) -> optax.GradientTransformation:
    """Clip, then AdamW. The rate isn't injected: optax would take the mask for a schedule and decay nothing."""
    adamw = optax.adamw(
        schedule(plan), b1=plan.b1, b2=plan.b2, eps=plan.eps, weight_decay=plan.weight_decay, mask=decay_mask
    )
    return optax.chain(optax.clip_by_global_norm(plan.clip), adamw)
