"""Strict session: rank promotion raises, eight simulated devices, no network; programs compiled once and quickly."""

import atexit
import os
import shutil
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# With few cores, simulated devices dead-lock in the in-process all-reduce unless the thread pool is larger than they
# are many.
os.environ.setdefault("NPROC", "32")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Most programs here run for less time than XLA's optimizations take; tests that differ ask for `fully_compiled`. With 0
# everything is compiled as for users.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
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


@pytest.fixture
def fully_compiled():
    """For tests that run long, or that look at the very program users run."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
