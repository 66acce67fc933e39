"""One transformer for all families of models: Linen modules used as pure functions.

`trunk` runs the layers and `logits` the head, both over a plain parameter tree. The tree's layout (layers.py) decides
whether layers are scanned (accelerators: one small program) or unrolled (CPU: XLA would copy each layer's slice of a
stacked weight). The cache has the same layout; see pool.py.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.experts import mixture
from pasta_jax.models.kernels.bfloat16 import as_bfloat16, is_mixed, mixed_attention, row_product
from pasta_jax.models.kernels.blocked import blocked_attention
from pasta_jax.models.kernels.cpu.calls import attend as attend_visible
from pasta_jax.models.kernels.cpu.calls import holds_panels, product, rows_of
from pasta_jax.models.kernels.pool_tpu import write_and_attend
from pasta_jax.models.mask import HIDDEN, MaskSpec, PoolSpec
from pasta_jax.models.parameters import is_stacked, with_gate_and_up
from pasta_jax.models.parts import (
    PRODUCT,
    Dense,
    RMSNorm,
    Stored,
    Weight,
    gated,
    kernel_init,
    rope_waves,
    rotate,
    scaled,
    soft_cap,
)
from pasta_jax.models.pool import KV, lanes_kv, layers_kv, prefix_kv, write_kv
from pasta_jax.models.ragged import Packed

# (q, k, v, sinks) -> (output, new cache)
Attend = Callable[[jax.Array, jax.Array, jax.Array, jax.Array | None], tuple[jax.Array, KV | None]]


def attention(config: TransformerConfig, q_BxTxKxGxD, k_BxKxSxD, v_BxKxSxD, see_BxTxS, sinks_KxG=None):
    """Softmax attention of grouped query heads, scores in float32; see[b, t, s] states which keys a query may read."""
    lanes, length, heads, groups, _ = q_BxTxKxGxD.shape
    q_BxKxNxD = jnp.moveaxis(q_BxTxKxGxD * config.score_scale, 1, 3).reshape(lanes, heads, groups * length, -1)
    # Keys first: with the queries first, XLA CPU would copy all keys, transposed, in every step.
    scores_BxKxSxN = jnp.einsum("bksd,bknd->bksn", k_BxKxSxD, q_BxKxNxD, preferred_element_type=jnp.float32)
    scores_BxKxGxTxS = jnp.swapaxes(scores_BxKxSxN, 2, 3).reshape(lanes, heads, groups, length, -1)
    scores_BxKxGxTxS = soft_cap(scores_BxKxGxTxS, config.attention_cap)
    scores_BxKxGxTxS = jnp.where(see_BxTxS[:, None, None], scores_BxKxGxTxS, HIDDEN)
    if sinks_KxG is not None:  # a key more, of which nothing is read
        sinks = jnp.broadcast_to(sinks_KxG[None, :, :, None, None], (*scores_BxKxGxTxS.shape[:-1], 1))
        scores_BxKxGxTxS = jnp.concatenate([scores_BxKxGxTxS, sinks.astype(jnp.float32)], axis=-1)
    weights_BxKxGxTxS = jax.nn.softmax(scores_BxKxGxTxS, axis=-1).astype(v_BxKxSxD.dtype)
    if sinks_KxG is not None:
        weights_BxKxGxTxS = weights_BxKxGxTxS[..., :-1]
    return jnp.moveaxis(jnp.einsum("bkgts,bksd->bkgtd", weights_BxKxGxTxS, v_BxKxSxD), 3, 1)


class Layer(nn.Module):
    """One layer. `attend(q, k, v, sinks)` owns mask and cache and returns (output, new cache)."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x_BxTxE, waves, attend: Attend):
        c = self.config
        heads = (c.kv_heads, c.groups, c.head_dim)

        h = RMSNorm(c.norm_eps, name="attn_norm")(x_BxTxE) if c.pre_norms else x_BxTxE
        # Per key/value head: its G query heads, then the key, then the value. One matrix, so that a step reads it in
        # one pass; grouped by key/value head, so that sharding over K keeps the heads of a group together.
        qkv_BxTxKxG2xD = Dense((c.kv_heads, c.groups + 2, c.head_dim), c.qkv_bias, name="qkv")(h)
        q, k, v = jnp.split(qkv_BxTxKxG2xD, (c.groups, c.groups + 1), axis=3)
        q = q.reshape(*q.shape[:2], c.heads, c.head_dim)
        k, v = k[:, :, :, 0], v[:, :, :, 0]
        if c.qk_norm:
            q, k = self.head_norm("q_norm", q), self.head_norm("k_norm", k)
        q, k = rotate(q, waves), rotate(k, waves)
        sinks_KxG = Weight((c.heads,), name="sinks")().reshape(heads[:2]) if c.sinks else None
        h, cache = attend(q.reshape(*q.shape[:2], *heads), k, v, sinks_KxG)
        h = Dense((c.embed,), c.out_bias, name="out")(h.reshape(*h.shape[:2], c.heads * c.head_dim))
        x_BxTxE = self.add(x_BxTxE, h, "post_attn_norm")

        h = RMSNorm(c.norm_eps, name="mlp_norm")(x_BxTxE) if c.pre_norms else x_BxTxE
        return self.add(x_BxTxE, self.experts(h) if c.experts else self.mlp(h), "post_mlp_norm"), cache

    def mlp(self, h_BxTxE):
        """The feed-forward branch."""
        c = self.config
        if self.has_variable("params", "gate"):
            gate, up = (Dense((c.ff,), c.mlp_bias, name=name)(h_BxTxE) for name in ("gate", "up"))
        else:
            # Interleaved, so that sharding over F keeps pairs together.
            gate_up_BxTxF2 = Dense((c.ff * 2,), c.mlp_bias, name="gate_up")(h_BxTxE)
            gate, up = gate_up_BxTxF2[..., 0::2], gate_up_BxTxF2[..., 1::2]
        return Dense((c.embed,), c.mlp_bias, name="down")(gated(c, gate, up))

    def experts(self, h_BxTxE):
        """The feed-forward branch of a mixture."""
        c = self.config
        scores_BxTxX = Dense((c.experts,), c.router_bias, name="router")(h_BxTxE)
        both = {"gate": c.ff, "up": c.ff} if self.has_variable("params", "gate") else {"gate_up": 2 * c.ff}
        shapes = {name: (rows, c.embed) for name, rows in both.items()} | {"down": (c.embed, c.ff)}
        matrices = {name: Stored((c.experts, *shape), c.mlp_bias, name=name)() for name, shape in shapes.items()}
        return mixture(c, h_BxTxE, scores_BxTxX, matrices)

    def head_norm(self, name: str, x_BxTxHxD):
        """The norm of each head, or of all heads together."""
        norm = RMSNorm(self.config.norm_eps, name=name)
        if not self.config.whole_qk_norm:
            return norm(x_BxTxHxD)
        return norm(x_BxTxHxD.reshape(*x_BxTxHxD.shape[:2], -1)).reshape(x_BxTxHxD.shape)

    def add(self, x_BxTxE, branch_BxTxE, norm: str):
        """The stream with what a branch computed."""
        if self.config.post_norms:
            branch_BxTxE = RMSNorm(self.config.norm_eps, name=norm)(branch_BxTxE)
        return x_BxTxE + scaled(branch_BxTxE, self.config.residual_scale)


