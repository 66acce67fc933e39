"""Tasks on Ray, in whose place is a stub: `tests/preference/test_sweep.py` has a real cluster."""

import contextlib
import dataclasses
import sys
import types
import weakref
from collections.abc import Callable

import pytest

from pasta_jax.errors import PastaError
from pasta_jax.runs import ray as cluster


def stand_in(init: Callable[[dict], None], **resources: float) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda **given: init(given),
        cluster_resources=lambda: resources,
        shutdown=lambda: None,
    )


@pytest.mark.parametrize(
    ("address", "in_environment", "joined", "here"),
    [
        ("", "", "local", {"num_cpus": 4.0}),
        ("", "10.0.0.1:6379", "10.0.0.1:6379", {}),  # whose CPUs are its own to count
        ("10.0.0.2:6379", "10.0.0.1:6379", "10.0.0.2:6379", {}),
    ],
)
def test_a_cluster_in_the_environment_is_joined(monkeypatch, address, in_environment, joined, here):
    started = []
    stub = stand_in(started.append, CPU=4.0)
    monkeypatch.setitem(sys.modules, "ray", stub)
    monkeypatch.setenv("RAY_ADDRESS", in_environment)
    with cluster.connected(cluster.RaySettings(address, workers=2, cpus=2.0)) as ray:
        assert ray is stub
    [given] = started
    assert given["address"] == joined
    assert {name: value for name, value in given.items() if name.startswith("num_")} == here


def test_workers_that_this_machine_has_no_room_for_are_refused(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setitem(sys.modules, "ray", stand_in(lambda given: None, CPU=4.0, GPU=1.0))
    for taken, least, name in (({"gpus": 1.0}, 2, "gpus=1"), ({"tpus": 1}, 1, "tpus=1"), ({"cpus": 5.0}, 1, "cpus=5")):
        settings = cluster.RaySettings(**taken)
        with (
            pytest.raises(PastaError, match=rf"^config\.ray\.{name}: config\.replicas=2 needs "),
            cluster.connected(settings, "config.replicas=2", least),
        ):
            pytest.fail("connected")
        with cluster.connected(dataclasses.replace(settings, address="10.0.0.1:6379"), least=least):
            pass  # it may grow
    with cluster.connected(cluster.RaySettings(gpus=0.5), least=2):
        pass


def test_an_outcome_is_let_go_of_once_it_was_passed_on(monkeypatch):
    kept = weakref.WeakSet()  # as Ray keeps an outcome while anything refers to it

    class Reference:
        def __init__(self, task: int):
            self.outcome = str(task)
            kept.add(self)

    worker = types.SimpleNamespace(options=lambda **_: types.SimpleNamespace(remote=Reference))
    stub = types.SimpleNamespace(
        remote=lambda compute: worker,
        wait=lambda waiting, num_returns: (waiting[-1:], waiting[:-1]),
        get=lambda done: done.outcome,
    )
    monkeypatch.setattr(cluster, "connected", lambda settings: contextlib.nullcontext(stub))
    seen = []
    for one in cluster.on_ray(cluster.RaySettings(), str, range(4)):
        seen.append(one)
        assert len(kept) == 5 - len(seen)  # those that are waited for, and this one
    assert seen == [(3, "3"), (2, "2"), (1, "1"), (0, "0")]
