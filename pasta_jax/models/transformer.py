"""One transformer for all families of models: Linen modules used as pure functions.

`trunk` runs the layers and `logits` the head, both over a plain parameter tree. The tree's layout (parameters.py)
decides whether layers are scanned (accelerators: one small program) or unrolled (CPU: XLA would copy each layer's slice
of a stacked weight). The cache has the same layout; see pool.py.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from pasta_jax.lang.tags import NUM_TAGS
from pasta_jax.models.adapters import own_embeddings, own_logits
from pasta_jax.models.attention import Cache, attend
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.experts import mixture
from pasta_jax.models.kernels.bfloat16 import as_bfloat16
from pasta_jax.models.kernels.cpu.calls import holds_panels
from pasta_jax.models.mask import MaskSpec, PoolSpec
from pasta_jax.models.parameters import is_stacked, with_gate_and_up
from pasta_jax.models.parts import (
    PRODUCT,
    Dense,
    RMSNorm,
    Stored,
    Weight,
    gated,
    gated_pairs,
    kernel_init,
    of_size_one,
    picked,
    rope_waves,
    rotate,
    scaled,
    soft_cap,
    times,
)
from pasta_jax.models.pool import KV

# (q, k, v, sinks) -> (output, new cache); k and v are None in a layer that reads those of another
Attend = Callable[[jax.Array, jax.Array | None, jax.Array | None, jax.Array | None], tuple[jax.Array, KV | None]]


class Layer(nn.Module):
    """One layer. `attend(q, k, v, sinks)` owns mask and cache and returns (output, new cache)."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x_BxTxE, waves, attend: Attend, own_BxTxP=None):
        c = self.config
        heads = (c.kv_heads, c.groups, c.head_dim)

        h = self.norm("attn_norm")(x_BxTxE) if c.pre_norms else x_BxTxE
        # Per key/value head: its G query heads, then the key, then the value. One matrix, so that a step reads it in
        # one pass; grouped by key/value head, so that sharding over K keeps the heads of a group together.
        rows = c.groups + (2 if c.own_layers else 0)
        qkv_BxTxKxG2xD = Dense((c.kv_heads, rows, c.head_dim), c.qkv_bias, name="qkv")(h)
        q, *kv = jnp.split(qkv_BxTxKxG2xD, (c.groups, c.groups + 1)[: rows - c.groups], axis=3)
        q = q.reshape(*q.shape[:2], c.heads, c.head_dim)
        q = rotate(self.head_norm("q_norm", q) if c.qk_norm else q, waves)
        if c.own_layers:
            k, v = (one[:, :, :, 0] for one in kv)
            k = rotate(self.head_norm("k_norm", k) if c.qk_norm else k, waves)
            v = of_size_one(v, c.norm_eps, self.is_ordered).astype(v.dtype) if c.value_norm else v
        else:
            k = v = None
        sinks_KxG = Weight((c.heads,), name="sinks")().reshape(heads[:2]) if c.sinks else None
        h, cache = attend(q.reshape(*q.shape[:2], *heads), k, v, sinks_KxG)
        h = Dense((c.embed,), c.out_bias, name="out")(h.reshape(*h.shape[:2], c.heads * c.head_dim))
        x_BxTxE = self.add(x_BxTxE, h, "post_attn_norm")

        h = self.norm("mlp_norm")(x_BxTxE) if c.pre_norms else x_BxTxE
        x_BxTxE = self.add(x_BxTxE, self.experts(h) if c.experts else self.mlp(h), "post_mlp_norm")
        if c.layer_embed:
            gate_BxTxP = jax.nn.gelu(Dense((c.layer_embed,), name="own_gate")(x_BxTxE), approximate=True)
            h = Dense((c.embed,), name="own_out")(gate_BxTxP * own_BxTxP)
            x_BxTxE = x_BxTxE + self.norm("own_norm")(h)
        if c.layer_scales:
            scale = Weight((1,), nn.initializers.ones_init(), name="scale")()
            x_BxTxE = x_BxTxE * scale.astype(x_BxTxE.dtype)[None, None]
        return x_BxTxE, cache

    @property
    def is_ordered(self) -> bool:
        """Whether norms sum as our kernels do, so that no row depends on how many there are."""
        return self.has_variable("params", "out") and holds_panels(self.get_variable("params", "out"))

    def norm(self, name: str) -> RMSNorm:
        """The norm of this name."""
        return RMSNorm(self.config.norm_eps, self.is_ordered, name=name)

    def mlp(self, h_BxTxE):
        """The feed-forward branch."""
        c = self.config
        if self.has_variable("params", "gate"):
            h_BxTxF = gated(c, *(Dense((c.ff,), c.mlp_bias, name=name)(h_BxTxE) for name in ("gate", "up")))
        else:
            # Interleaved, so that sharding over F keeps pairs together.
            pairs_BxTxF2 = Dense((c.ff * 2,), c.mlp_bias, name="gate_up")(h_BxTxE)
            h_BxTxF = gated_pairs(c, pairs_BxTxF2, self.is_ordered)
        return Dense((c.embed,), c.mlp_bias, name="down")(h_BxTxF)

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
        norm = self.norm(name)
        if not self.config.whole_qk_norm:
            return norm(x_BxTxHxD)
        return norm(x_BxTxHxD.reshape(*x_BxTxHxD.shape[:2], -1)).reshape(x_BxTxHxD.shape)

    def add(self, x_BxTxE, branch_BxTxE, norm: str):
        """The stream with what a branch computed."""
        if self.config.post_norms:
            branch_BxTxE = self.norm(norm)(branch_BxTxE)
        return x_BxTxE + scaled(branch_BxTxE, self.config.residual_scale)


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
    packed, kernel = None if cache is None else cache.packed, uses_kernels(params)
    see_local = see_BxTxS
    if isinstance(see_BxTxS, MaskSpec | PoolSpec):
        see_local = see_BxTxS if config.window is None else see_BxTxS.within(config.window)
    elif config.window is not None:
        distance_BxTxS = positions_BxT[:, :, None] - key_positions_BxS[:, None, :]
        see_local = see_BxTxS & (distance_BxTxS < config.window)
    reads_visible = kernel and cache is not None and not config.sinks and not isinstance(see_BxTxS, PoolSpec)
    if packed is not None:
        tokens_BxT, positions_BxT = packed.pack(tokens_BxT)[None], packed.pack(positions_BxT)[None]
    if reads_visible:
        masks = (see_BxTxS,) if see_local is see_BxTxS else (see_BxTxS, see_local)
        if packed is not None:
            cache = cache.by_rows()
            masks = [packed.pack(mask)[None] & cache.in_use(mask.shape[-1])[..., None] for mask in masks]
        seen = [cache.seen(mask) for mask in masks]
        see_BxTxS, see_local = seen[0], seen[-1]
    x_BxTxE = embedded(params, tokens_BxT)
    if cache is not None:  # rows of zeros, which stay zeros, take no products (kernels/cpu/multiply.h)
        x_BxTxE = jnp.where(cache.in_use(key_positions_BxS.shape[1])[..., None], x_BxTxE, 0)
    x_BxTxE = scaled(x_BxTxE, config.embed**0.5 if config.scaled_embed else config.embed_scale)
    own_LxBxTxP = owned(params, config, tokens_BxT, x_BxTxE) if config.layer_embed else None
    waves = rope_waves(config.rope, config.global_head_dim or config.head_dim, positions_BxT, kernel)
    waves_local = waves
    if config.local_rope is not None or config.global_head_dim is not None:
        waves_local = rope_waves(config.local_rope or config.rope, config.head_dim, positions_BxT, kernel)
    unmoved = jnp.ones_like(waves[0]), jnp.zeros_like(waves[1])

    def layer(params_l, x, kv, l, see, waves, own, config_l):
        params_l = params_l if cache is not None else with_gate_and_up(jax.tree.map(as_bfloat16, params_l))
        attend_l = functools.partial(attend, config_l, see, cache, kv, l, params_l["out"])
        return Layer(config_l).apply({"params": params_l}, x, waves, attend_l, own)

    if remat:
        policies = jax.checkpoint_policies
        policy = policies.save_only_these_names(PRODUCT) if keep_products else None
        layer = jax.checkpoint(layer, policy=policy, static_argnums=7)
    kv = None if cache is None else cache.kv
    if not is_stacked(params):
        # Of one layer each.
        pools = {} if kv is None else {l: tuple((of[l],) for of in kv) for l in range(config.own_layers)}
        # With a cache, one layer is traced and lowered, and called for all of its kind; XLA inlines the calls.
        traced = layer if cache is None else jax.jit(layer, static_argnums=(3, 7))
        for l, params_l in enumerate(params["layers"]):
            see, waves_l = (see_local, waves_local) if config.is_local(l) else (see_BxTxS, waves)
            waves_l = waves_l if config.has_rope(l) else unmoved
            own, source = None if own_LxBxTxP is None else own_LxBxTxP[l], config.source(l)
            x_BxTxE, pools[source] = traced(
                params_l, x_BxTxE, pools.get(source), 0, see, waves_l, own, config.of_layer(l)
            )
        if kv is not None:
            kv = tuple(tuple(pool[which][0] for pool in pools.values()) for which in range(2))
    else:
        is_local = jnp.asarray([config.is_local(l) for l in range(config.layers)])
        has_rope = jnp.asarray([config.has_rope(l) for l in range(config.layers)])

        def body(carry, of_layer):
            x, kv = carry
            params_l, l, own = of_layer

            def choose(local, everywhere):
                return local if local is everywhere else jnp.where(is_local[l], local, everywhere)

            see = jax.tree.map(choose, see_local, see_BxTxS)
            waves_l = jax.tree.map(choose, waves_local, waves)
            if config.nope_every is not None:
                waves_l = jax.tree.map(functools.partial(jnp.where, has_rope[l]), waves_l, unmoved)
            x, written = layer(params_l, x, kv, l, see, waves_l, own, config)
            return (x, kv if cache is None else written), None

        of_layers = params["layers"], jnp.arange(config.layers), own_LxBxTxP
        (x_BxTxE, kv), _ = lax.scan(body, (x_BxTxE, kv), of_layers)
    return norm(params, config, "final_norm", x_BxTxE), kv


