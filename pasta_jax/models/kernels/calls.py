"""The kernels of rows.cc as JAX functions: products of a few rows, and their attention to a pool. On one CPU only.

XLA's own product packs its matrix for each call of two rows and more; with the kernel, eight rows read it once. XLA
can't divide the calls over devices.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.models.kernels.library import library, version

PANEL = 32  # outputs side by side; as in rows.cc


def is_available() -> bool:
    """Whether parameters for decoding should hold panels: one CPU, and a library."""
    return jax.default_backend() == "cpu" and jax.device_count() == 1 and library() is not None


@functools.cache
def target(kernel: str) -> str:
    """A kernel's name in programs, registered. A kept program with it runs with no other version of the kernel."""
    name = f"pasta_jax_{kernel}_{version()}"
    function = getattr(library(), f"pasta_{kernel}")
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(function), platform="cpu")
    return name


def by_panels(matrix_OxI: np.ndarray) -> np.ndarray:
    """A matrix [out, in] as panels [ceil(out / 32), in, 32]; a view where 32 divides out, else padded."""
    outputs, inputs = matrix_OxI.shape
    missing = -outputs % PANEL
    if missing:
        matrix_OxI = np.pad(matrix_OxI, ((0, missing), (0, 0)))
    return matrix_OxI.reshape(-1, PANEL, inputs).swapaxes(1, 2)


def product(x_NxI, panels_PxIxC, outputs: int):
    """x times the matrix in panels, [N, out] in float32."""
    result = jax.ShapeDtypeStruct((x_NxI.shape[0], outputs), jnp.float32)
    return jax.ffi.ffi_call(target("product"), result)(x_NxI, panels_PxIxC)


def attend(q_BxTxKxGxD, k_BxKxSxD, v_BxKxSxD, see_BxTxS, scale: float, cap: float | None):
    """Softmax attention in float32 that reads only the visible slots; the result of a row that sees none is zero."""
    result = jax.ShapeDtypeStruct(q_BxTxKxGxD.shape, jnp.float32)
    call = jax.ffi.ffi_call(target("attention"), result)
    return call(q_BxTxKxGxD, k_BxKxSxD, v_BxKxSxD, see_BxTxS, scale=np.float32(scale), cap=np.float32(cap or 0))


def rows_of(panels_PxIxC, index):
    """Rows of the matrix in panels: of an embedding that is the head too."""
    return panels_PxIxC[index // PANEL, :, index % PANEL]
