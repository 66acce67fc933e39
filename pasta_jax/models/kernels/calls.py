"""The kernels of rows.cc as JAX functions: products of a few rows, and their attention to a pool. On one CPU only.

XLA's own product packs its matrix for each call of two rows and more; with the kernel, eight rows read it once. XLA
can't divide the calls over devices.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.models.kernels.library import library, version

PANEL, GROUP = 32, 32  # outputs side by side, and inputs with one scale; as in rows.cc
_CHUNK = 1024  # rows that are coded at a time


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


def by_codes(matrix_OxI: np.ndarray) -> dict[str, np.ndarray]:
    """A matrix in panels as codes of 8 bits, [P, I, 32], each times the scale of its 32 inputs, [P, I / 32, 32]."""
    outputs, inputs = matrix_OxI.shape
    blocks_OxBxG = matrix_OxI.reshape(outputs, inputs // GROUP, GROUP)
    scales_OxB = np.abs(blocks_OxBxG).max(axis=2) / np.float32(127)
    codes_OxI = np.empty((outputs, inputs), np.int8)
    for start in range(0, outputs, _CHUNK):
        part = np.s_[start : start + _CHUNK]
        scaled = blocks_OxBxG[part] / np.where(scales_OxB[part] > 0, scales_OxB[part], 1)[:, :, None]
        with np.errstate(invalid="ignore"):  # of damaged weights; the scale then says so
            codes_OxI[part] = np.rint(scaled).reshape(-1, inputs)
    return {"codes": by_panels(codes_OxI), "scales": by_panels(scales_OxB)}


def holds_panels(leaves: Mapping[str, Any]) -> bool:
    """Whether a matrix's parameters are for `product`."""
    return "panels" in leaves or "codes" in leaves


def product(x_NxI, matrix: Mapping[str, Any], outputs: int):
    """x times a matrix in panels, of numbers or of codes; [N, out] in float32."""
    result = jax.ShapeDtypeStruct((x_NxI.shape[0], outputs), jnp.float32)
    if "panels" in matrix:
        return jax.ffi.ffi_call(target("product"), result)(x_NxI, matrix["panels"])
    return jax.ffi.ffi_call(target("coded_product"), result)(x_NxI, matrix["codes"], matrix["scales"])


def attend(q_BxTxKxGxD, k_BxKxSxD, v_BxKxSxD, see_BxTxS, scale: float, cap: float | None):
    """Softmax attention in float32 that reads only the visible slots; the result of a row that sees none is zero."""
    result = jax.ShapeDtypeStruct(q_BxTxKxGxD.shape, jnp.float32)
    call = jax.ffi.ffi_call(target("attention"), result)
    return call(q_BxTxKxGxD, k_BxKxSxD, v_BxKxSxD, see_BxTxS, scale=np.float32(scale), cap=np.float32(cap or 0))


def rows_of(matrix: Mapping[str, Any], index):
    """Rows of a matrix in panels, in float32: of an embedding that is the head too."""

    def pick(panels_PxIxC):
        return panels_PxIxC[index // PANEL, :, index % PANEL]

    if "panels" in matrix:
        return pick(matrix["panels"])
    return pick(matrix["codes"]).astype(jnp.float32) * jnp.repeat(pick(matrix["scales"]), GROUP, axis=-1)
