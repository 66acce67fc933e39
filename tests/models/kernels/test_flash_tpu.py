"""The TPU kernels of attention by blocks: interpreted, they equal the dense form; compiled, they are kernels."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl

from pasta_jax.data.packing import pack
from pasta_jax.errors import PastaError
from pasta_jax.models.kernels import flash_tpu
from pasta_jax.models.kernels.blocked import blocked_attention
from pasta_jax.models.mask import EVERYTHING
from pasta_jax.models.sharding import make_mesh, shard, shard_rows
from pasta_jax.train.loss import token_losses
from tests.helpers.compile_attention import SHAPES, TOKENS
from tests.helpers.models import random_params
from tests.helpers.requires import requires_libtpu
from tests.models.kernels import test_blocked
from tests.models.kernels.test_blocked import LENGTH, TOY, inputs, mask_spec
from tests.tpu.test_compile import in_a_process
from tests.train.test_loss import CONFIG, SCORING, records

TOPOLOGIES = ("v5e:2x4", "v6e:2x4")
QUERIES_AND_KEYS = ["forward_kernel", "queries_kernel", "keys_kernel"]


@pytest.fixture
def interpreted(monkeypatch, own_programs):
    """Run the kernels interpreted, with any block size, instead of plain JAX; the names of the kernels used."""
    used = []
    real = pl.pallas_call

    def pallas_call(kernel, name, **rest):
        used.append(name)
        return real(kernel, name=name, interpret=True, **rest)

    monkeypatch.setattr(flash_tpu.pl, "pallas_call", pallas_call)
    monkeypatch.setattr(flash_tpu, "TILE", 1)
    monkeypatch.setattr(lax, "platform_dependent", lambda *arrays, tpu, default: tpu(*arrays))
    return used


@pytest.mark.parametrize(
    ("block", "window", "cap", "heads"),
    [
        pytest.param(64, EVERYTHING, 2.0, (4, 2), marks=pytest.mark.slow),
        pytest.param(23, 16, None, (8, 2), marks=pytest.mark.slow),
        (512, 9, 2.0, (3, 3)),
    ],
)
def test_kernels_equal_dense_attention(interpreted, block, window, cap, heads):
    config = dataclasses.replace(TOY, attention_cap=cap, heads=heads[0], kv_heads=heads[1])
    test_blocked.assert_equals_dense(config, block, window)
    assert interpreted == QUERIES_AND_KEYS


def test_half_precision_stays_close(interpreted):
    test_blocked.test_half_precision_stays_close()
    assert interpreted == ["forward_kernel"]


@pytest.mark.slow
def test_a_mesh_changes_no_loss_and_no_gradient(interpreted):
    """With rows and heads divided over devices, and with scanned, rematerialised layers, local and global."""
    examples = [example for example, _ in records()]
    batch = pack([examples[:2], examples[2:3]], LENGTH)
    params = random_params(CONFIG, seed=4, scale=0.2, stacked=True)
    mesh = make_mesh(2, 2, jax.devices()[:4])

    def loss(scoring):
        return jax.jit(jax.value_and_grad(lambda params, batch: jnp.mean(token_losses(scoring, params, batch))))

    expected = loss(SCORING)(params, batch)
    assert interpreted == []
    scoring = dataclasses.replace(SCORING, block=64, remat=True)
    blocked = loss(scoring)(shard(params, mesh), shard_rows(batch, mesh))
    assert set(interpreted) == set(QUERIES_AND_KEYS)
    for ours, theirs in zip(jax.tree.leaves(blocked), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_block_size_unsupported_on_tpus_is_refused_when_lowering_for_one(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    with pytest.raises(PastaError, match="attention block 64: a TPU needs a multiple of 128"):
        blocked_attention(TOY, *inputs(), mask_spec(64))


@functools.cache
def compiled() -> dict:
    process = in_a_process("-m", "tests.helpers.compile_attention", *TOPOLOGIES)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


@requires_libtpu
@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("name", SHAPES)
def test_the_tpu_compiler_accepts_the_kernels(topology, name):
    report = compiled()[topology][name]
    assert report["kernels"] == 3
    assert report["temp"] < TOKENS * TOKENS * 4  # one head's scores of one row
    assert report["collectives"] == {"all-reduce": 4}  # the test's own sum
