"""Products of float32 activations with bfloat16 weights: factors in bfloat16, sums in float32, in both directions.

On CPUs with AVX512-BF16, such a product takes half the time of one in float32. Activations between products stay
float32: a CPU computes nothing else well in bfloat16.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

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


def _forward(x_NxI, kernel_OxI):
    return mixed_product(x_NxI, kernel_OxI), (x_NxI, kernel_OxI)


def _backward(saved, dy_NxO):
    x_NxI, kernel_OxI = saved
    return narrow_product(dy_NxO, kernel_OxI, 1, 0), narrow_product(dy_NxO, x_NxI, 0, 0).astype(NARROW)


def narrow_product(a, b, a_axis: int, b_axis: int):
    """The sum over one axis of each; JAX's own gradient of this would multiply float32 by bfloat16, which is slow."""
    axes = (((a_axis,), (b_axis,)), ((), ()))
    return lax.dot_general(a.astype(NARROW), b.astype(NARROW), axes, preferred_element_type=jnp.float32)


mixed_product.defvjp(_forward, _backward)
