"""TPU kernels for blocked attention: a block's mask, scores and weights never leave the core.

They compute what blocked.py does in plain JAX. Scores have keys first, [S, Q], so that values per query are rows, which
a TPU stores without padding. Values, and keys in the backward pass, are passed transposed, [D, S], so that no tile is
transposed in a kernel. The grid runs over a table of the pairs of blocks that causality allows.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pasta_jax.models.mask import HIDDEN, MaskSpec, sees

TILE = 128  # blocks, and a pool's slots, are multiples of it: a TPU stores the last axis in vectors of this length
# Memory of a core that a kernel may use. The default of 16 MiB is too small for blocks of 512 and eight heads of 256.
CORE_BYTES = 48 * 2**20


def forward(cap: float | None, q_BxTxKxGxD, k_BxTxKxD, v_BxTxKxD, mask_spec: MaskSpec):
    """The output, and [B, K, G, T] the logarithm of each query's sum of exponentials."""
    lanes, length, heads, groups, size = q_BxTxKxGxD.shape
    block = mask_spec.block
    out_BxKxGxDxT, log_BxKxGxT = _call(
        functools.partial(_forward_kernel, cap),
        _rows(length // block),
        mask_spec,
        [
            ("bkgqd", jnp.einsum("btkgd->bkgtd", q_BxTxKxGxD)),
            ("bksd", jnp.einsum("btkd->bktd", k_BxTxKxD)),
            ("bkds", jnp.einsum("btkd->bkdt", v_BxTxKxD)),
        ],
        [
            ("bkgdq", jax.ShapeDtypeStruct((lanes, heads, groups, size, length), q_BxTxKxGxD.dtype)),
            ("bkgq", jax.ShapeDtypeStruct((lanes, heads, groups, length), jnp.float32)),
        ],
        [(groups, block), (groups, block), (groups, size, block)],
    )
    return jnp.einsum("bkgdt->btkgd", out_BxKxGxDxT), log_BxKxGxT


def backward(
    cap: float | None,
    q_BxTxKxGxD,
    k_BxTxKxD,
    v_BxTxKxD,
    mask_spec: MaskSpec,
    d_out_BxTxKxGxD,
    log_BxKxGxT,
    delta_BxKxGxT,
):
    """Gradients of queries, keys and values; `delta` is the part from the softmax's normalisation."""
    lanes, length, heads, groups, size = q_BxTxKxGxD.shape
    block = mask_spec.block
    k_BxKxTxD, v_BxKxTxD = (jnp.einsum("btkd->bktd", array) for array in (k_BxTxKxD, v_BxTxKxD))
    inputs = [
        ("bkgqd", jnp.einsum("btkgd->bkgtd", q_BxTxKxGxD)),
        ("bksd", k_BxKxTxD),
        ("bksd", v_BxKxTxD),
        ("bkgqd", jnp.einsum("btkgd->bkgtd", d_out_BxTxKxGxD)),
        ("bkgq", log_BxKxGxT),
        ("bkgq", delta_BxKxGxT),
    ]
    (dq_BxKxGxDxT,) = _call(
        functools.partial(_queries_kernel, cap),
        _rows(length // block),
        mask_spec,
        [*inputs, ("bkds", jnp.einsum("btkd->bkdt", k_BxTxKxD))],
        [("bkgdq", jax.ShapeDtypeStruct((lanes, heads, groups, size, length), q_BxTxKxGxD.dtype))],
        [(groups, size, block)],
    )
    dk_BxKxTxD, dv_BxKxTxD = _call(
        functools.partial(_keys_kernel, cap),
        _columns(length // block),
        mask_spec,
        inputs,
        [("bksd", jax.ShapeDtypeStruct(array.shape, array.dtype)) for array in (k_BxKxTxD, v_BxKxTxD)],
        [(block, size), (block, size)],
    )
    dk_BxTxKxD, dv_BxTxKxD = (jnp.einsum("bktd->btkd", array) for array in (dk_BxKxTxD, dv_BxKxTxD))
    return jnp.einsum("bkgdt->btkgd", dq_BxKxGxDxT), dk_BxTxKxD, dv_BxTxKxD


def _rows(blocks: int):
    """Pairs (block of queries, block of keys) in order of queries, and whether each begins and ends a run."""
    query, key = np.tril_indices(blocks)
    return query, key, key == 0, key == query


def _columns(blocks: int):
    """The same pairs in order of keys."""
    key, query = np.triu_indices(blocks)
    return query, key, key == query, query == blocks - 1


def _call(kernel, pairs, mask_spec: MaskSpec, inputs, outputs, scratch):
    """Run the kernel over lanes, heads and pairs of blocks.

    Inputs and outputs are (letters of the axes, array): q and s are divided into blocks of queries and of keys, b and k
    into single elements; other axes stay whole. The kernel receives whether its pair begins and ends a run, the pair's
    mask, and then references, those to `scratch` (float32) last. C counts the integers that the mask is made from.
    """

    def spec(letters: str, array):
        def index(b, k, pair, query, key, *_):
            places = {"b": b, "k": k, "q": query[pair], "s": key[pair]}
            return tuple(places.get(letter, 0) for letter in letters)

        sizes = {"b": None, "k": None, "q": mask_spec.block, "s": mask_spec.block}
        return pl.BlockSpec([sizes.get(letter, size) for letter, size in zip(letters, array.shape, strict=True)], index)

    def body(query, key, begin, end, window, query_CxQ, key_SxC, *references):
        pair = pl.program_id(2)
        rows, columns = range(query_CxQ.shape[0]), range(key_SxC.shape[1])
        see_SxQ = sees(window[0], [query_CxQ[c : c + 1] for c in rows], [key_SxC[:, c : c + 1] for c in columns])
        kernel(begin[pair] == 1, end[pair] == 1, see_SxQ, *references)

    vectors = mask_spec.vectors()
    inputs = [("bcq", jnp.stack(vectors, axis=1)), ("bsc", jnp.stack(vectors, axis=2)), *inputs]
    lanes, heads, *_ = outputs[0][1].shape
    return pl.pallas_call(
        body,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=5,
            grid=(lanes, heads, len(pairs[0])),
            in_specs=[spec(*one) for one in inputs],
            out_specs=[spec(*one) for one in outputs],
            scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
        ),
        out_shape=[shape for _, shape in outputs],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"), vmem_limit_bytes=CORE_BYTES
        ),
        name=kernel.func.__name__.strip("_"),
    )(*(jnp.asarray(one, jnp.int32) for one in pairs), mask_spec.window[None], *(array for _, array in inputs))


def dot(a, b, contract: tuple[int, int]):
    """The product in float32, contracted over this axis of a and that of b."""
    axes = ((contract[:1], contract[1:]), ((), ()))
    return jax.lax.dot_general(a, b, axes, preferred_element_type=jnp.float32)


def capped(cap: float | None, scores):
    """Scores under the cap, and the slope of the cap at each."""
    if cap is None:
        return scores, 1.0
    bent = jnp.tanh(scores / cap)
    return cap * bent, 1.0 - bent * bent


def _forward_kernel(cap, begin, end, see_SxQ, q, k, v, out, log, highest, total, weighted):
    groups = range(q.shape[0])

    @pl.when(begin)
    def _():
        highest[...] = jnp.full_like(highest, HIDDEN)
        total[...], weighted[...] = jnp.zeros_like(total), jnp.zeros_like(weighted)

    @pl.when(jnp.any(see_SxQ))
    def _():
        for g in groups:
            row = slice(g, g + 1)
            scores_SxQ = jnp.where(see_SxQ, capped(cap, dot(k[...], q[g], (1, 1)))[0], HIDDEN)
            before_1xQ = highest[row]
            now_1xQ = jnp.maximum(before_1xQ, jnp.max(scores_SxQ, axis=0, keepdims=True))
            weights_SxQ = jnp.where(see_SxQ, jnp.exp(scores_SxQ - now_1xQ), 0.0)
            rescale_1xQ = jnp.exp(before_1xQ - now_1xQ)
            highest[row] = now_1xQ
            total[row] = total[row] * rescale_1xQ + jnp.sum(weights_SxQ, axis=0, keepdims=True)
            weighted[g] = weighted[g] * rescale_1xQ + dot(v[...], weights_SxQ.astype(v.dtype), (1, 0))

    @pl.when(end)
    def _():
        log[...] = highest[...] + jnp.log(total[...])
        for g in groups:
            out[g] = (weighted[g] / total[g : g + 1]).astype(out.dtype)


def _weights(cap, see_SxQ, q, k, v, d_out, log, delta, g: int):
    """Weights [S, Q], recomputed, and the gradient of the scores before the cap."""
    scores_SxQ, slope = capped(cap, dot(k[...], q[g], (1, 1)))
    weights_SxQ = jnp.where(see_SxQ, jnp.exp(scores_SxQ - log[g : g + 1]), 0.0)
    d_weights_SxQ = dot(v[...], d_out[g], (1, 1))
    return weights_SxQ, (weights_SxQ * (d_weights_SxQ - delta[g : g + 1]) * slope).astype(k.dtype)


def _queries_kernel(cap, begin, end, see_SxQ, *references):
    *inputs, k_DxS, dq, sum_dq = references

    @pl.when(begin)
    def _():
        sum_dq[...] = jnp.zeros_like(sum_dq)

    @pl.when(jnp.any(see_SxQ))
    def _():
        for g in range(sum_dq.shape[0]):
            _, d_scores_SxQ = _weights(cap, see_SxQ, *inputs, g)
            sum_dq[g] += dot(k_DxS[...], d_scores_SxQ, (1, 0))

    @pl.when(end)
    def _():
        dq[...] = sum_dq[...].astype(dq.dtype)


def _keys_kernel(cap, begin, end, see_SxQ, *references):
    *inputs, dk, dv, sum_dk, sum_dv = references
    q, _, v, d_out, *_ = inputs

    @pl.when(begin)
    def _():
        sum_dk[...], sum_dv[...] = jnp.zeros_like(sum_dk), jnp.zeros_like(sum_dv)

    @pl.when(jnp.any(see_SxQ))
    def _():
        for g in range(q.shape[0]):
            weights_SxQ, d_scores_SxQ = _weights(cap, see_SxQ, *inputs, g)
            sum_dk[...] += dot(d_scores_SxQ, q[g], (1, 0))
            sum_dv[...] += dot(weights_SxQ.astype(v.dtype), d_out[g], (1, 0))

    @pl.when(end)
    def _():
        dk[...], dv[...] = sum_dk[...].astype(dk.dtype), sum_dv[...].astype(dv.dtype)
