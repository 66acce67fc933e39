"""Products of a few rows with a matrix in panels: the kernel of rows.cc as a JAX function, on the CPU only.

XLA's own products pack the matrix for each call of two rows and more; with the kernel, eight rows read it once. XLA
can't divide the call over devices.
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
def target() -> str:
    """The kernel's name in programs, registered. A kept program with it runs with no other version of the kernel."""
    name = f"pasta_jax_product_{version()}"
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(library().pasta_product), platform="cpu")
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
    return jax.ffi.ffi_call(target(), result)(x_NxI, panels_PxIxC)


def rows_of(panels_PxIxC, index):
    """Rows of the matrix in panels: of an embedding that is the head too."""
    return panels_PxIxC[index // PANEL, :, index % PANEL]
