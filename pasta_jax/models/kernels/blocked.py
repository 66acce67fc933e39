"""Blocked attention under PASTA's mask: scores and mask exist for one block of queries and keys at a time.

The softmax is accumulated over the blocks of keys, as in FlashAttention (Dao et al., 2022); the backward pass
recomputes each block from the logarithm of its rows' sums. A fully masked block, such as one between two packed
records, costs only its mask; blocks above the diagonal are never visited. On a TPU the kernels of flash_tpu.py run;
this file has the same computation in plain JAX, for other devices.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax

from pasta_jax.errors import PastaError
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.kernels import flash_tpu
from pasta_jax.models.mask import HIDDEN, MaskSpec, sees
from pasta_jax.models.sharding import on_each_device


def blocked_attention(
    config: TransformerConfig, q_BxTxKxGxD, k_BxTxKxD, v_BxTxKxD, mask_spec: MaskSpec, sinks_KxG=None
):
    """Equals `attention.attention` under the mask of `mask_spec`; every token must see itself."""
    length = q_BxTxKxGxD.shape[1]
    padding = -length % mask_spec.block
    if padding:
        # Padding comes last and is a record of its own, so only padding sees it.
        def pad(array: jax.Array, value: int = 0) -> jax.Array:
            return jnp.pad(array, ((0, 0), (0, padding), *((0, 0),) * (array.ndim - 2)), constant_values=value)

        place, position = jax.tree.map(pad, (mask_spec.place, mask_spec.position))
        mask_spec = dataclasses.replace(mask_spec, place=place, position=position, record=pad(mask_spec.record, -1))
        q_BxTxKxGxD, k_BxTxKxD, v_BxTxKxD = pad(q_BxTxKxGxD), pad(k_BxTxKxD), pad(v_BxTxKxD)
    q_BxTxKxGxD = q_BxTxKxGxD * config.score_scale
    return _attend(config.attention_cap, q_BxTxKxGxD, k_BxTxKxD, v_BxTxKxD, mask_spec, sinks_KxG)[:, :length]


def _cut(array_BxTx_: jax.Array, which: jax.Array, block: int) -> jax.Array:
    return lax.dynamic_slice_in_dim(array_BxTx_, which * block, block, axis=1)


def _block_mask(mask_spec: MaskSpec, q: jax.Array, k: jax.Array) -> jax.Array:
    """bool [B, Q, S]: the mask of the q-th block of queries and the k-th of keys."""
    query = (_cut(vector_BxT, q, mask_spec.block)[:, :, None] for vector_BxT in mask_spec.vectors())
    key = (_cut(vector_BxT, k, mask_spec.block)[:, None, :] for vector_BxT in mask_spec.vectors())
    return sees(mask_spec.window, query, key)


def _scores(cap: float | None, q_BxQxKxGxD, k_BxSxKxD):
    """Scores [B, K, G, Q, S] in float32, and the slope of the cap at each."""
    scores = jnp.einsum("bqkgd,bskd->bkgqs", q_BxQxKxGxD, k_BxSxKxD, preferred_element_type=jnp.float32)
    return flash_tpu.capped(cap, scores)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(cap, q, k, v, mask_spec: MaskSpec, sinks_KxG):
    return _forward(cap, q, k, v, mask_spec, sinks_KxG)[0]


def _forward(cap, q_BxTxKxGxD, k_BxTxKxD, v_BxTxKxD, mask_spec: MaskSpec, sinks_KxG):
    inputs = q_BxTxKxGxD, k_BxTxKxD, v_BxTxKxD, mask_spec
    axes = "btkgd", "btkd", "btkd", _axes(mask_spec)
    out_BxTxKxGxD, log_BxKxGxT = _for_platform(
        cap, (flash_tpu.forward, _plain_forward), axes, ("btkgd", "bkgt"), *inputs
    )
    if sinks_KxG is not None:  # one more term of the sums, of which nothing is read
        with_sink = jnp.logaddexp(log_BxKxGxT, sinks_KxG[None, :, :, None])
        seen_BxTxKxG = jnp.moveaxis(jnp.exp(log_BxKxGxT - with_sink), 3, 1)
        out_BxTxKxGxD = (out_BxTxKxGxD * seen_BxTxKxG[..., None]).astype(out_BxTxKxGxD.dtype)
        log_BxKxGxT = with_sink
    return out_BxTxKxGxD, (*inputs, sinks_KxG, out_BxTxKxGxD, log_BxKxGxT)


def _backward(cap, residuals, d_out_BxTxKxGxD):
    *inputs, sinks_KxG, out_BxTxKxGxD, log_BxKxGxT = residuals
    # The part of each weight's gradient that comes from the softmax's normalisation.
    delta_BxKxGxT = jnp.einsum("btkgd,btkgd->bkgt", d_out_BxTxKxGxD, out_BxTxKxGxD, preferred_element_type=jnp.float32)
    axes = "btkgd", "btkd", "btkd", _axes(inputs[-1]), "btkgd", "bkgt", "bkgt"
    inputs = *inputs, d_out_BxTxKxGxD, log_BxKxGxT, delta_BxKxGxT
    gradients = _for_platform(cap, (flash_tpu.backward, _plain_backward), axes, axes[:3], *inputs)
    if sinks_KxG is None:
        return *gradients, None, None
    weights_BxKxGxT = jnp.exp(sinks_KxG[None, :, :, None] - log_BxKxGxT)
    return *gradients, None, -jnp.sum(weights_BxKxGxT * delta_BxKxGxT, axis=(0, 3)).astype(sinks_KxG.dtype)


_attend.defvjp(_forward, _backward)


def _axes(mask_spec: MaskSpec):
    return jax.tree.map(lambda vector: "bt"[: vector.ndim], mask_spec)


def _for_platform(cap, forms, axes, result_axes, *arrays):
    """The kernel if the program is lowered for a TPU, else plain JAX; with lanes and heads divided over devices."""
    kernel, plain = (
        functools.partial(on_each_device, functools.partial(form, cap), axes, result_axes) for form in forms
    )
    block = arrays[3].block
    if block % flash_tpu.TILE == 0:
        return lax.platform_dependent(*arrays, tpu=kernel, default=plain)
    if jax.default_backend() == "tpu":
        raise PastaError(f"attention block {block}: a TPU needs a multiple of {flash_tpu.TILE}, and rows that long")
    return plain(*arrays)


def _plain_forward(cap, q_BxTxKxGxD, k_BxTxKxD, v_BxTxKxD, mask_spec: MaskSpec):
    lanes, length, heads, groups, size = q_BxTxKxGxD.shape
    block = mask_spec.block

    def queries(_, at):
        q_BxQxKxGxD = _cut(q_BxTxKxGxD, at, block)

        def keys(which, carry):
            see_BxQxS = _block_mask(mask_spec, at, which)

            def attend(carry):
                highest, total, weighted = carry
                see = see_BxQxS[:, None, None]
                scores = jnp.where(see, _scores(cap, q_BxQxKxGxD, _cut(k_BxTxKxD, which, block))[0], HIDDEN)
                now = jnp.maximum(highest, jnp.max(scores, axis=-1))
                weights = jnp.where(see, jnp.exp(scores - now[..., None]), 0.0)
                rescale = jnp.exp(highest - now)
                value = _cut(v_BxTxKxD, which, block)
                seen = jnp.einsum(
                    "bkgqs,bskd->bkgqd", weights.astype(value.dtype), value, preferred_element_type=jnp.float32
                )
                return now, total * rescale + jnp.sum(weights, axis=-1), weighted * rescale[..., None] + seen

            return lax.cond(jnp.any(see_BxQxS), attend, lambda carry: carry, carry)

        row = (lanes, heads, groups, block)
        start = jnp.full(row, HIDDEN), jnp.zeros(row), jnp.zeros((*row, size))
        highest, total, weighted = lax.fori_loop(0, at + 1, keys, start)
        out_BxQxKxGxD = jnp.moveaxis(weighted / total[..., None], 3, 1).astype(q_BxTxKxGxD.dtype)
        return None, (out_BxQxKxGxD, highest + jnp.log(total))

    _, (out_NxBxQxKxGxD, log_NxBxKxGxQ) = lax.scan(queries, None, jnp.arange(length // block))
    out_BxTxKxGxD = jnp.moveaxis(out_NxBxQxKxGxD, 0, 1).reshape(q_BxTxKxGxD.shape)
    return out_BxTxKxGxD, jnp.moveaxis(log_NxBxKxGxQ, 0, 3).reshape(lanes, heads, groups, length)


def _plain_backward(
    cap, q_BxTxKxGxD, k_BxTxKxD, v_BxTxKxD, mask_spec: MaskSpec, d_out_BxTxKxGxD, log_BxKxGxT, delta_BxKxGxT
):
    block = mask_spec.block
    blocks = q_BxTxKxGxD.shape[1] // block

    def queries(carry, at):
        q_BxQxKxGxD, d_out_BxQxKxGxD = _cut(q_BxTxKxGxD, at, block), _cut(d_out_BxTxKxGxD, at, block)
        d_out = jnp.moveaxis(d_out_BxQxKxGxD, 1, 3)  # [B, K, G, Q, D]
        log, delta = (lax.dynamic_slice_in_dim(a, at * block, block, axis=3) for a in (log_BxKxGxT, delta_BxKxGxT))

        def keys(which, carry):
            see_BxQxS = _block_mask(mask_spec, at, which)

            def attend(carry):
                dk_BxTxKxD, dv_BxTxKxD, dq_BxQxKxGxD = carry
                k_BxSxKxD, v_BxSxKxD = _cut(k_BxTxKxD, which, block), _cut(v_BxTxKxD, which, block)
                see = see_BxQxS[:, None, None]
                scores, slope = _scores(cap, q_BxQxKxGxD, k_BxSxKxD)
                weights = jnp.where(see, jnp.exp(scores - log[..., None]), 0.0)
                d_weights = jnp.einsum("bkgqd,bskd->bkgqs", d_out, v_BxSxKxD, preferred_element_type=jnp.float32)
                d_scores = (weights * (d_weights - delta[..., None]) * slope).astype(k_BxSxKxD.dtype)
                weights = weights.astype(v_BxSxKxD.dtype)

                def add(whole_BxTxKxD, part_BxSxKxD):
                    before = _cut(whole_BxTxKxD, which, block)
                    return lax.dynamic_update_slice_in_dim(whole_BxTxKxD, before + part_BxSxKxD, which * block, axis=1)

                f32 = {"preferred_element_type": jnp.float32}
                dk = add(dk_BxTxKxD, jnp.einsum("bkgqs,bqkgd->bskd", d_scores, q_BxQxKxGxD, **f32))
                dv = add(dv_BxTxKxD, jnp.einsum("bkgqs,bkgqd->bskd", weights, d_out, **f32))
                return dk, dv, dq_BxQxKxGxD + jnp.einsum("bkgqs,bskd->bqkgd", d_scores, k_BxSxKxD, **f32)

            return lax.cond(jnp.any(see_BxQxS), attend, lambda carry: carry, carry)

        dk, dv, dq = lax.fori_loop(0, at + 1, keys, (*carry, jnp.zeros(q_BxQxKxGxD.shape)))
        return (dk, dv), dq

    nothing = jnp.zeros(k_BxTxKxD.shape), jnp.zeros(v_BxTxKxD.shape)
    (dk, dv), dq_NxBxQxKxGxD = lax.scan(queries, nothing, jnp.arange(blocks))
    dq = jnp.moveaxis(dq_NxBxQxKxGxD, 0, 1).reshape(q_BxTxKxGxD.shape)
    return dq.astype(q_BxTxKxGxD.dtype), dk.astype(k_BxTxKxD.dtype), dv.astype(v_BxTxKxD.dtype)