@dataclasses.dataclass(frozen=True)
class Cache:
    """Where a step's keys and values are written, and what attention reads."""

    kv: KV
    slots_BxT: jax.Array  # int32; the slot that a token's key and value are written to; S and beyond: none
    lanes: jax.Array | None = None  # int32 [B]: the pool's lanes these rows belong to; None: all, in order
    prefixes: tuple[int, ...] = ()  # ascending static lengths; attention reads the shortest that covers `fill`
    fill: jax.Array | None = None  # int32 scalar: slots in use in the fullest lane, this step's included
    packed: Packed | None = None  # the rows to compute; None: all


def trunk(
    params,
    config: TransformerConfig,
    tokens_BxT,
    positions_BxT,
    see_BxTxS,
    key_positions_BxS,
    cache: Cache | None = None,
    remat: bool = False,
    keep_products: bool = False,
):
    """Final hidden states [B, T, E] and the cache's new KV (None without one).

    Without a cache the keys are the T tokens themselves (S = T). With a cache they are the pool's slots, including
    those of this call: all keys and values are written first, then all rows attend. If it packs C rows, the states are
    [1, C, E]. In place of the mask there may be what blocks of it are computed from as they are needed: a MaskSpec, or
    with a cache a PoolSpec.
    """
    packed = None if cache is None else cache.packed
    see_local = see_BxTxS
    if isinstance(see_BxTxS, MaskSpec | PoolSpec):
        see_local = see_BxTxS if config.window is None else see_BxTxS.within(config.window)
    elif config.window is not None:
        distance_BxTxS = positions_BxT[:, :, None] - key_positions_BxS[:, None, :]
        see_local = see_BxTxS & (distance_BxTxS < config.window)
    if packed is not None:
        tokens_BxT, positions_BxT = packed.pack(tokens_BxT)[None], packed.pack(positions_BxT)[None]
    x_BxTxE = embedded(params, tokens_BxT)
    x_BxTxE = scaled(x_BxTxE, config.embed**0.5 if config.scaled_embed else config.embed_scale)
    waves = rope_waves(config.rope, config.head_dim, positions_BxT)
    waves_local = waves
    if config.local_rope is not None:
        waves_local = rope_waves(config.local_rope, config.head_dim, positions_BxT)
    unmoved = jnp.ones_like(waves[0]), jnp.zeros_like(waves[1])

    def layer(params_l, x, kv, l, see, waves):
        @jax.named_scope("attention")
        def attend(q, k, v, sinks):
            if isinstance(see, MaskSpec):
                return blocked_attention(config, q, k, v, see, sinks), None
            if cache is None:
                k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
                is_plain = config.attention_cap is None and sinks is None
                if is_plain and is_mixed(q, params_l["out"].get("kernel", q)):
                    return mixed_attention(config, q, k, v, see), None
                return attention(config, q, k, v, see, sinks), None
            if packed is not None:
                q, k, v = (packed.spread(rows[0], cache.slots_BxT.shape[0]) for rows in (q, k, v))
            if isinstance(see, PoolSpec):
                out, written = write_and_attend(config, q, k, v, layers_kv(kv), l, cache.slots_BxT, see, sinks)
                if isinstance(kv[0], tuple):
                    written = tuple((pool[0],) for pool in written)
                return out if packed is None else packed.pack(out)[None], written
            with jax.named_scope("write"):
                written = write_kv(kv, l, cache.lanes, cache.slots_BxT, k, v)
            if cache.lanes is None and holds_panels(params_l["out"]) and sinks is None:
                out = attend_visible(q, *(pool[l] for pool in written), see, config.score_scale, config.attention_cap)
            else:
                read, at = (written, l) if cache.lanes is None else (lanes_kv(written, l, cache.lanes), 0)
                out = attend_prefix(config, q, read, at, see, cache.prefixes, cache.fill, sinks)
            return out if packed is None else packed.pack(out)[None], written

        params_l = params_l if cache is not None else with_gate_and_up(jax.tree.map(as_bfloat16, params_l))
        return Layer(config).apply({"params": params_l}, x, waves, attend)

    if remat:
        policies = jax.checkpoint_policies
        layer = jax.checkpoint(layer, policy=policies.save_only_these_names(PRODUCT) if keep_products else None)
    kv = None if cache is None else cache.kv
    if not is_stacked(params):
        pools = []  # of one layer each
        # With a cache, one layer is traced and lowered, and called for all of them; XLA inlines the calls.
        traced = layer if cache is None else jax.jit(layer, static_argnums=3)
        for l, params_l in enumerate(params["layers"]):
            pool = None if kv is None else tuple((of_layers[l],) for of_layers in kv)
            see, waves_l = (see_local, waves_local) if config.is_local(l) else (see_BxTxS, waves)
            waves_l = waves_l if config.has_rope(l) else unmoved
            x_BxTxE, pool = traced(params_l, x_BxTxE, pool, 0, see, waves_l)
            pools.append(pool)
        if kv is not None:
            kv = tuple(tuple(pool[which][0] for pool in pools) for which in range(2))
    else:
        is_local = jnp.asarray([config.is_local(l) for l in range(config.layers)])
        has_rope = jnp.asarray([config.has_rope(l) for l in range(config.layers)])

        def body(carry, params_and_l):
            x, kv = carry
            params_l, l = params_and_l

            def choose(local, everywhere):
                return local if local is everywhere else jnp.where(is_local[l], local, everywhere)

            see = jax.tree.map(choose, see_local, see_BxTxS)
            waves_l = jax.tree.map(choose, waves_local, waves)
            if config.nope_every is not None:
                waves_l = jax.tree.map(functools.partial(jnp.where, has_rope[l]), waves_l, unmoved)
            return layer(params_l, x, kv, l, see, waves_l), None

        (x_BxTxE, kv), _ = lax.scan(body, (x_BxTxE, kv), (params["layers"], jnp.arange(config.layers)))
    return RMSNorm(config.norm_eps).apply({"params": params["final_norm"]}, x_BxTxE), kv


