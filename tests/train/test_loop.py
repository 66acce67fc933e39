"""The loop: parts equal the whole, resuming equals never stopping, metrics are written once and in order."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pasta_jax.data.packing import Batch
from pasta_jax.errors import PastaError
from pasta_jax.lang.tags import TagIds
from pasta_jax.models.config import PRESETS
from pasta_jax.models.sharding import make_mesh, shard, shard_rows
from pasta_jax.runs.checkpoint import provenance
from pasta_jax.train.fit import Fit, fit
from pasta_jax.train.loop import Run, train_step, where_it_is
from pasta_jax.train.loss import LossSums, Scoring, sft_loss
from pasta_jax.train.optimizer import new_optimizer, schedule
from pasta_jax.train.settings import Intervals, Keep, TrainingSettings, parts_of
from pasta_jax.train.state import TrainState, new_state
from pasta_jax.weights.adapter import new_adapter
from pasta_jax.weights.settings import AdapterSettings
from tests.helpers.models import random_params

POSITIONS = {"policy": "constant", "constant": 7}
STEPS, SETTINGS = 9, TrainingSettings(learning_rate=0.05, warmup=2, weight_decay=0.1, b2=0.99)


def loss(trainable, frozen, batch, whole=None):
    """Linear regression on weighted points: the loop knows nothing about language."""
    x, y, weight = batch["x"], batch["y"], batch["weight"]
    error = jnp.sum(((x @ trainable["kernel"] - y) ** 2) * weight)
    return LossSums({"loss": (error, jnp.sum(weight)), "never": (0.0, 0.0)}, jnp.sum(weight > 0))


def points(seed: int, step: int, rows: int = 12) -> dict:
    rng = np.random.default_rng([seed, step])
    x = rng.standard_normal((rows, 3)).astype(np.float32)
    weight = (rng.random(rows) < 0.5).astype(np.float32)  # parts of the batch have unequal numbers of labels
    return {"x": x, "y": x @ np.array([1.0, -2.0, 0.5], np.float32), "weight": weight}


def run_of(**changes) -> Run:
    run = Run(
        steps=STEPS,
        batch=points,
        held_out=(points(99, 0), points(99, 1)),
        loss=loss,
        optimizer=new_optimizer(SETTINGS, STEPS),
        learning_rate=schedule(SETTINGS, STEPS),
        flops_per_token=10.0,
        every=Intervals(log=1, held_out=4, probe=0, save=3),
    )
    return dataclasses.replace(run, **changes)


def fresh():
    return new_state({"kernel": jnp.zeros(3)}, new_optimizer(SETTINGS, STEPS), seed=5)


def fit_in(folder, data: str = "points", stop_after: int = 100, first: TrainState | None = None, **changes) -> Fit:
    """Train in a folder, from its newest checkpoint if it has one; optionally stop after some steps."""
    steps = iter(range(stop_after))
    about, run, first = provenance({}, data, POSITIONS), run_of(**changes), first or fresh()
    return fit(folder, run, first, None, about, Keep(2, 0), False, lambda: next(steps, None) is None)


def lines(folder) -> list[dict]:
    """The metrics so far, without the times."""
    path = folder / "metrics.jsonl"
    written = [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []
    times = ("s_per_step", "tokens_per_s")
    return [{key: value for key, value in line.items() if key not in times} for line in written]


def test_accumulating_over_parts_of_a_batch_equals_the_whole_batch():
    state, batch = fresh(), points(0, 0)
    steps = {
        parts: train_step(state, None, batch, loss, new_optimizer(SETTINGS, STEPS), parts) for parts in (1, 2, 3, 12)
    }
    for after, seen in steps.values():
        np.testing.assert_allclose(after.trainable["kernel"], steps[1][0].trainable["kernel"], rtol=1e-5)
        np.testing.assert_allclose(seen.grad_norm, steps[1][1].grad_norm, rtol=1e-5)
        np.testing.assert_allclose(seen.loss.parts["loss"], steps[1][1].loss.parts["loss"], rtol=1e-5)
        assert int(seen.loss.tokens) == np.count_nonzero(batch["weight"])
    assert np.abs(steps[1][0].trainable["kernel"]).max() > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "axis"),
    [(0, "data"), (2, "fsdp"), *(pytest.param(*one, marks=pytest.mark.extended) for one in ((0, "fsdp"), (2, "data")))],
)
def test_a_step_on_a_mesh_equals_one_on_one_device(rank, axis):
    """A transformer's step, in parts, with all parameters or an adapter; the state stays on its mesh."""
    tags, config = TagIds(256), PRESETS["toy"]
    params = jax.device_put(random_params(config, seed=2, scale=0.2, stacked=True))
    adapter = new_adapter(params, AdapterSettings(rank, 4.0), tags, seed=0) if rank else None
    trainable, frozen = (adapter, params) if rank else (params, None)
    scoring = Scoring(config, tags, jnp.float32, slice=16, block=0, remat=True, products=jnp.float32)
    optimizer = new_optimizer(SETTINGS, STEPS)
    token = np.random.default_rng(0).integers(0, 256, (4, 33)).astype(np.int32)
    order = np.broadcast_to(np.arange(32, dtype=np.int32), (4, 32))
    zero = np.zeros_like(order)
    batch = Batch(token[:, :-1], token[:, 1:], order, zero, zero, order + 1, zero + 1)
    step = jax.jit(functools.partial(train_step, loss=sft_loss(scoring, (1.0,) * 5), optimizer=optimizer, accumulate=2))
    state = new_state(trainable, optimizer, seed=0)
    alone, seen = step(state, frozen, batch)
    mesh = make_mesh(2, 4, axis=axis)
    state = shard(state, mesh)
    step = jax.jit(step.__wrapped__, out_shardings=where_it_is(state))
    there, seen_there = step(state, None if frozen is None else shard(frozen, mesh), shard_rows(batch, mesh))
    np.testing.assert_allclose(seen_there.loss.parts["loss"], seen.loss.parts["loss"], rtol=1e-5)
    np.testing.assert_allclose(seen_there.grad_norm, seen.grad_norm, rtol=1e-4)
    # The first moments are the gradients; Adam's step itself would hide their size.
    moments, moments_there = (optax.tree.get(one.optimizer, "mu") for one in (alone, there))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), moments_there, moments)
    large = there.trainable["layers"]["gate_up"]["lora_b" if rank else "kernel"]
    assert len({shard.device for shard in large.addressable_shards}) == 8
    assert large.addressable_shards[0].data.size == large.size // (8 if axis == "fsdp" and not rank else 4)
    assert jax.tree.map(lambda leaf: leaf.sharding, there) == jax.tree.map(lambda leaf: leaf.sharding, state)


