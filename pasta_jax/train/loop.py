"""The one training loop: data is a function of the step, the loss is handed in, all state is a TrainState.

    loss(trainable, frozen, batch) -> Measured        batch: any tree of arrays whose first axis is the example

Metrics are read one step late, so that writing them never keeps the device waiting.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from pasta_jax.checkpoint import Checkpoints
from pasta_jax.errors import PastaError
from pasta_jax.metrics import Metrics
from pasta_jax.sharding import shard_rows
from pasta_jax.train.state import TrainState

Loss = Callable  # loss(trainable, frozen, batch) -> loss.Measured


def gradients(loss: Loss, trainable, frozen, batch, accumulate: int):
    """Gradient of the mean loss and what was measured, over `accumulate` parts of the batch one after another.

    Sums are added up and divided at the end, so that the parts together are exactly the whole batch, however unevenly
    its labels fall.
    """

    def total(trainable, part):
        measured = loss(trainable, frozen, part)
        return measured.parts["loss"][0], measured

    def one(part):
        gradient, measured = jax.grad(total, has_aux=True)(trainable, part)
        return gradient, measured

    if accumulate == 1:
        gradient, measured = one(batch)
    else:
        # Rows by turns: where rows are shared out over devices, each part still has some on every device.
        parts = jax.tree.map(lambda a: jnp.moveaxis(a.reshape(-1, accumulate, *a.shape[1:]), 1, 0), batch)
        shapes = jax.eval_shape(one, jax.tree.map(lambda a: a[0], parts))
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

        def add(sums, part):
            return jax.tree.map(jnp.add, sums, one(part)), None

        (gradient, measured), _ = lax.scan(add, nothing, parts)
    weight = jnp.maximum(measured.parts["loss"][1], 1e-9)  # a batch without labels changes nothing
    return jax.tree.map(lambda leaf: leaf / weight, gradient), measured


def train_step(
    state: TrainState, frozen, batch, loss: Loss, optimizer: optax.GradientTransformation, accumulate: int
) -> tuple[TrainState, dict]:
    """One optimizer step: pure, un-jitted."""
    gradient, measured = gradients(loss, state.trainable, frozen, batch, accumulate)
    updates, moments = optimizer.update(gradient, state.optimizer, state.trainable)
    trainable = optax.apply_updates(state.trainable, updates)
    state = TrainState(trainable, moments, state.step + 1, state.seed)
    return state, {"measured": measured, "grad_norm": optax.tree.norm(gradient)}


def means(parts: dict) -> dict[str, float]:
    """Sums divided by their weights; a part without any weight is left out."""
    return {name: float(total) / float(weight) for name, (total, weight) in parts.items() if float(weight) > 0}


def held_out(measure: Callable, trainable, frozen, batches: Iterable) -> dict[str, float]:
    """Mean losses over batches that are not trained on; `measure` is the jitted loss."""
    sums: dict[str, np.ndarray] = {}
    for batch in batches:
        for name, pair in jax.device_get(measure(trainable, frozen, batch).parts).items():
            sums[name] = sums.get(name, 0.0) + np.asarray(pair, np.float64)
    return means(sums)


@dataclasses.dataclass(frozen=True)
class Rhythm:
    """How often what is done, in steps; 0: never."""

    log: int
    held_out: int
    probe: int
    save: int


@dataclasses.dataclass(frozen=True)
class Run:
    """What a training is, apart from its state."""

    steps: int
    accumulate: int
    batch: Callable  # batch(seed, step) -> tree of host arrays
    held_out: tuple  # batches that are never trained on
    loss: Loss
    optimizer: optax.GradientTransformation
    rate: Callable  # learning rate of a step, to be shown
    flops_per_token: float
    peak: float | None  # operations a second of the devices; None: unknown
    probe: Callable | None  # probe(trainable, frozen) -> {name: number}: a look at what the model does
    rhythm: Rhythm


def train(
    run: Run, state: TrainState, frozen, metrics: Metrics, checkpoints: Checkpoints, stopping: Callable
) -> TrainState:
    """Train from where the state is until the last step, or until `stopping()`; saves at the end of either."""
    step_once = jax.jit(
        functools.partial(train_step, loss=run.loss, optimizer=run.optimizer, accumulate=run.accumulate),
        donate_argnums=0,
    )
    measure = jax.jit(run.loss)
    mesh = getattr(jax.tree.leaves(state.trainable)[0].sharding, "mesh", None)
    place = (lambda batch: batch) if mesh is None else functools.partial(shard_rows, mesh=mesh)
    seed, step = int(state.seed), int(state.step)
    clock = _Clock()
    waiting = None  # the step before, not yet read

    def read() -> None:
        nonlocal waiting
        if waiting is None:
            return
        number, seen = waiting
        waiting = None
        seen = jax.device_get(seen)
        clock.lap(int(seen["measured"].tokens))
        values = means(seen["measured"].parts)
        if not np.isfinite(values.get("loss", 0.0)):
            raise PastaError(
                f"step {number}: the loss is {values['loss']}; lower the learning rate or raise warmup, and start anew"
            )
        if _due(number, run.rhythm.log, run.steps):
            values |= {"grad_norm": float(seen["grad_norm"]), "learning_rate": float(run.rate(number - 1))}
            metrics.write(number, values | clock.speed(run.flops_per_token, run.peak))

    while step < run.steps and not stopping():
        state, seen = step_once(state, frozen, place(run.batch(seed, step)))
        step += 1
        read()
        waiting = step, seen
        looks = run.held_out and _due(step, run.rhythm.held_out, run.steps)
        probes = run.probe is not None and _due(step, run.rhythm.probe, run.steps)
        saves = _due(step, run.rhythm.save, run.steps)
        if looks or probes or saves:
            read()  # whoever restores this state finds all metrics up to it written
        if looks:
            said = held_out(measure, state.trainable, frozen, map(place, run.held_out))
            metrics.write(step, {f"held_out/{name}": value for name, value in said.items()})
        if probes:
            metrics.write(step, {f"probe/{name}": value for name, value in run.probe(state.trainable, frozen).items()})
        if saves:
            checkpoints.save(step, state)
        if looks or probes or saves:
            clock.start()
    read()
    checkpoints.save(step, state)
    checkpoints.wait()
    return state


class _Clock:
    """Tokens and seconds of the steps since figures were last asked for; the first step, which compiles, left out."""

    def __init__(self):
        self.since = None
        self.steps = self.tokens = self.seconds = 0

    def start(self) -> None:
        """Something else than training took time until now."""
        if self.since is not None:
            self.since = time.perf_counter()

    def lap(self, tokens: int) -> None:
        """A step's result has come."""
        now = time.perf_counter()
        if self.since is not None:
            self.steps, self.tokens, self.seconds = (
                self.steps + 1,
                self.tokens + tokens,
                self.seconds + now - self.since,
            )
        self.since = now

    def speed(self, flops_per_token: float, peak: float | None) -> dict[str, float]:
        """Seconds a step, tokens a second and, where the device's peak is known, the share of it."""
        steps, tokens, seconds = self.steps, self.tokens, self.seconds
        self.steps = self.tokens = self.seconds = 0
        if not steps:
            return {}
        speed = {"s_per_step": seconds / steps, "tokens_per_s": tokens / seconds}
        return speed if peak is None else speed | {"mfu": speed["tokens_per_s"] * flops_per_token / peak}


def _due(step: int, every: int, last: int) -> bool:
    return every > 0 and (step % every == 0 or step == last)
