"""The parts of a layer: products with a matrix, norms, rotary positions."""

import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from pasta_jax.models.adapters import with_own
from pasta_jax.models.config import Rope, TransformerConfig
from pasta_jax.models.kernels.bfloat16 import row_product
from pasta_jax.models.kernels.cpu import calls
from pasta_jax.models.kernels.cpu.calls import STEP, holds_panels, product, rows_of, sums, waves

PRODUCT = "product"  # the name of a product with a kernel, for what a backward pass need not compute again
kernel_init = nn.initializers.normal(stddev=0.02)


class Dense(nn.Module):
    """x [..., inputs] times kernel [*outputs, inputs]; a LoRA pair is added where the parameters hold one.

    Parameters for decoding only may hold another form; see `times`. A kernel's last axis is never split: a TPU stores a
    kernel whose last two axes are small in tiles that its matrix unit cannot read, and re-tiles it in every step.
    """

    outputs: tuple[int, ...]
    has_bias: bool = False

    @nn.compact
    def __call__(self, x):
        *lead, inputs = x.shape
        rows_NxI = x.reshape(math.prod(lead), inputs)
        stored = self.variables.get("params") or {"kernel": self.param("kernel", kernel_init, (*self.outputs, inputs))}
        y_NxO = times(rows_NxI, stored, math.prod(self.outputs))
        if "lora_a" in stored:  # [rank, inputs], and `lora_b` [*outputs, rank]
            y_NxO = y_NxO + matmul(matmul(rows_NxI, stored["lora_a"]), stored["lora_b"])
        if "chosen" in stored:
            y_NxO = with_own(stored["chosen"], y_NxO, functools.partial(with_pair, rows_NxI), stored["pairs"])
        if self.has_bias:
            bias = self.param("bias", nn.initializers.zeros_init(), self.outputs)
            y_NxO = y_NxO + bias.reshape(1, -1).astype(y_NxO.dtype)
        return checkpoint_name(y_NxO, PRODUCT).reshape(*lead, *self.outputs)


class Weight(nn.Module):
    """A vector of parameters."""

    shape: tuple[int, ...]
    init: nn.initializers.Initializer = nn.initializers.zeros_init()

    @nn.compact
    def __call__(self):
        return self.param("weight", self.init, self.shape)


class Stored(nn.Module):
    """The parameters of a matrix that others multiply with, or of several, [X, out, in]."""

    shape: tuple[int, ...]
    has_bias: bool = False

    @nn.compact
    def __call__(self):
        stored = dict(self.variables.get("params", {}))
        if not stored:
            stored = {"kernel": self.param("kernel", kernel_init, self.shape)}
            if self.has_bias:
                stored["bias"] = self.param("bias", nn.initializers.zeros_init(), self.shape[:-1])
        return stored


Matrix = jax.Array | Mapping[str, Any]  # a table by itself, or the arrays of a form


def times(x_NxI, matrix: Matrix, outputs: int, dtype: DTypeLike | None = None):
    """x times a matrix in any form: that and `picked` are what a form needs. `dtype`: of the product with a head."""
    if not isinstance(matrix, Mapping):
        return row_product(x_NxI, matrix, dtype)
    if holds_panels(matrix):
        return product(x_NxI, matrix, outputs)
    if "columns" in matrix:  # [inputs, *outputs]
        return matmul_columns(x_NxI, matrix["columns"].reshape(x_NxI.shape[1], -1), dtype)
    return matmul(x_NxI, matrix["kernel"])


def with_pair(x_NxI, y_NxO, pair: Mapping[str, Any]):
    """y with the product of a low-rank pair, `a` and `b`, each in a form."""
    return y_NxO + times(times(x_NxI, pair["a"], inputs_of(pair["b"])), pair["b"], y_NxO.shape[1])


def inputs_of(matrix: Mapping[str, Any]) -> int:
    """The inputs of a matrix in panels, or of a kernel."""
    if "codes" in matrix:  # in steps of 16
        return STEP * matrix["codes"].shape[1]
    return matrix["panels"].shape[-2] if holds_panels(matrix) else matrix["kernel"].shape[-1]


def picked(table: Matrix, index):
    """Rows of a table in any form."""
    if not isinstance(table, Mapping):
        return table[index]
    return jnp.moveaxis(table["columns"][:, index], 0, -1) if "columns" in table else rows_of(table, index)


