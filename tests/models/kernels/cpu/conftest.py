"""The library of kernels, for the tests of this folder."""

import pytest

from pasta_jax.models.kernels.cpu import library as kernels


@pytest.fixture
def library(request):
    """At the level of this machine, or at another."""
    found, level = kernels.library(), getattr(request, "param", "")
    if found is None:
        pytest.skip("needs a C++ compiler")
    if not found.pasta_level(level.encode()):
        pytest.skip(f"this machine has no {level}")
    yield found
    found.pasta_level(b"")
    found.pasta_threads(kernels.cores())
