"""The kernels of rows.cc as JAX functions: products of a few rows, and their attention to a pool. On one CPU only.

XLA's own product packs its matrix for each call of two rows and more; with the kernel, eight rows read it once. XLA
can't divide the calls over devices.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pasta_jax.models.kernels.cpu.library import library, version
from pasta_jax.models.kernels.cpu.quantized import GROUP, Blocks

PANEL, STEP = 32, 16  # outputs side by side, and inputs whose codes lie together; as in operands.h
BITS = 16  # of inputs that are multiplied with codes; see `product`
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
    return of_blocks(Blocks(codes_OxI, scales_OxB, None, bits=8))


def of_blocks(blocks: Blocks) -> dict[str, np.ndarray]:
    """A matrix of a quantised file in panels, its codes in words of four bytes: [P, I / 16, bits / 2, 32].

    Of 16 inputs, words of 8 bits hold four each. Words of 4 bits hold eight: byte j has inputs j and 4 + j. Words of 6
    bits are two such with the lower four bits, and a third whose byte j has the upper two of inputs j, 4 + j, …
    """
    outputs, inputs = blocks.codes.shape
    offset = {4: 0, 6: 32, 8: 128}[blocks.bits]
    words_OxW = np.empty((outputs, inputs // STEP, blocks.bits // 2), "<u4")
    for start in range(0, outputs, _CHUNK):
        part = slice(start, start + _CHUNK)
        codes = blocks.codes[part].view(np.uint8) + np.uint8(offset)
        four = codes.reshape(-1, inputs // STEP, STEP).view("<u4")  # inputs in a word
        if blocks.bits == 8:
            words_OxW[part] = four
            continue
        low = four & 0x0F0F0F0F
        words_OxW[part, :, :2] = low[..., 0::2] | low[..., 1::2] << 4
        if blocks.bits == 6:
            upper = four >> 4 & 0x03030303
            words_OxW[part, :, 2] = upper[..., 0] | upper[..., 1] << 2 | upper[..., 2] << 4 | upper[..., 3] << 6
    others = {name: getattr(blocks, name) for name in ("scales", "minimums", "factors", "floors")}
    fields = {"codes": words_OxW.reshape(outputs, -1)} | others
    panels = {name: np.ascontiguousarray(by_panels(field)) for name, field in fields.items() if field is not None}
    return panels | {"codes": panels["codes"].reshape(-1, *words_OxW.shape[1:], PANEL)}


def holds_panels(leaves: Mapping[str, Any]) -> bool:
    """Whether a matrix's parameters are for `product`."""
    return "panels" in leaves or "codes" in leaves


def path(leaves: Mapping[str, Any]) -> str:
    """What multiplies with a matrix's parameters: an instruction set of our own kernels, or XLA."""
    if not holds_panels(leaves):
        return "XLA"
    level = library().pasta_level_name().decode()
    return f"{level}, inputs of {leaves.get('bits', BITS)} bits" if level != "portable" and "codes" in leaves else level


def product(x_NxI, matrix: Mapping[str, Any], outputs: int):
    """x times a matrix in panels, of float32, bfloat16 or codes; [N, out] in float32.

    With AVX2, codes are multiplied with inputs rounded to `bits`, 8 or 16, each group of inputs with its own scale; 32
    leaves them as they are. A matrix of codes may have a low-rank pair, `a` [rank, in] and `b` in panels, which is
    added. Any matrix may have rows `exact` in panels, which replace the outputs with the numbers `exact_at`, one after
    another.
    """
    result = jax.ShapeDtypeStruct((x_NxI.shape[0], outputs), jnp.float32)
    if "panels" in matrix:
        y_NxO = jax.ffi.ffi_call(target("product"), result)(x_NxI, matrix["panels"])
    else:
        panels = dict.fromkeys(("minimums", "factors", "floors"), (0, 0, PANEL))
        empty = panels | {"a": (0, x_NxI.shape[1]), "b": (0, 0, PANEL)}
        optional = [matrix[name] if name in matrix else jnp.zeros(shape) for name, shape in empty.items()]
        bits = jnp.asarray(matrix.get("bits", BITS), jnp.int32)
        call = jax.ffi.ffi_call(target("coded_product"), result)
        y_NxO = call(x_NxI, matrix["codes"], matrix["scales"], *optional, bits)
    if "exact" not in matrix:
        return y_NxO
    exact_NxR = product(x_NxI, {"panels": matrix["exact"]}, len(matrix["exact_at"]))
    return lax.dynamic_update_slice_in_dim(y_NxO, exact_NxR, matrix["exact_at"][0], axis=1)


class Seen(NamedTuple):
    """The slots that each row sees, in the order in which its sums add up."""

    slots_BxTxS: jax.Array  # int32; anything after as many
    count_BxT: jax.Array  # int32


def visible(see_BxTxS, order_LxS, lanes_BxT) -> Seen:
    """The slots that rows see, in the order of their lane's. Once a step: layers and heads all see the same."""
    sizes = see_BxTxS.shape, see_BxTxS.shape[:2]
    result = [jax.ShapeDtypeStruct(size, jnp.int32) for size in sizes]
    return Seen(*jax.ffi.ffi_call(target("visible"), result)(see_BxTxS, order_LxS, lanes_BxT))


def attend(q_BxTxKxGxD, k_LxKxSxD, v_LxKxSxD, lanes_BxT, seen: Seen, scale: float, cap: float | None):
    """Softmax attention in float32 that reads only the visible slots; the result of a row that sees none is zero."""
    result = jax.ShapeDtypeStruct(q_BxTxKxGxD.shape, jnp.float32)
    call = jax.ffi.ffi_call(target("attention"), result)
    return call(q_BxTxKxGxD, k_LxKxSxD, v_LxKxSxD, lanes_BxT, *seen, scale=np.float32(scale), cap=np.float32(cap or 0))