def test_rows_that_devices_cannot_share_are_refused():
    with pytest.raises(PastaError, match="3 rows doesn't divide over 2 devices"):
        shard_rows({"x": np.zeros((3, 2))}, make_mesh(2, 4))


def test_training_learns_and_writes_metrics_in_order(tmp_path):
    state = fit_in(tmp_path).state
    written = lines(tmp_path)
    train_lines = [line for line in written if "loss" in line]
    assert [line["step"] for line in train_lines] == list(range(1, 10))
    assert [line["step"] for line in written if "held_out/loss" in line] == [4, 8, 9]
    assert train_lines[-1]["loss"] < train_lines[0]["loss"]
    assert "never" not in train_lines[0]  # it had no weight
    np.testing.assert_allclose(train_lines[0]["learning_rate"], 0.05 / 3, rtol=1e-5)
    # The loss of step n is the one before its update.
    np.testing.assert_allclose(
        train_lines[0]["loss"], np.divide(*loss(fresh().trainable, None, points(5, 0)).parts["loss"]), rtol=1e-6
    )
    assert int(state.step) == 9
    # The held-out loss is the mean over all labels, not over batches.
    pairs = [loss(state.trainable, None, points(99, number)).parts["loss"] for number in (0, 1)]
    expected = sum(float(total) for total, _ in pairs) / sum(float(weight) for _, weight in pairs)
    np.testing.assert_allclose(written[-1]["held_out/loss"], expected, rtol=1e-5)