def attend_prefix(config, q, kv: KV, l, see_BxTxS, prefixes: tuple[int, ...], fill, sinks=None):
    """Attention over the shortest static prefix that holds every used slot: the result of all slots, for less work.

    Each branch slices its own prefix out of the pool. With the slice before the switch, a TPU would read all slots of a
    layer.
    """

    def upto(length):
        return lambda: attention(config, q, *prefix_kv(kv, l, length), see_BxTxS[:, :, :length], sinks)

    slots = see_BxTxS.shape[-1]
    lengths = [p for p in prefixes if p < slots]
    if not lengths:
        return upto(slots)()
    index = jnp.searchsorted(jnp.asarray(lengths), fill)
    return lax.switch(index, [upto(length) for length in [*lengths, slots]])


def embedded(params, tokens_BxT):
    """The tokens' embeddings [B, T, E]."""
    if isinstance(params.get("embed"), Mapping):
        return rows_of(params["embed"], tokens_BxT)
    if "embed_columns" in params:
        return jnp.moveaxis(params["embed_columns"][:, tokens_BxT], 0, -1)
    if "tags_at" in params:  # a frozen table, and trained rows beside it
        rows, place_BxT = params["tag_rows"]["embed"], tokens_BxT - params["tags_at"]
        is_tag_BxT = (place_BxT >= 0) & (place_BxT < len(rows))
        others_BxTxE = lax.stop_gradient(params["embed"])[tokens_BxT].astype(rows.dtype)
        return jnp.where(is_tag_BxT[..., None], rows[jnp.where(is_tag_BxT, place_BxT, 0)], others_BxTxE)
    return params["embed"][tokens_BxT]


