"""The training loop: data is a function of the step, the loss is a parameter, and all state is one TrainState.

    loss(trainable, frozen, batch, whole=None) -> LossSums

A batch is any tree of arrays whose first axis counts examples; `whole` is the batch that it is a part of, if it is one.
The metrics of a step are read after the next step has started, so writing them never keeps the device waiting.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from pasta_jax.errors import PastaError
from pasta_jax.models.sharding import mesh_of, shard_rows
from pasta_jax.progress import doing
from pasta_jax.runs.checkpoint import Checkpoints
from pasta_jax.runs.metrics import Metrics
from pasta_jax.train.loss import Loss, LossSums
from pasta_jax.train.settings import Intervals
from pasta_jax.train.state import Params, TrainState

AnyBatch = Any  # what the loss reads: a tree of arrays whose first axis counts examples


def gradients(
    loss: Loss, trainable: Params, frozen: Params | None, batch: AnyBatch, accumulate: int
) -> tuple[Params, LossSums]:
    """Gradient of the mean loss, and the loss's sums, over `accumulate` parts of the batch one after another.

    The parts' sums are added and divided once at the end, so the result is that of the whole batch however unevenly
    its labels are distributed.
    """

    def total(trainable: Params, part: AnyBatch):
        sums = loss(trainable, frozen, part, batch if accumulate > 1 else None)
        return sums.parts["loss"][0], sums

    def one(part: AnyBatch):
        return jax.grad(total, has_aux=True)(trainable, part)

    if accumulate == 1:
        gradient, sums = one(batch)
    else:
        # Rows are interleaved: where devices share the rows, each part still has some on every device.
        parts = jax.tree.map(lambda a: jnp.moveaxis(a.reshape(-1, accumulate, *a.shape[1:]), 1, 0), batch)
        shapes = jax.eval_shape(one, jax.tree.map(lambda a: a[0], parts))
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

        def add(totals, part: AnyBatch):
            return jax.tree.map(jnp.add, totals, one(part)), None

        (gradient, sums), _ = lax.scan(add, zeros, parts)
    weight = jnp.maximum(sums.parts["loss"][1], 1e-9)  # a batch without labels changes nothing
    return jax.tree.map(lambda leaf: leaf / weight, gradient), sums


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepReport:
    """What one optimizer step measured, still on the device."""

    loss: LossSums
    grad_norm: jax.Array


def train_step(
    state: TrainState,
    frozen: Params | None,
    batch: AnyBatch,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    accumulate: int,
) -> tuple[TrainState, StepReport]:
    """One optimizer step: pure, un-jitted."""
    gradient, sums = gradients(loss, state.trainable, frozen, batch, accumulate)
    updates, moments = optimizer.update(gradient, state.optimizer, state.trainable)
    trainable = optax.apply_updates(state.trainable, updates)
    state = TrainState(trainable, moments, state.step + 1, state.seed)
    return state, StepReport(sums, optax.tree.norm(gradient))


def where_it_is(state: TrainState) -> Any:
    """The shardings of a step's results: the state stays where it is. XLA would choose other ones for some arrays."""
    return None if mesh_of(state.trainable) is None else (jax.tree.map(lambda leaf: leaf.sharding, state), None)


def means(parts: dict[str, tuple[jax.Array, jax.Array]]) -> dict[str, float]:
    """Each sum divided by its weight; a part without weight is left out."""
    return {name: float(total) / float(weight) for name, (total, weight) in parts.items() if float(weight) > 0}


def held_out(measure: Loss, trainable: Params, frozen: Params | None, batches: Iterable[AnyBatch]) -> dict[str, float]:
    """Mean losses over batches that are not trained on; `measure` is the jitted loss."""
    totals: dict[str, np.ndarray] = {}
    for batch in batches:
        for name, pair in jax.device_get(measure(trainable, frozen, batch).parts).items():
            totals[name] = totals.get(name, 0.0) + np.asarray(pair, np.float64)
    return means(totals)


@dataclasses.dataclass(frozen=True)
class Run:
    """What a training run is, apart from its state."""

    steps: int
    batch: Callable[[int, int], AnyBatch]  # batch(seed, step) -> host arrays
    loss: Loss
    optimizer: optax.GradientTransformation
    learning_rate: Callable[[int], jax.Array]  # of a step, for the metrics
    flops_per_token: float
    every: Intervals
    accumulate: int = 1
    held_out: tuple[AnyBatch, ...] = ()  # never trained on
    peak_flops: float | None = None  # operations per second of all devices; None: unknown
    probe: Callable[[Params, Params | None], dict[str, float]] | None = None  # probe(trainable, frozen) -> metrics