def test_metrics_of_lost_steps_are_not_written_twice(tmp_path):
    """After a kill, the file holds lines of steps behind the last checkpoint, which are repeated."""
    fit_in(tmp_path / "whole")
    fit_in(tmp_path / "killed", stop_after=5)
    path = tmp_path / "killed/metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 6, "loss": 1.0}\n{"step": 7, "lo')
    fit_in(tmp_path / "killed")
    assert lines(tmp_path / "killed") == lines(tmp_path / "whole")


def test_a_probe_gets_the_current_parameters(tmp_path):
    seen = []

    def probe(trainable, frozen):
        seen.append(np.asarray(trainable["kernel"]))
        return {"forks": float(len(seen))}

    fit_in(tmp_path, probe=probe, every=Intervals(log=0, held_out=0, probe=5, save=0))
    assert lines(tmp_path) == [{"step": 5, "probe/forks": 1.0}, {"step": 9, "probe/forks": 2.0}]
    assert np.abs(seen[1] - seen[0]).max() > 0


def test_a_loss_that_is_not_a_number_stops_the_run(tmp_path):
    def broken(trainable, frozen, batch, whole=None):
        sums = loss(trainable, frozen, batch)
        return sums._replace(parts={"loss": (sums.parts["loss"][0] * jnp.nan, jnp.float32(1))})

    with pytest.raises(PastaError, match="step 1: loss is nan"):
        fit_in(tmp_path, loss=broken)


def test_a_gradient_that_is_not_a_number_stops_the_run_before_anything_is_saved(tmp_path):
    def broken(trainable, frozen, batch, whole=None):
        sums = loss(trainable, frozen, batch)
        total, weight = sums.parts["loss"]
        return sums._replace(parts={"loss": (total + jnp.sqrt(jnp.sum(0 * trainable["kernel"])), weight)})

    with pytest.raises(PastaError, match="step 1: grad_norm is nan"):
        fit_in(tmp_path, loss=broken, every=Intervals(log=0, held_out=0, probe=0, save=1))
    assert not [*(tmp_path / "checkpoints").glob("[0-9]*")]


def test_a_last_step_that_breaks_the_weights_is_no_result(tmp_path):
    broken = optax.sgd(float("inf"))
    first = new_state({"kernel": jnp.zeros(3)}, broken, seed=5)
    with pytest.raises(PastaError, match=r"step 1: held_out/loss is (inf|nan)"):
        fit_in(tmp_path, first=first, steps=1, optimizer=broken, learning_rate=lambda step: jnp.inf)
    assert not [*(tmp_path / "checkpoints").glob("[0-9]*")]


def test_the_state_is_donated():
    """No second copy of weights and moments in a step."""
    state, optimizer = fresh(), optax.sgd(0.1)
    state = new_state({"kernel": jnp.zeros((256, 3))}, optimizer, 0)
    batch = points(0, 0)

    def flat_loss(trainable, frozen, batch, whole=None):
        return loss({"kernel": trainable["kernel"].sum(0)}, frozen, batch)

    step = jax.jit(lambda state: train_step(state, None, batch, flat_loss, optimizer, 1)[0], donate_argnums=0)
    assert step.lower(state).compile().memory_analysis().alias_size_in_bytes >= 256 * 3 * 4


@pytest.mark.parametrize(("accumulate", "devices", "expected"), [(4, 1, 4), (2, 4, 2), (4, 4, 2), (8, 4, 2), (4, 8, 1)])
def test_devices_that_share_rows_compute_no_part_together(accumulate, devices, expected):
    """Of a part with fewer rows than devices, each device would compute all; no device gets more rows than alone."""
    parts = parts_of(TrainingSettings(accumulate=accumulate), 8, devices)
    assert parts == expected
    assert 8 // parts % devices == 0
    assert 8 // parts // devices <= 8 // accumulate
