"""A transformer's configuration as one frozen value; the presets; and the dimension letters used in names.

    B  requests (lanes)        L  layers                 D  size of one head
    T  tokens of a sequence    E  embedding width        F  feed-forward width
    R  rows (threads) per step K  key/value heads        V  vocabulary rows
    S  slots of a pool         G  query heads per key/value head
    X  experts of a mixture    A  experts that compute a token

Tensors carry their letters as a suffix (`x_BxTxE`); einsum strings use the same letters in lower case.
"""

import dataclasses
from typing import Annotated, Literal

from msgspec import Meta

from pasta_jax.errors import PastaError
from pasta_jax.files.validated import AboveZero, Positive
from pasta_jax.models.rope import Rope, later

Size = Annotated[int, Meta(ge=1, le=2**20)]  # of one dimension
Rows = Annotated[int, Meta(ge=1, le=2**24)]  # of a vocabulary
Layers = Annotated[int, Meta(ge=1, le=1000)]
Experts = Annotated[int, Meta(ge=1, le=4096)]


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Covers the families of weights/families.py."""

    vocab: Rows  # embedding rows, tags and padding included
    layers: Layers
    embed: Size
    ff: Size
    heads: Size
    kv_heads: Size
    head_dim: Size
    context: Positive  # longest position the model was trained for
    rope: Rope
    norm_eps: Annotated[float, Meta(ge=0, le=1)]
    activation: Literal["gelu", "silu"]
    tied_head: bool
    scaled_embed: bool = False  # embeddings times sqrt(embed), as in Gemma
    post_norms: bool = False  # also a norm after each branch, as in Gemma 2 and 3
    qk_norm: bool = False  # a norm of each query and key head, as in Gemma 3
    query_scalar: Size | None = None  # scores are scaled by query_scalar ** -0.5; None: head_dim
    attention_cap: AboveZero | None = None  # soft caps of Gemma 2
    logit_cap: AboveZero | None = None
    window: Positive | None = None  # local layers see positions q - k < window
    global_every: Positive = 1  # layer l is global when (l + 1) % global_every == 0; the others are local
    local_rope: Rope | None = None  # None: local layers use `rope`
    pre_norms: bool = later(True)  # a norm before each branch; OLMo 2 has only those after it
    whole_qk_norm: bool = later(False)  # `qk_norm` is over all heads together, as in OLMo 2
    qkv_bias: bool = later(False)  # queries, keys and values have a bias, as in Qwen 2
    out_bias: bool = later(False)
    mlp_bias: bool = later(False)
    nope_every: Positive | None = later(None)  # layer l has no rope when (l + 1) % nope_every == 0, as in SmolLM3
    attention_scale: AboveZero | None = later(None)  # of scores, in place of query_scalar ** -0.5
    embed_scale: AboveZero = later(1.0)  # Granite's factors: of embeddings,
    residual_scale: AboveZero = later(1.0)  # of what each branch adds,
    logit_divisor: AboveZero = later(1.0)  # and of logits
    value_norm: bool = later(False)  # values are divided by their size, as in Gemma 4
    global_head_dim: Size | None = later(None)  # of heads in global layers; None: head_dim
    shared_layers: Annotated[int, Meta(ge=0, le=1000)] = later(
        0
    )  # the last: they read an earlier one's keys and values
    wide_shared: bool = later(False)  # these have an MLP of twice the width
    layer_embed: Size | None = later(None)  # width of a second embedding, one for each layer
    layer_scales: bool = later(False)  # a layer's result is multiplied by a weight
    sinks: bool = later(False)  # each head has a score for attending to nothing, as in gpt-oss
    experts: Experts | None = later(None)  # the MLP is a mixture of as many, each of width `ff`
    active_experts: Experts | None = later(None)  # that compute a token
    router_bias: bool = later(False)
    shares_of_all: bool = later(False)  # an expert's share is a softmax over all, not over the active ones
    gate_limit: AboveZero | None = later(None)  # gpt-oss: gate and up are cut off there, and up is one more
    gate_slope: AboveZero = later(1.0)  # of the sigmoid in the gate's activation
    # As which family files name it; empty: the first of weights/families.py that can. No computation depends on it.
    family: str = dataclasses.field(default="", compare=False)

    def __post_init__(self):
        if self.heads % self.kv_heads:
            raise PastaError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads}); change either")
        if self.head_dim % 2:
            raise PastaError(f"head_dim ({self.head_dim}) must be even, since rope rotates pairs; change it")
        if self.window is None and self.global_every != 1:
            raise PastaError(f"global_every is {self.global_every}, so some layers are local; set their window")
        if not (self.pre_norms or self.post_norms):
            raise PastaError("pre_norms and post_norms are both False; set either")
        if not (self.active_experts or 0) <= (self.experts or 0) or (self.experts and not self.active_experts):
            raise PastaError(f"{self.active_experts} of {self.experts} experts are active; set both to what fits")
        if self.whole_qk_norm and not self.qk_norm:
            raise PastaError("whole_qk_norm is set without qk_norm; set both")
        if self.is_uneven and self.layers > 1:
            for layer in range(self.layers):
                self.source(layer)
        global_head_dim = self.global_head_dim or self.head_dim
        if global_head_dim % 2:
            raise PastaError(f"global_head_dim ({global_head_dim}) must be even, since rope rotates pairs; change it")
        for rope, head_dim in ((self.rope, global_head_dim), (self.local_rope or self.rope, self.head_dim)):
            if rope.of_pairs:
                continue
            pairs = int(head_dim * rope.share) / 2
            if pairs != int(pairs) or pairs < 1:
                raise PastaError(f"rope: a share of {rope.share} isn't a whole number of pairs; change it")
            if rope.divisors is not None and len(rope.divisors) != pairs:
                raise PastaError(f"rope: {len(rope.divisors)} divisors for {pairs:.0f} pairs; give one each")

    @property
    def groups(self) -> int:
        """G: query heads that share a key/value head."""
        return self.heads // self.kv_heads

    @property
    def score_scale(self) -> float:
        """The factor of attention scores."""
        if self.attention_scale is not None:
            return self.attention_scale
        return (self.head_dim if self.query_scalar is None else self.query_scalar) ** -0.5

    @property
    def expert_ff(self) -> int:
        """`ff`, which some files state beside that of dense layers."""
        return self.ff

    def is_local(self, layer: int) -> bool:
        """Whether the layer's attention is limited to the window."""
        return self.window is not None and (layer + 1) % self.global_every != 0

    @property
    def is_uneven(self) -> bool:
        """Whether layers have arrays of different shapes, so that they can't be stacked."""
        return self.shared_layers > 0 or self.global_head_dim not in (None, self.head_dim)

    @property
    def own_layers(self) -> int:
        """Layers that have keys and values of their own: the first ones."""
        return self.layers - self.shared_layers

    def source(self, layer: int) -> int:
        """The layer whose keys and values a layer reads: mostly its own."""
        if layer < self.own_layers:
            return layer
        for earlier in reversed(range(self.own_layers)):
            if self.is_local(earlier) == self.is_local(layer):
                return earlier
        raise PastaError(
            f"shared_layers ({self.shared_layers}): layer {layer} has no earlier one of its kind; lower it"
        )

    def of_layer(self, layer: int) -> "TransformerConfig":
        """The configuration of one layer by itself, where layers differ; its `own_layers` are 1 or 0."""
        if not self.is_uneven:
            return self
        is_shared = layer >= self.own_layers
        return dataclasses.replace(
            self,
            layers=1,
            shared_layers=int(is_shared),
            head_dim=self.head_dim if self.is_local(layer) else (self.global_head_dim or self.head_dim),
            global_head_dim=None,
            ff=self.ff * (2 if is_shared and self.wide_shared else 1),
            wide_shared=False,
            rope=Rope(1.0),  # these are of all layers: fewer programs
            local_rope=None,
            window=None,
            global_every=1,
        )

    def has_rope(self, layer: int) -> bool:
        """Whether the layer knows positions."""
        return self.nope_every is None or (layer + 1) % self.nope_every != 0

    @property
    def biases(self) -> tuple[str, ...]:
        """The kernels of a layer that have a bias."""
        has = {"qkv": self.qkv_bias, "out": self.out_bias, "gate_up": self.mlp_bias, "down": self.mlp_bias}
        return tuple(name for name, one in (has | {"router": self.router_bias}).items() if one)


