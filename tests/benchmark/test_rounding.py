"""How far rounded inputs move a real model's distributions."""

import pytest

from pasta_jax.benchmark import rounding
from pasta_jax.benchmark.settings import BenchmarkSettings
from pasta_jax.errors import PastaError
from pasta_jax.models.kernels.cpu import library as kernels
from pasta_jax.runs.settings import changed
from tests.helpers.requires import requires_smollm2


@requires_smollm2
@pytest.mark.slow
@pytest.mark.skipif(kernels.library() is None, reason="needs a C++ compiler")
@pytest.mark.usefixtures("kernels_on_simulated_devices")
def test_rounded_inputs_stay_near():
    settings = changed(BenchmarkSettings(), rounding=dict(texts=2, tokens=32))
    found = rounding.measure(settings, with_peers=False)["from_float32"]
    assert found["16 bits"]["kl"] < 1e-5
    assert found["8 bits"]["kl"] < 0.01
    with pytest.raises(PastaError, match=r"rounding\.tokens"):
        rounding.measure(changed(settings, rounding=dict(tokens=4096)), with_peers=False)
