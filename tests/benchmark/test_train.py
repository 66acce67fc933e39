"""The benchmark of training steps: over all parameters, and over an adapter's beside a frozen base."""

import dataclasses

import jax
import numpy as np
import pytest

from pasta_jax.benchmark import run
from pasta_jax.benchmark.settings import BenchmarkSettings
from pasta_jax.runs.settings import changed
from pasta_jax.train.speed import flops_per_token
from pasta_jax.train.trainable import divide
from tests.helpers.models import TINY, random_params
from tests.helpers.traces import tiny_model


@pytest.mark.parametrize("rank", [0, 2])
def test_steps_are_taken_over_what_is_trained(monkeypatch, rank):
    started = []

    def load(source, adapter, seed, mesh):
        started.append(divide(tiny_model(), adapter, seed))
        return started[0]

    monkeypatch.setattr(run.trainable, "load", load)
    small = {"rank": rank, "rows": 1, "length": 16, "slice": 16, "rounds": 1}
    report = run.train(changed(BenchmarkSettings(), train=small), with_peers=False)
    [start] = started
    size = sum(np.size(leaf) for leaf in jax.tree.leaves(start.params))
    whole = sum(np.size(leaf) for leaf in jax.tree.leaves(start.model.params))
    assert (size == whole) == (start.frozen is None) == (rank == 0)
    assert (report["rank"], report["ours_over_peer"]) == (rank, None)
    assert report["tokens_per_s"]["ours"] > 0
    assert report["ms_per_step"].keys() == report["tokens_per_s"].keys() == report["peak_gb"].keys() == {"ours"}
    assert report["mfu"] == "unknown"


@pytest.mark.parametrize(("adapter", "expected"), [(False, 6 * 3416 + 192), (True, 4 * 3416 + 192)])
def test_operations_of_a_token_are_those_counted_by_hand(adapter, expected):
    """Weights: table 384 x 8, query, key and value 12 x 8, out 8 x 4, gate and up 16 x 8, down 8 x 8, three norms of 8.
    Attention: 3 x 2 x head dimension 4 x length 8."""
    assert flops_per_token(random_params(TINY, 1), TINY, 8, adapter) == expected


def test_operations_are_those_of_active_experts():
    one, four = (
        dataclasses.replace(TINY, experts=experts, active_experts=1, ff=512, mlp_bias=False) for experts in (1, 4)
    )
    flops = [flops_per_token(random_params(config, 1), config, 8, adapter=False) for config in (one, four)]
    assert flops[1] == pytest.approx(flops[0], rel=0.01)  # but for the router


def test_the_peak_is_that_of_the_devices_that_train(monkeypatch):
    """Without a mesh, one of them does."""
    asked = []
    monkeypatch.setattr(run.trainable, "load", lambda _, adapter, seed, __: divide(tiny_model(), adapter, seed))
    monkeypatch.setattr(run, "peak_flops", asked.append)
    run.train(changed(BenchmarkSettings(), train={"rows": 1, "length": 16, "slice": 16, "rounds": 1}), with_peers=False)
    assert len(jax.devices()) > 1
    assert asked == [jax.devices()[:1]]
