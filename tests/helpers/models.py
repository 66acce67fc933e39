"""The smallest shape, and random weights made by NumPy (jax.random would compile a program for every leaf)."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.lang.structure import PREDICTED
from pasta_jax.models import transformer
from pasta_jax.models.config import PRESETS, Rope, TransformerConfig
from pasta_jax.toy.tokenizer import toy_tokenizer
from pasta_jax.weights.model import Model
from tests.helpers.byte_tokenizer import ByteTokenizer

TINY = TransformerConfig(
    vocab=384,
    layers=1,
    embed=8,
    ff=8,
    heads=1,
    kv_heads=1,
    head_dim=4,
    context=512,
    rope=Rope(10_000.0),
    norm_eps=1e-6,
    activation="gelu",
    tied_head=True,
)
# Where all tokens are forced, only the state's integers are compared.
SMALLEST = dataclasses.replace(TINY, embed=4, ff=4, head_dim=2, context=4096)
TOY = dataclasses.replace(PRESETS["toy"], layers=2, global_every=2)  # a layer with a window and one without
UNTIED = dataclasses.replace(TOY, tied_head=False)

# One of another family, for the toy task's tokenizer.
QWEN2 = dataclasses.replace(
    TINY, layers=2, embed=16, ff=24, heads=2, head_dim=8, norm_eps=1e-5, activation="silu", tied_head=False,
    qkv_bias=True, family="qwen2",
)  # fmt: skip


def random_params(config, seed: int, scale: float = 0.3, stacked: bool = False):
    """A parameter tree whose scale is large enough to reveal wrong masks, ropes or norms."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(functools.partial(transformer.init, config, stacked=stacked), jax.random.key(0))
    return jax.tree.map(lambda s: (rng.standard_normal(s.shape) * scale).astype(np.float32), shapes)


def trained(adapter, seed: int = 1, size: float = 0.3):
    """An adapter as training would leave it."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: leaf + size * rng.standard_normal(leaf.shape).astype(np.float32), adapter)


@functools.partial(jax.jit, static_argnames="config")
def _forward(params, tokens_1xT, at_N, config):
    place = jnp.arange(tokens_1xT.shape[1])[None]
    hidden_1xTxE = transformer.trunk(params, config, tokens_1xT, place, transformer.causal(place), place)[0]
    return transformer.logits(params, config, hidden_1xTxE[:, at_N])[0]


def uncached(model, ids, config=None, at=None):
    """Logits [N, V] of a sequence without a pool, at some places (None: all); padded at the end, which causality hides,
    to compile few shapes."""
    padded = np.zeros((1, -(-len(ids) // 128) * 128), np.int32)
    padded[0, : len(ids)] = ids
    at_N = np.arange(padded.shape[1]) if at is None else np.asarray(at)
    return np.array(_forward(model.params, padded, at_N, config=config or model.config)[: len(ids)])


@functools.cache
def toy(config: TransformerConfig = TOY, stacked: bool = False) -> Model:
    """Random weights of a shape, and the tokenizer of bytes."""
    return Model("toy", config, jax.device_put(random_params(config, 1, stacked=stacked)), ByteTokenizer())


def talkative(config: TransformerConfig, tokenizer, stacked: bool = False):
    """Random weights whose head samples tags and end-of-turn often."""
    params, tags = random_params(config, 5, stacked=stacked), tokenizer.tags
    for ids, factor in (([tags.promise], 10), ([tags.end_async, tags.sync], 7), ([tokenizer.end_of_turn], 6)):
        params["head"][ids] *= factor
    return params


# Settings of preference runs from a babbler.
BABBLING = {
    "train.learning_rate": 1e-2,
    "decoding.lanes": 2,
    "decoding.rows": 2,
    "evaluate.temperatures": (1.0,),  # its greedy answers are empty, before and after training
    "request.max_tokens": 60,
    "request.max_chunk_tokens": 12,
    "score.efficiency": "parallelism",  # the baseline's answers are empty, so there is no speedup over them
}


def babbler() -> Model:
    """A random model with the toy task's tokenizer that forks, closes and stops often."""
    tokenizer = toy_tokenizer()
    shape = dataclasses.replace(UNTIED, vocab=tokenizer.model_vocab)
    return Model("babbler", shape, jax.device_put(talkative(shape, tokenizer)), tokenizer, PREDICTED)
