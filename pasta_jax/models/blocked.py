"""Attention by blocks under PASTA's mask: scores and mask exist for one block of queries and keys at a time.

The softmax is kept running over the blocks of keys, as in FlashAttention (Dao et al., 2022); the backward pass makes
each block again from the logarithm of its row's sum. Blocks in which nobody sees anybody cost only the look at the
mask: those above the diagonal not even that, and those between two packed records. On a TPU the kernels of
flash_tpu.py do it; here stands what does it elsewhere, in plain JAX.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax

from pasta_jax.errors import PastaError
from pasta_jax.models import flash_tpu
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.mask_spec import HIDDEN, MaskSpec, sees
from pasta_jax.sharding import on_each_device


def blocked_attention(config: TransformerConfig, q_BxTxKxGxD, k_BxTxKxD, v_BxTxKxD, mask_spec: MaskSpec):
    """What `transformer.attention` gives under the mask that `mask_spec` describes; every token sees itself."""
    length = q_BxTxKxGxD.shape[1]
    padding = -length % mask_spec.block
    if padding:
        # Behind the rest and of a record of their own: seen by themselves alone.
        def pad(array, value=0):
            return jnp.pad(array, ((0, 0), (0, padding), *((0, 0),) * (array.ndim - 2)), constant_values=value)

        place, position = jax.tree.map(pad, (mask_spec.place, mask_spec.position))
        mask_spec = dataclasses.replace(mask_spec, place=place, position=position, record=pad(mask_spec.record, -1))
        q_BxTxKxGxD, k_BxTxKxD, v_BxTxKxD = pad(q_BxTxKxGxD), pad(k_BxTxKxD), pad(v_BxTxKxD)
    q_BxTxKxGxD = q_BxTxKxGxD * config.score_scale
    return _attend(config.attention_cap, q_BxTxKxGxD, k_BxTxKxD, v_BxTxKxD, mask_spec)[:, :length]


def _cut(array_BxTx_, which, block: int):
    return lax.dynamic_slice_in_dim(array_BxTx_, which * block, block, axis=1)


def _block_mask(mask_spec: MaskSpec, q, k):
    """bool [B, Q, S]: the mask of the q-th block of queries and the k-th of keys."""
    query = (_cut(vector_BxT, q, mask_spec.block)[:, :, None] for vector_BxT in mask_spec.vectors())
    key = (_cut(vector_BxT, k, mask_spec.block)[:, None, :] for vector_BxT in mask_spec.vectors())
    return sees(mask_spec.window, query, key)


def _scores(cap: float | None, q_BxQxKxGxD, k_BxSxKxD):
    """Scores [B, K, G, Q, S] in float32, and what the cap's slope is at each."""
    scores = jnp.einsum("bqkgd,bskd->bkgqs", q_BxQxKxGxD, k_BxSxKxD, preferred_element_type=jnp.float32)
    if cap is None:
        return scores, 1.0
    bent = jnp.tanh(scores / cap)
    return cap * bent, 1.0 - bent * bent


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(cap, q, k, v, mask_spec: MaskSpec):
    return _forward(cap, q, k, v, mask_spec)[0]


def _forward(cap, q_BxTxKxGxD, k_BxTxKxD, v_BxTxKxD, mask_spec: MaskSpec):
    given = q_BxTxKxGxD, k_BxTxKxD, v_BxTxKxD, mask_spec
    axes = "btkgd", "btkd", "btkd", _axes(mask_spec)
    out_BxTxKxGxD, log_BxKxGxT = _where_it_runs(
        cap, (flash_tpu.forward, _plain_forward), axes, ("btkgd", "bkgt"), *given
    )
    return out_BxTxKxGxD, (*given, out_BxTxKxGxD, log_BxKxGxT)


def _backward(cap, kept, d_out_BxTxKxGxD):
    *given, out_BxTxKxGxD, log_BxKxGxT = kept
    # What the softmax's sum takes back from each weight.
    own_BxKxGxT = jnp.einsum("btkgd,btkgd->bkgt", d_out_BxTxKxGxD, out_BxTxKxGxD, preferred_element_type=jnp.float32)
    axes = "btkgd", "btkd", "btkd", _axes(given[-1]), "btkgd", "bkgt", "bkgt"
    given = *given, d_out_BxTxKxGxD, log_BxKxGxT, own_BxKxGxT
    gradients = _where_it_runs(cap, (flash_tpu.backward, _plain_backward), axes, axes[:3], *given)
    return *gradients, None


_attend.defvjp(_forward, _backward)


def _axes(mask_spec: MaskSpec):
    return jax.tree.map(lambda vector: "bt"[: vector.ndim], mask_spec)


def _where_it_runs(cap, forms, axes, result_axes, *arrays):
    """The kernel, each device its own lanes and heads, if the program is lowered for a TPU, and plain JAX if not."""
    kernel, plain = (functools.partial(form, cap) for form in forms)
    block = arrays[3].block
    if block % flash_tpu.TILE == 0:
        kernel = functools.partial(on_each_device, kernel, axes, result_axes)
        return lax.platform_dependent(*arrays, tpu=kernel, default=plain)
    if jax.default_backend() == "tpu":
        raise PastaError(
            f"attention block {block}: a TPU takes multiples of {flash_tpu.TILE}; give such a block, and rows as long"
        )
    return plain(*arrays)