@jax.named_scope("head")
def logits(params, config: TransformerConfig, x_BxTxE):
    """Next-token logits [B, T, V] in float32."""
    table = "embed" if config.tied_head else "head"
    lanes, length, embed = x_BxTxE.shape
    rows_NxE = x_BxTxE.reshape(lanes * length, embed)
    if isinstance(params.get(table), Mapping):
        logits_NxV = product(rows_NxE, params[table], config.vocab)
    elif f"{table}_columns" in params:
        logits_NxV = jnp.matmul(rows_NxE, params[f"{table}_columns"], preferred_element_type=jnp.float32)
    else:
        logits_NxV = row_product(rows_NxE, params[table], jnp.float32)
    if "tags_at" in params:
        of_tags = row_product(rows_NxE, params["tag_rows"][table], jnp.float32)
        logits_NxV = lax.dynamic_update_slice_in_dim(logits_NxV, of_tags, params["tags_at"], axis=1)
    logits_NxV = scaled(logits_NxV, 1 / config.logit_divisor)
    return soft_cap(logits_NxV, config.logit_cap).reshape(lanes, length, -1)


def forward(params, config: TransformerConfig, tokens_BxT, positions_BxT, see_BxTxT):
    """Uncached logits of whole sequences under any mask: for training, scoring and the reference."""
    x_BxTxE, _ = trunk(params, config, tokens_BxT, positions_BxT, see_BxTxT, positions_BxT)
    return logits(params, config, x_BxTxE)


def causal(positions_BxT):
    """The plain causal mask [B, T, T] in sequence order."""
    length = positions_BxT.shape[1]
    return jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool)), (positions_BxT.shape[0], length, length))


def init(config: TransformerConfig, key, stacked: bool):
    """Fresh float32 parameters; call it under `jax.eval_shape` for their shapes alone."""

    def one_layer(key):
        x = jnp.zeros((1, 1, config.embed))
        waves = rope_waves(config.rope, config.head_dim, jnp.zeros((1, 1), jnp.int32))
        return Layer(config).init(key, x, waves, lambda q, *_: (q, None))["params"]

    embed_key, head_key, *layer_keys = jax.random.split(key, 2 + config.layers)
    params = {
        "embed": kernel_init(embed_key, (config.vocab, config.embed)),
        "final_norm": {"weight": jnp.ones(config.embed)},
        "layers": jax.vmap(one_layer)(jnp.stack(layer_keys)) if stacked else tuple(map(one_layer, layer_keys)),
    }
    if not config.tied_head:
        params["head"] = kernel_init(head_key, (config.vocab, config.embed))
    return params
