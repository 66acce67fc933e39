"""Flags of launch.benchmark: a benchmark that doesn't read one says so."""

from types import SimpleNamespace

import pytest

from launch import benchmark
from pasta_jax.benchmark.settings import BenchmarkSettings
from pasta_jax.errors import PastaError


@pytest.mark.parametrize(("name", "peers", "programs"), [("drafts", True, None), ("ways", False, "mine.jsonl")])
def test_what_a_benchmark_does_not_read_is_refused(monkeypatch, name, peers, programs):
    monkeypatch.setattr(benchmark, "PEERS", SimpleNamespace(value=peers))
    monkeypatch.setattr(benchmark, "PROGRAMS", SimpleNamespace(value=programs))
    with pytest.raises(PastaError, match=f"^--{'peers' if peers else 'programs'}: {name} doesn't read it"):
        benchmark.main(BenchmarkSettings(), name)