def gated(config: TransformerConfig, gate, up):
    """What an MLP passes to its second product."""
    if config.gate_limit is not None:
        gate, up = jnp.minimum(gate, config.gate_limit), jnp.clip(up, -config.gate_limit, config.gate_limit)
        return gate * jax.nn.sigmoid(gate * config.gate_slope) * (up + 1)
    return (jax.nn.silu(gate) if config.activation == "silu" else jax.nn.gelu(gate, approximate=True)) * up


def gated_pairs(config: TransformerConfig, pairs_BxTxF2, kernel: bool):
    """The same of gates and ups side by side; by our own kernel, or XLA."""
    if not kernel or config.gate_limit is not None:
        return gated(config, pairs_BxTxF2[..., 0::2], pairs_BxTxF2[..., 1::2])
    slope = 1.0 if config.activation == "silu" else 2 * math.sqrt(2 / math.pi)  # a tanh is a sigmoid of twice as much
    return calls.gated(pairs_BxTxF2, slope, 0.0 if config.activation == "silu" else 0.044715 * slope)


def matmul(x_NxI, kernel):
    """x times a kernel [*outputs, inputs].

    The kernel is reshaped to [out, in] before the product: XLA CPU would copy a kernel of more dimensions, transposed,
    in every step.
    """
    return row_product(x_NxI, kernel.reshape(-1, x_NxI.shape[1]))


PARTS = 4  # more than the usual number of threads: one that wakes late then computes fewer parts


def matmul_columns(x_NxI, columns_IxO, dtype: DTypeLike | None = None):
    """x times a matrix [in, out]; for one row in parts of the inputs, which XLA CPU distributes over its threads."""
    inputs, outputs = columns_IxO.shape
    if x_NxI.shape[0] > 1 or inputs % PARTS or dtype is not None:  # of a head, which gains nothing by it
        return jnp.matmul(x_NxI, columns_IxO, preferred_element_type=dtype)
    parts = x_NxI.reshape(PARTS, 1, inputs // PARTS), columns_IxO.reshape(PARTS, inputs // PARTS, outputs)
    return jnp.sum(jnp.einsum("pni,pio->pno", *parts), axis=0)


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis, in float32. Gemma's added 1 is already part of the weight."""

    eps: float
    ordered: bool = False  # see of_size_one

    @nn.compact
    def __call__(self, x):
        weight = self.param("weight", nn.initializers.ones_init(), x.shape[-1:])
        x32 = of_size_one(x, self.eps, self.ordered)
        return (x32 * jnp.expand_dims(weight.astype(jnp.float32), range(x.ndim - 1))).astype(x.dtype)


def of_size_one(x, eps: float, ordered: bool = False):
    """x / rms(x) over the last axis, in float32. `ordered`: a row depends on no other, and there is no derivative."""
    x32 = x.astype(jnp.float32)
    squares = x32 * x32
    mean = sums(squares)[..., None] / x.shape[-1] if ordered else jnp.mean(squares, axis=-1, keepdims=True)
    return x32 * lax.rsqrt(mean + eps)


def rotate(x_BxTxHxD, waves_BxTx1xC):
    """Rotary positions by halves: pair (i, i + C) is rotated by its wave's angle. Elements from 2C on stay."""
    cos_BxTx1xC, sin_BxTx1xC = waves_BxTx1xC
    pairs = cos_BxTx1xC.shape[-1]
    a, b, rest = jnp.split(x_BxTxHxD, (pairs, 2 * pairs), axis=-1)
    rotated = (a * cos_BxTx1xC - b * sin_BxTx1xC, b * cos_BxTx1xC + a * sin_BxTx1xC, rest)
    return jnp.concatenate(rotated, axis=-1).astype(x_BxTxHxD.dtype)


def rope_waves(rope: Rope, head_dim: int, positions_BxT, kernel: bool = False):
    """Cosine and sine of every position and pair, each [B, T, 1, D/2] in float32; by our own kernel, or XLA."""
    angles = positions_BxT[:, :, None, None] * jnp.asarray(rope.frequencies(head_dim), jnp.float32)[None, None, None]
    cos, sin = waves(angles) if kernel else (jnp.cos(angles), jnp.sin(angles))
    return (cos, sin) if rope.amplitude == 1.0 else (cos * rope.amplitude, sin * rope.amplitude)


def scaled(x, factor: float):
    """x times a factor, rounded to x's dtype first; x itself for 1."""
    return x if factor == 1.0 else x * jnp.asarray(factor, x.dtype)


def soft_cap(x, cap: float | None):
    """cap * tanh(x / cap), or x itself."""
    return x if cap is None else cap * jnp.tanh(x / cap)