def norm(params, config: TransformerConfig, name: str, x):
    """A norm outside of the layers, of the same kind as theirs (Layer.is_ordered)."""
    return RMSNorm(config.norm_eps, uses_kernels(params)).apply({"params": params[name]}, x)


def uses_kernels(params) -> bool:
    """Whether products, and attention to a pool, are those of our own kernels on the CPU."""
    return not is_stacked(params) and holds_panels(params["layers"][0]["out"])


def rows_are_alone(params, config: TransformerConfig) -> bool:
    """Whether a token's keys and values have the same bits whatever is computed beside it and in which chunk."""
    by_xla = config.experts or config.sinks or "adapters" in params  # in part
    return uses_kernels(params) and not by_xla


def embedded(params, tokens_BxT, table: str = "embed"):
    """The tokens' embeddings [B, T, E]."""
    if table == "embed" and "tags_at" in params:  # a frozen table, and trained rows beside it
        rows, place_BxT = params["tag_rows"]["embed"], tokens_BxT - params["tags_at"]
        is_tag_BxT = (place_BxT >= 0) & (place_BxT < len(rows))
        others_BxTxE = lax.stop_gradient(params["embed"])[tokens_BxT].astype(rows.dtype)
        return jnp.where(is_tag_BxT[..., None], rows[jnp.where(is_tag_BxT, place_BxT, 0)], others_BxTxE)
    x_BxTxE = picked(params[table], tokens_BxT)
    if table == "embed" and "chosen" in params.get("adapters", ()):
        return own_embeddings(params["adapters"], tokens_BxT, x_BxTxE)
    return x_BxTxE


