"""Flags of launch.benchmark: a benchmark that doesn't read one says so."""

from types import SimpleNamespace

import pytest

from launch import benchmark
from pasta_jax.benchmark.settings import BenchmarkSettings
from pasta_jax.errors import PastaError
from pasta_jax.runs.settings import changed


@pytest.mark.parametrize(("name", "peers", "programs"), [("drafts", True, None), ("ways", False, "mine.jsonl")])
def test_what_a_benchmark_does_not_read_is_refused(monkeypatch, name, peers, programs):
    monkeypatch.setattr(benchmark, "PEERS", SimpleNamespace(value=peers))
    monkeypatch.setattr(benchmark, "PROGRAMS", SimpleNamespace(value=programs))
    with pytest.raises(PastaError, match=f"^--{'peers' if peers else 'programs'}: {name} doesn't read it"):
        benchmark.main(BenchmarkSettings(), name)


@pytest.mark.parametrize(
    ("name", "changes", "peers", "message"),
    [
        ("ways", {"random_weights": True}, False, r"config\.random_weights: ways doesn't read it"),
        ("serve", {"mesh": {"data": 2}}, False, r"config\.mesh: serve doesn't read it"),
        ("decode", {"random_weights": True}, True, "--peers: the peers read packaged weights"),
    ],
)
def test_settings_that_would_change_nothing_are_refused(monkeypatch, name, changes, peers, message):
    """Rather than that another model is measured than the one that is named."""
    monkeypatch.setattr(benchmark, "PEERS", SimpleNamespace(value=peers))
    monkeypatch.setattr(benchmark, "PROGRAMS", SimpleNamespace(value=None))
    with pytest.raises(PastaError, match=message):
        benchmark.main(changed(BenchmarkSettings(), **changes), name)