def written(keys_LxKxSxD, values_LxKxSxD, lanes_BxT, slots_BxT, k_BxTxKxD, v_BxTxKxD):
    """The pools of a layer with new keys and values in their slots, in place; lanes and slots beyond them are dropped.

    XLA compiles each scatter by itself: for all layers and sizes, a third of a loop's compilation.
    """
    result = [jax.ShapeDtypeStruct(pool.shape, jnp.float32) for pool in (keys_LxKxSxD, values_LxKxSxD)]
    call = jax.ffi.ffi_call(target("written"), result, input_output_aliases={0: 0, 1: 1})
    return call(keys_LxKxSxD, values_LxKxSxD, lanes_BxT, slots_BxT, k_BxTxKxD, v_BxTxKxD)


def by_thread(thread_BxS):
    """The slots of each lane by their threads, and those of a thread as they are, int32 [B, S].

    A thread's tokens are in its order whatever is fed beside it, so sums in this order depend on nothing else.
    """
    return jax.ffi.ffi_call(target("ordered"), jax.ShapeDtypeStruct(thread_BxS.shape, jnp.int32))(thread_BxS)


def sums(x):
    """The sums over the last axis, in float32, each in one order whatever the number of rows."""
    result = jax.ShapeDtypeStruct((x.size // x.shape[-1],), jnp.float32)
    return jax.ffi.ffi_call(target("sums"), result)(x.reshape(-1, x.shape[-1])).reshape(x.shape[:-1])


def gated(pairs_BxTxF2, slope: float, cubic: float):
    """gate * sigmoid(slope * gate + cubic * gate³) * up, of gates and ups side by side."""
    rows = pairs_BxTxF2.reshape(-1, pairs_BxTxF2.shape[-1])
    call = jax.ffi.ffi_call(target("gated"), jax.ShapeDtypeStruct((len(rows), rows.shape[1] // 2), jnp.float32))
    out = call(rows, slope=np.float32(slope), cubic=np.float32(cubic))
    return out.reshape(*pairs_BxTxF2.shape[:-1], -1)


def waves(angles):
    """Cosines and sines of angles, computed once: XLA makes them part of each layer's work, for each of its heads."""
    flat = angles.reshape(-1)
    found = jax.ffi.ffi_call(target("waves"), [jax.ShapeDtypeStruct(flat.shape, jnp.float32)] * 2)(flat)
    return tuple(one.reshape(angles.shape) for one in found)


def draws(logits_NxV, temperature_N, top_k_N, top_p_N, min_p_N, key_Nx2, ids_V=None):
    """The places of drawn ids, int32 [N]: argmax(logits / temperature + gumbel), with the noise of jax.random's key.

    Of the ids that top_k, top_p and min_p keep, as sampling.py has it. At temperature 0 it is the greatest logit's.
    With `ids`, ascending, the logits are of these.
    """
    result = jax.ShapeDtypeStruct(temperature_N.shape, jnp.int32)
    ids_V = jnp.zeros(0, jnp.int32) if ids_V is None else ids_V
    rules = temperature_N, top_k_N, top_p_N, min_p_N
    return jax.ffi.ffi_call(target("draws"), result)(logits_NxV, *rules, key_Nx2, ids_V)


def rows_of(matrix: Mapping[str, Any], index):
    """Rows of a matrix in panels, in float32: of an embedding that is the head too."""

    def pick(panels, index=index):
        return panels[index // PANEL, ..., index % PANEL]

    if "panels" in matrix:
        rows = pick(matrix["panels"]).astype(jnp.float32)
    else:
        fields = "codes", "scales", "minimums", "factors", "floors"
        rows = _decoded({name: pick(matrix[name]) for name in fields if name in matrix})
    if "exact" not in matrix:
        return rows
    place = index - matrix["exact_at"][0]
    is_exact = (place >= 0) & (place < len(matrix["exact_at"]))
    return jnp.where(is_exact[..., None], pick(matrix["exact"], jnp.where(is_exact, place, 0)), rows)


def _decoded(rows: Mapping[str, jax.Array]) -> jax.Array:
    """The numbers of rows [..., I] of codes."""
    codes = _codes(rows["codes"])
    group = codes.shape[-1] // rows["scales"].shape[-1]

    def whole(name: str, factor: str) -> jax.Array:
        field = rows[name].astype(jnp.float32)
        if factor in rows:
            factors = rows[factor].astype(jnp.float32)
            field = field * jnp.repeat(factors, field.shape[-1] // factors.shape[-1], axis=-1)
        return jnp.repeat(field, group, axis=-1)

    numbers = codes.astype(jnp.float32) * whole("scales", "factors")
    return numbers + whole("minimums", "floors") if "minimums" in rows else numbers


def _codes(words: jax.Array) -> jax.Array:
    """Codes [..., I] of words [..., I / 16, bits / 2]."""
    *lead, steps, width = words.shape
    bytes_ = jnp.stack([words >> bit & 255 for bit in range(0, 32, 8)], axis=-1).astype(jnp.int32)
    if width == 4:
        codes = bytes_ - 128
    else:
        low = bytes_[..., :2, :]
        codes = jnp.stack([low & 15, low >> 4], axis=-2).reshape(*lead, steps, 4, 4)
    if width == 3:
        upper = jnp.stack([bytes_[..., 2, :] >> bit & 3 for bit in range(0, 8, 2)], axis=-2)
        codes = (codes | upper << 4) - 32
    return codes.reshape(*lead, -1)
