"""Attention of whole sequences for training on a CPU: products in bfloat16, one head at a time, in bands.

XLA CPU computes batched products at a third of the speed of single ones, so each head has its own. Its queries are cut
into bands, and a band reads no key behind its last query: no mask of training shows one.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.mask import HIDDEN

NARROW = jnp.bfloat16


def multiplies_bfloat16(root: Path = Path("/")) -> bool:
    """Whether the CPU has instructions for products in bfloat16; True where Linux doesn't say."""
    try:
        text = (root / "proc/cpuinfo").read_text()
    except OSError:
        return True
    lines = [line for line in text.splitlines() if line.lower().startswith(("flags", "features"))]
    features = {word for line in lines for word in line.split()}
    return not features or bool(features & {"avx512_bf16", "amx_bf16", "bf16"})


# The dtype of stacked kernels in bfloat16 on a CPU: to slice a layer of bfloat16, XLA copies all layers in float32.
BITS = np.dtype(np.uint16)


def as_bfloat16(leaf: jax.Array) -> jax.Array:
    """The numbers whose bits an array holds; any other array as it is."""
    return lax.bitcast_convert_type(leaf, NARROW) if leaf.dtype == BITS else leaf


def is_mixed(x: jax.Array, kernel: jax.Array) -> bool:
    """Whether the product of these two is one of this file."""
    return x.dtype == jnp.float32 and kernel.dtype == NARROW


def row_product(x_NxI: jax.Array, kernel_OxI: jax.Array, dtype: DTypeLike | None = None) -> jax.Array:
    """x times the kernel's transpose, [N, O]; without a dtype, in that of the factors."""
    if is_mixed(x_NxI, kernel_OxI):
        return mixed_product(x_NxI, kernel_OxI)
    return jnp.einsum("ni,oi->no", x_NxI, kernel_OxI, preferred_element_type=dtype)


@jax.custom_vjp
def mixed_product(x_NxI, kernel_OxI):
    """float32 [N, O]: x times the kernel's transpose."""
    return narrow_product(x_NxI, kernel_OxI, 1, 1)


def _product_forward(x_NxI, kernel_OxI):
    return mixed_product(x_NxI, kernel_OxI), (x_NxI, kernel_OxI)


def _product_backward(saved, dy_NxO):
    x_NxI, kernel_OxI = saved
    return narrow_product(dy_NxO, kernel_OxI, 1, 0), narrow_product(dy_NxO, x_NxI, 0, 0).astype(NARROW)


def narrow_product(a, b, a_axis: int, b_axis: int):
    """The sum over one axis of each; JAX's own gradient of this would multiply float32 by bfloat16, which is slow."""
    axes = (((a_axis,), (b_axis,)), ((), ()))
    return lax.dot_general(a.astype(NARROW), b.astype(NARROW), axes, preferred_element_type=jnp.float32)


mixed_product.defvjp(_product_forward, _product_backward)


BAND = 128  # queries; a multiple of what a vector holds


def mixed_attention(config: TransformerConfig, q_BxTxKxGxD, k_BxKxTxD, v_BxKxTxD, see_BxTxT):
    """Equals `attention.attention` of these keys and values but for rounding; no query may see a later key."""
    lanes, _, heads, _, _ = q_BxTxKxGxD.shape
    q_BxKxGxTxD = jnp.moveaxis(q_BxTxKxGxD * config.score_scale, 1, 3)
    # A loop over heads: unrolled, it takes as long to run and six times as long to compile.
    q_HxGxTxD, k_HxTxD, v_HxTxD = (x.reshape(-1, *x.shape[2:]) for x in (q_BxKxGxTxD, k_BxKxTxD, v_BxKxTxD))
    lane_H = jnp.repeat(jnp.arange(lanes), heads)
    see_BxTxT = jnp.asarray(see_BxTxT)
    out_HxGxTxD = lax.map(lambda of: _head(*of[:3], see_BxTxT[of[3]]), (q_HxGxTxD, k_HxTxD, v_HxTxD, lane_H))
    return jnp.moveaxis(out_HxGxTxD.reshape(q_BxKxGxTxD.shape), 3, 1)


def _bands(length: int) -> list[tuple[int, int]]:
    return [(start, min(start + BAND, length)) for start in range(0, length, BAND)]


@jax.custom_vjp
def _head(q_GxTxD, k_TxD, v_TxD, see_TxT):
    return _head_forward(q_GxTxD, k_TxD, v_TxD, see_TxT)[0]


def _head_forward(q_GxTxD, k_TxD, v_TxD, see_TxT):
    groups, length, size = q_GxTxD.shape
    outs, weights = [], []
    for start, end in _bands(length):
        q_NxD = q_GxTxD[:, start:end].reshape(-1, size)  # one row per query and group
        scores_GxQxS = narrow_product(q_NxD, k_TxD[:end], 1, 1).reshape(groups, -1, end)
        scores_GxQxS = jnp.where(see_TxT[None, start:end, :end], scores_GxQxS, HIDDEN)
        weights.append(jax.nn.softmax(scores_GxQxS, axis=-1).reshape(-1, end).astype(NARROW))
        outs.append(narrow_product(weights[-1], v_TxD[:end], 1, 0).reshape(groups, -1, size))
    return jnp.concatenate(outs, axis=1), (q_GxTxD, k_TxD, v_TxD, weights)


def _head_backward(saved, d_out_GxTxD):
    q_GxTxD, k_TxD, v_TxD, weights = saved
    groups, length, size = q_GxTxD.shape
    dq, dk_TxD, dv_TxD = [], jnp.zeros(k_TxD.shape), jnp.zeros(v_TxD.shape)
    for weights_NxS, (start, end) in zip(weights, _bands(length), strict=True):
        q_NxD, d_out_NxD = (rows[:, start:end].reshape(-1, size) for rows in (q_GxTxD, d_out_GxTxD))
        d_weights_NxS = narrow_product(d_out_NxD, v_TxD[:end], 1, 1)
        delta_Nx1 = jnp.sum(d_weights_NxS * weights_NxS, axis=1, keepdims=True)
        d_scores_NxS = (weights_NxS * (d_weights_NxS - delta_Nx1)).astype(NARROW)
        dq.append(narrow_product(d_scores_NxS, k_TxD[:end], 1, 0).reshape(groups, -1, size))
        dk_TxD = dk_TxD.at[:end].add(narrow_product(d_scores_NxS, q_NxD, 0, 0))
        dv_TxD = dv_TxD.at[:end].add(narrow_product(weights_NxS, d_out_NxD, 0, 0))
    return jnp.concatenate(dq, axis=1), dk_TxD, dv_TxD, None


_head.defvjp(_head_forward, _head_backward)