def train(
    run: Run,
    state: TrainState,
    frozen: Params | None,
    metrics: Metrics,
    checkpoints: Checkpoints,
    stopping: Callable[[], bool],
) -> TrainState:
    """Train from the state's step to the last one, or until `stopping()`; saves a checkpoint in both cases."""
    step_once = jax.jit(
        functools.partial(train_step, loss=run.loss, optimizer=run.optimizer, accumulate=run.accumulate),
        donate_argnums=0,
        out_shardings=where_it_is(state),
    )
    measure = jax.jit(run.loss)
    place = functools.partial(shard_rows, mesh=mesh_of(state.trainable))
    seed, step = int(state.seed), int(state.step)
    clock = _Clock()
    unread: tuple[int, StepReport] | None = None  # the previous step's

    def write_unread() -> None:
        nonlocal unread
        if unread is None:
            return
        number, report = unread
        unread = None
        report = jax.device_get(report)
        metrics.reach(number)
        clock.lap(int(report.loss.tokens))
        values = means(report.loss.parts)
        values["grad_norm"] = float(report.grad_norm)  # NaN where the loss, that before the update, is still finite
        _require_finite(number, {name: values.get(name, 0.0) for name in ("loss", "grad_norm")})
        if _due(number, run.every.log, run.steps):
            values["learning_rate"] = float(run.learning_rate(number - 1))
            metrics.write(number, values | clock.speed(run.flops_per_token, run.peak_flops))

    while step < run.steps and not stopping():
        state, report = step_once(state, frozen, place(run.batch(seed, step)))
        step += 1
        write_unread()
        unread = step, report
        measure_due = bool(run.held_out) and _due(step, run.every.held_out, run.steps)
        probe_due = run.probe is not None and _due(step, run.every.probe, run.steps)
        save_due = _due(step, run.every.save, run.steps)
        if not (measure_due or probe_due or save_due):
            continue
        write_unread()  # a run that resumes from this step finds all metrics up to it in the file
        if measure_due:
            with doing("measuring the held-out loss"):
                losses = held_out(measure, state.trainable, frozen, map(place, run.held_out))
            losses = {f"held_out/{name}": value for name, value in losses.items()}
            _require_finite(step, losses)  # after the last step, nothing else would tell
            metrics.write(step, losses)
        if probe_due:
            with doing("answering held-out prompts"):
                probed = run.probe(state.trainable, frozen)
            metrics.write(step, {f"probe/{name}": value for name, value in probed.items()})
        if save_due:
            checkpoints.save(step, state)
        clock.restart()
    write_unread()
    checkpoints.save(step, state)
    checkpoints.wait()
    return state


def _require_finite(step: int, values: dict[str, float]) -> None:
    for name, value in values.items():
        if not np.isfinite(value):
            raise PastaError(f"step {step}: {name} is {value}; lower the learning rate or raise warmup, and start over")


class _Clock:
    """Tokens and seconds of the steps since `speed` was last called, without the first step, which compiles."""

    def __init__(self):
        self._lap_start: float | None = None
        self._steps = self._tokens = 0
        self._seconds = 0.0

    def restart(self) -> None:
        """Leave out the time since the last lap: it was not spent on training."""
        if self._lap_start is not None:
            self._lap_start = time.perf_counter()

    def lap(self, tokens: int) -> None:
        """A step's result has arrived."""
        now = time.perf_counter()
        if self._lap_start is not None:
            self._steps += 1
            self._tokens += tokens
            self._seconds += now - self._lap_start
        self._lap_start = now

    def speed(self, flops_per_token: float, peak_flops: float | None) -> dict[str, float]:
        """Seconds per step, tokens per second and, where the devices' peak is known, the share of it."""
        steps, tokens, seconds = self._steps, self._tokens, self._seconds
        self._steps = self._tokens = 0
        self._seconds = 0.0
        if not steps:
            return {}
        speed = {"s_per_step": seconds / steps, "tokens_per_s": tokens / seconds}
        return speed if peak_flops is None else speed | {"mfu": speed["tokens_per_s"] * flops_per_token / peak_flops}


def _due(step: int, every: int, last: int) -> bool:
    return every > 0 and (step % every == 0 or step == last)
