"""Attention by blocks under PASTA's mask: scores and mask exist for one block of queries and keys at a time.

The softmax is kept running over the blocks of keys, as in FlashAttention (Dao et al., 2022); the backward pass makes
each block again from the logarithm of its row's sum. Blocks in which nobody sees anybody cost only the look at the
mask: those above the diagonal not even that, and those between two packed records.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax

from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import visible
from pasta_jax.models.config import TransformerConfig

HIDDEN = -1e30  # score of a masked key, as in the dense form
EVERYTHING = 2**30  # a window that holds all positions


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sight:
    """What the mask is made from, instead of the mask: int32 [B, T] each, in linear order."""

    chunk: jax.Array
    epoch: jax.Array
    main: jax.Array
    record: jax.Array  # tokens of different records never see each other
    position: jax.Array
    window: jax.Array  # int32 scalar: keys lie less than so many positions back
    block: int = dataclasses.field(metadata={"static": True})  # queries, and keys, at a time

    def __post_init__(self):
        if self.block < 1:
            raise PastaError(f"attention block {self.block}: it must be at least 1 token")

    def within(self, window: int) -> "Sight":
        """The same, less far back."""
        return dataclasses.replace(self, window=jnp.int32(window))

    def block_mask(self, q: int, k: int):
        """bool [B, block, block]: the mask of the q-th block of queries and the k-th of keys."""

        def cut(vector_BxT, which):
            return lax.dynamic_slice_in_dim(vector_BxT, which * self.block, self.block, axis=1)

        def here(vector_BxT):
            return cut(vector_BxT, q)[:, :, None]

        def there(vector_BxT):
            return cut(vector_BxT, k)[:, None, :]

        order = jnp.arange(self.block)
        before = (k * self.block + order)[None, None, :] <= (q * self.block + order)[None, :, None]
        near = here(self.position) - there(self.position) < self.window
        exists = before & near & (here(self.record) == there(self.record))
        vectors = (self.chunk, self.epoch, self.main)
        return visible(exists, *map(here, vectors), *map(there, vectors))


def blocked_attention(config: TransformerConfig, q_BxTxKxGxD, k_BxTxKxD, v_BxTxKxD, sight: Sight):
    """What `transformer.attention` gives under the mask that `sight` describes; every token sees itself."""
    length = q_BxTxKxGxD.shape[1]
    padding = -length % sight.block
    if padding:
        # Behind the rest and of a record of their own: seen by themselves alone.
        def pad(array, value=0):
            return jnp.pad(array, ((0, 0), (0, padding), *((0, 0),) * (array.ndim - 2)), constant_values=value)

        vectors = {name: pad(getattr(sight, name)) for name in ("chunk", "epoch", "main", "position")}
        sight = dataclasses.replace(sight, **vectors, record=pad(sight.record, -1))
        q_BxTxKxGxD, k_BxTxKxD, v_BxTxKxD = pad(q_BxTxKxGxD), pad(k_BxTxKxD), pad(v_BxTxKxD)
    q_BxTxKxGxD = q_BxTxKxGxD * config.score_scale
    return _attend(config.attention_cap, q_BxTxKxGxD, k_BxTxKxD, v_BxTxKxD, sight)[:, :length]


def _cut(array_BxTx_, which, block: int):
    return lax.dynamic_slice_in_dim(array_BxTx_, which * block, block, axis=1)


def _scores(cap: float | None, q_BxQxKxGxD, k_BxSxKxD):
    """Scores [B, K, G, Q, S] in float32, and what the cap's slope is at each."""
    scores = jnp.einsum("bqkgd,bskd->bkgqs", q_BxQxKxGxD, k_BxSxKxD, preferred_element_type=jnp.float32)
    if cap is None:
        return scores, 1.0
    bent = jnp.tanh(scores / cap)
    return cap * bent, 1.0 - bent * bent


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(cap, q, k, v, sight: Sight):
    return _forward(cap, q, k, v, sight)[0]


def _forward(cap, q_BxTxKxGxD, k_BxTxKxD, v_BxTxKxD, sight: Sight):
    lanes, length, heads, groups, size = q_BxTxKxGxD.shape
    block = sight.block

    def queries(_, at):
        q_BxQxKxGxD = _cut(q_BxTxKxGxD, at, block)

        def keys(which, carry):
            see_BxQxS = sight.block_mask(at, which)

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
    return out_BxTxKxGxD, (q_BxTxKxGxD, k_BxTxKxD, v_BxTxKxD, sight, out_BxTxKxGxD, log_NxBxKxGxQ)


def _backward(cap, kept, d_out_BxTxKxGxD):
    q_BxTxKxGxD, k_BxTxKxD, v_BxTxKxD, sight, out_BxTxKxGxD, log_NxBxKxGxQ = kept
    block = sight.block
    blocks = q_BxTxKxGxD.shape[1] // block

    def queries(carry, at):
        q_BxQxKxGxD, d_out_BxQxKxGxD = _cut(q_BxTxKxGxD, at, block), _cut(d_out_BxTxKxGxD, at, block)
        d_out = jnp.moveaxis(d_out_BxQxKxGxD, 1, 3)  # [B, K, G, Q, D]
        # What the softmax's sum takes back from each weight.
        own = jnp.sum(d_out.astype(jnp.float32) * jnp.moveaxis(_cut(out_BxTxKxGxD, at, block), 1, 3), axis=-1)
        log = log_NxBxKxGxQ[at]

        def keys(which, carry):
            see_BxQxS = sight.block_mask(at, which)

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
    return dq.astype(q_BxTxKxGxD.dtype), dk.astype(k_BxTxKxD.dtype), dv.astype(v_BxTxKxD.dtype), None


_attend.defvjp(_forward, _backward)
