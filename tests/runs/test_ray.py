"""Tasks on Ray, in whose place is a stub: `tests/preference/test_sweep.py` has a real cluster."""

import contextlib
import types
import weakref

from pasta_jax.runs import ray as cluster


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