def owned(params, config: TransformerConfig, tokens_BxT, x_BxTxE):
    """What each layer adds of its own embedding, [L, B, T, P]: of the token, and of its embedding for all layers."""
    shape = (*tokens_BxT.shape, config.layers, config.layer_embed)
    of_token = scaled(embedded(params, tokens_BxT, "layer_embed").reshape(shape), config.layer_embed**0.5)
    rows_NxE = x_BxTxE.reshape(-1, config.embed)
    projected = times(rows_NxE, params["layer_projection"], config.layers * config.layer_embed)
    projected = scaled(projected.reshape(shape), config.embed**-0.5)
    projected = norm(params, config, "layer_norm", projected)
    return jnp.moveaxis(scaled(projected + of_token.astype(projected.dtype), 2.0**-0.5), 2, 0)


@jax.named_scope("head")
def logits(params, config: TransformerConfig, x_BxTxE):
    """Next-token logits [B, T, V] in float32."""
    table = "embed" if config.tied_head else "head"
    lanes, length, embed = x_BxTxE.shape
    rows_NxE = x_BxTxE.reshape(lanes * length, embed)
    logits_NxV = times(rows_NxE, params[table], config.vocab, jnp.float32)
    if "tags_at" in params:
        of_tags = times(rows_NxE, params["tag_rows"][table], NUM_TAGS, jnp.float32)
        logits_NxV = lax.dynamic_update_slice_in_dim(logits_NxV, of_tags, params["tags_at"], axis=1)
    if "chosen" in params.get("adapters", ()):
        logits_NxV = own_logits(params["adapters"], rows_NxE, logits_NxV, times)
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

    def one_layer(key, layer: int = 0):
        x, c = jnp.zeros((1, 1, config.embed)), config.of_layer(layer)
        waves = rope_waves(c.rope, c.head_dim, jnp.zeros((1, 1), jnp.int32))
        own = None if c.layer_embed is None else jnp.zeros((1, 1, c.layer_embed))
        return Layer(c).init(key, x, waves, lambda q, *_: (q, None), own)["params"]

    embed_key, head_key, *layer_keys = jax.random.split(key, 2 + config.layers)
    params = {
        "embed": kernel_init(embed_key, (config.vocab, config.embed)),
        "final_norm": {"weight": jnp.ones(config.embed)},
        "layers": jax.vmap(one_layer)(jnp.stack(layer_keys))
        if stacked and not config.is_uneven
        else tuple(map(one_layer, layer_keys, range(config.layers))),
    }
    if config.layer_embed:
        width = config.layers * config.layer_embed
        params["layer_embed"] = kernel_init(embed_key, (config.vocab, width))
        params["layer_projection"] = {"kernel": kernel_init(head_key, (width, config.embed))}
        params["layer_norm"] = {"weight": jnp.ones(config.layer_embed)}
    if not config.tied_head:
        params["head"] = kernel_init(head_key, (config.vocab, config.embed))
    return params
