"""Strict session: rank promotion raises, eight simulated devices, no network; no program is compiled twice."""

import atexit
import os
import shutil
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# With few cores, simulated devices dead-lock in the in-process all-reduce unless the thread pool is larger than they
# are many.
os.environ.setdefault("NPROC", "32")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # the first process makes it, its workers and scripts find it
    programs = tempfile.mkdtemp(prefix="pasta_jax_programs_")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = programs
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
    atexit.register(shutil.rmtree, programs, ignore_errors=True)

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="module", autouse=True)
def forget_programs():
    """Compiled programs go with their module: each maps memory, of which a process gets 65,530 pieces and then dies."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="module")
def quickly_compiled():
    """For tests of what comes out, not how fast: XLA's optimizations would take most of the time."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
