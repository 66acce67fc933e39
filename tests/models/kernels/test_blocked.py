"""Blocked attention and its gradients equal the dense form under the mask of data/batch.py; [T, T] is never built."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pasta_jax.data.packing import Batch, mask, pack
from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import Place
from pasta_jax.models.attention import attention
from pasta_jax.models.config import PRESETS
from pasta_jax.models.kernels.blocked import blocked_attention
from pasta_jax.models.mask import EVERYTHING, MaskSpec
from pasta_jax.train import loss
from tests.train.test_loss import records

TOY = PRESETS["toy"]
LENGTH = 230


@functools.cache
def batch() -> Batch:
    """Rows with several records of real programs, and padding."""
    examples = [example for example, _ in records()]
    return pack([examples[:2], examples[2:3], []], LENGTH)


def mask_spec(block: int, window: int = EVERYTHING) -> MaskSpec:
    return loss.mask_spec(batch(), block).within(window)


def inputs(dtype=jnp.float32, config=TOY):
    rng = np.random.default_rng(0)
    lead = (3, LENGTH, config.kv_heads)
    shapes = [(*lead, config.groups, config.head_dim), (*lead, config.head_dim), (*lead, config.head_dim)]
    return [jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes]


def dense(config, q, k, v, sinks=None, window=EVERYTHING):
    near = batch().position[:, :, None] - batch().position[:, None, :] < window
    return attention(config, q, k.swapaxes(1, 2), v.swapaxes(1, 2), mask(batch()) & near, sinks)


def with_gradients(f):
    def total(*qkv):
        out = f(*qkv)
        weights = np.random.default_rng(1).standard_normal(out.shape).astype(np.float32)
        return jnp.sum(out * weights), out

    def run(*inputs):
        return jax.jit(jax.value_and_grad(total, argnums=tuple(range(len(inputs))), has_aux=True))(*inputs)

    return run


@pytest.mark.parametrize(
    ("block", "window", "cap", "sinks"),
    [(64, EVERYTHING, 2.0, False), (32, 16, None, True), (7, EVERYTHING, None, False), (512, 9, 2.0, True)],
)
def test_blocked_attention_equals_dense_attention(block, window, cap, sinks):
    assert_equals_dense(dataclasses.replace(TOY, attention_cap=cap, sinks=sinks), block, window)


def assert_equals_dense(config, block: int, window: int) -> None:
    qkv = inputs(config=config)
    sinks = jnp.linspace(-1.0, 3.0, config.heads).reshape(config.kv_heads, -1) if config.sinks else None
    (_, expected), gradients = with_gradients(functools.partial(dense, config, window=window))(*qkv, sinks)
    ours = with_gradients(lambda q, k, v, sinks: blocked_attention(config, q, k, v, mask_spec(block, window), sinks))(
        *qkv, sinks
    )
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), (ours[0][1], ours[1]), (expected, gradients))


def test_half_precision_stays_close():
    blocked = jax.jit(lambda *qkv: blocked_attention(TOY, *qkv, mask_spec(64)))(*inputs(jnp.bfloat16))
    assert blocked.dtype == jnp.bfloat16
    np.testing.assert_allclose(blocked.astype(jnp.float32), dense(TOY, *inputs()), atol=0.1)


def test_the_full_mask_is_never_built():
    """Forward and backward over 8192 tokens use far less memory than one head's scores."""
    length, size = 8192, 8
    config = dataclasses.replace(TOY, heads=1, kv_heads=1)
    zeros = np.zeros((1, length), np.int32)
    place = Place(zeros, zeros, np.arange(1, length + 1, dtype=np.int32)[None])
    one = MaskSpec(place, zeros, zeros, jnp.int32(EVERYTHING), 256)
    q, kv = jnp.zeros((1, length, 1, 1, size)), jnp.zeros((1, length, 1, size))

    def total(q, k, v, mask_spec):
        return jnp.sum(blocked_attention(config, q, k, v, mask_spec))

    compiled = jax.jit(jax.grad(total, argnums=(0, 1, 2))).lower(q, kv, kv, one).compile()
    # One byte per score would take four times this.
    assert compiled.memory_analysis().temp_size_in_bytes < length * length / 4


def test_an_empty_block_is_refused():
    with pytest.raises(PastaError, match="attention block 0"):
        mask_spec(0)