_GEMMA = dict(norm_eps=1e-6, activation="gelu", tied_head=True, scaled_embed=True)
_GEMMA_8K = dict(**_GEMMA, context=8192, rope=Rope(10_000.0))

PRESETS = {
    "gemma_7b": TransformerConfig(
        vocab=256_000, layers=28, embed=3072, ff=24_576, heads=16, kv_heads=16, head_dim=256, **_GEMMA_8K
    ),
    "gemma_2b": TransformerConfig(
        vocab=256_000, layers=18, embed=2048, ff=16_384, heads=8, kv_heads=1, head_dim=256, **_GEMMA_8K
    ),
    "gemma2_27b": TransformerConfig(
        vocab=256_000,
        layers=46,
        embed=4608,
        ff=36_864,
        heads=32,
        kv_heads=16,
        head_dim=128,
        query_scalar=144,
        window=4096,
        global_every=2,
        post_norms=True,
        attention_cap=50.0,
        logit_cap=30.0,
        **_GEMMA_8K,
    ),
    "gemma3_270m": TransformerConfig(
        vocab=262_144,
        layers=18,
        embed=640,
        ff=2048,
        heads=4,
        kv_heads=1,
        head_dim=256,
        context=32_768,
        rope=Rope(1_000_000.0),
        local_rope=Rope(10_000.0),
        window=512,
        global_every=6,
        post_norms=True,
        qk_norm=True,
        **_GEMMA,
    ),
    "smollm2_135m": TransformerConfig(
        vocab=49_280,  # 49,152 of the tokenizer, 68 tags, padded to a multiple of 128
        layers=30,
        embed=576,
        ff=1536,
        heads=9,
        kv_heads=3,
        head_dim=64,
        context=8192,
        rope=Rope(100_000.0),
        norm_eps=1e-5,
        activation="silu",
        tied_head=True,
    ),
    "qwen2_5_coder_1_5b": TransformerConfig(
        vocab=151_936,
        layers=28,
        embed=1536,
        ff=8960,
        heads=12,
        kv_heads=2,
        head_dim=128,
        context=32_768,
        rope=Rope(1_000_000.0),
        norm_eps=1e-6,
        activation="silu",
        tied_head=False,  # in its GGUF file
        qkv_bias=True,
    ),
    # Small enough for tests, with every feature that can go wrong: grouped heads, windows, two ropes, all norms and
    # caps.
    "toy": TransformerConfig(
        vocab=384,
        layers=3,
        embed=32,
        ff=64,
        heads=4,
        kv_heads=2,
        head_dim=8,
        context=4096,
        rope=Rope(10_000.0),
        local_rope=Rope(1000.0),
        window=16,
        global_every=3,
        post_norms=True,
        qk_norm=True,
        attention_cap=50.0,
        logit_cap=30.0,
        **_GEMMA,
    ),
}