def _plain_forward(cap, q_BxTxKxGxD, k_BxTxKxD, v_BxTxKxD, mask_spec: MaskSpec):
    lanes, length, heads, groups, size = q_BxTxKxGxD.shape
    block = mask_spec.block

    def queries(_, at):
        q_BxQxKxGxD = _cut(q_BxTxKxGxD, at, block)

        def keys(which, carry):
            see_BxQxS = _block_mask(mask_spec, at, which)

            def look(carry):
                highest, total, read = carry
                see = see_BxQxS[:, None, None]
                scores = jnp.where(see, _scores(cap, q_BxQxKxGxD, _cut(k_BxTxKxD, which, block))[0], HIDDEN)
                now = jnp.maximum(highest, jnp.max(scores, axis=-1))
                weights = jnp.where(see, jnp.exp(scores - now[..., None]), 0.0)
                kept = jnp.exp(highest - now)
                value = _cut(v_BxTxKxD, which, block)
                seen = jnp.einsum(
                    "bkgqs,bskd->bkgqd", weights.astype(value.dtype), value, preferred_element_type=jnp.float32
                )
                return now, total * kept + jnp.sum(weights, axis=-1), read * kept[..., None] + seen

            return lax.cond(jnp.any(see_BxQxS), look, lambda carry: carry, carry)

        row = (lanes, heads, groups, block)
        start = jnp.full(row, HIDDEN), jnp.zeros(row), jnp.zeros((*row, size))
        highest, total, read = lax.fori_loop(0, at + 1, keys, start)
        out_BxQxKxGxD = jnp.moveaxis(read / total[..., None], 3, 1).astype(q_BxTxKxGxD.dtype)
        return None, (out_BxQxKxGxD, highest + jnp.log(total))

    _, (out_NxBxQxKxGxD, log_NxBxKxGxQ) = lax.scan(queries, None, jnp.arange(length // block))
    out_BxTxKxGxD = jnp.moveaxis(out_NxBxQxKxGxD, 0, 1).reshape(q_BxTxKxGxD.shape)
    return out_BxTxKxGxD, jnp.moveaxis(log_NxBxKxGxQ, 0, 3).reshape(lanes, heads, groups, length)


def _plain_backward(
    cap, q_BxTxKxGxD, k_BxTxKxD, v_BxTxKxD, mask_spec: MaskSpec, d_out_BxTxKxGxD, log_BxKxGxT, own_BxKxGxT
):
    block = mask_spec.block
    blocks = q_BxTxKxGxD.shape[1] // block

    def queries(carry, at):
        q_BxQxKxGxD, d_out_BxQxKxGxD = _cut(q_BxTxKxGxD, at, block), _cut(d_out_BxTxKxGxD, at, block)
        d_out = jnp.moveaxis(d_out_BxQxKxGxD, 1, 3)  # [B, K, G, Q, D]
        log, own = (lax.dynamic_slice_in_dim(a, at * block, block, axis=3) for a in (log_BxKxGxT, own_BxKxGxT))

        def keys(which, carry):
            see_BxQxS = _block_mask(mask_spec, at, which)

            def look(carry):
                dk_BxTxKxD, dv_BxTxKxD, dq_BxQxKxGxD = carry
                k_BxSxKxD, v_BxSxKxD = _cut(k_BxTxKxD, which, block), _cut(v_BxTxKxD, which, block)
                see = see_BxQxS[:, None, None]
                scores, slope = _scores(cap, q_BxQxKxGxD, k_BxSxKxD)
                weights = jnp.where(see, jnp.exp(scores - log[..., None]), 0.0)
                d_weights = jnp.einsum("bkgqd,bskd->bkgqs", d_out, v_BxSxKxD, preferred_element_type=jnp.float32)
                d_scores = (weights * (d_weights - own[..., None]) * slope).astype(k_BxSxKxD.dtype)
                weights = weights.astype(v_BxSxKxD.dtype)

                def add(whole_BxTxKxD, part_BxSxKxD):
                    before = _cut(whole_BxTxKxD, which, block)
                    return lax.dynamic_update_slice_in_dim(whole_BxTxKxD, before + part_BxSxKxD, which * block, axis=1)

                f32 = {"preferred_element_type": jnp.float32}
                dk = add(dk_BxTxKxD, jnp.einsum("bkgqs,bqkgd->bskd", d_scores, q_BxQxKxGxD, **f32))
                dv = add(dv_BxTxKxD, jnp.einsum("bkgqs,bkgqd->bskd", weights, d_out, **f32))
                return dk, dv, dq_BxQxKxGxD + jnp.einsum("bkgqs,bskd->bqkgd", d_scores, k_BxSxKxD, **f32)

            return lax.cond(jnp.any(see_BxQxS), look, lambda carry: carry, carry)

        dk, dv, dq = lax.fori_loop(0, at + 1, keys, (*carry, jnp.zeros(q_BxQxKxGxD.shape)))
        return (dk, dv), dq

    nothing = jnp.zeros(k_BxTxKxD.shape), jnp.zeros(v_BxTxKxD.shape)
    (dk, dv), dq_NxBxQxKxGxD = lax.scan(queries, nothing, jnp.arange(blocks))
    dq = jnp.moveaxis(dq_NxBxQxKxGxD, 0, 1).reshape(q_BxTxKxGxD.shape)
    return dq.astype(q_BxTxKxGxD.dtype), dk.astype(k_BxTxKxD.dtype), dv.astype(v_BxTxKxD.dtype)
