"""all-MiniLM-L6-v2: sentence embeddings of 384 numbers; texts on the same topic have similar ones.

A BERT encoder of six layers, read from its safetensors file and tokenizer.json. A text's embedding is the mean over its
tokens, normalised to length 1. Text beyond the model's 256 tokens is cut off.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from pasta_jax.files import packages

LAYERS, HEADS, EPSILON = 6, 12, 1e-12
LENGTHS = (16, 32, 64, 128, 256)  # tokens that texts are padded to; the last is the model's limit

Embed = Callable[[Sequence[str]], np.ndarray]


@functools.cache  # a process reads the weights once and shares computed embeddings
def load_minilm() -> Embed:
    """`embed(texts)` -> float32 [texts, 384], each of length 1. Every text is computed once and cached."""
    params = jax.device_put(load_file(packages.path("minilm")))
    tokenizer = Tokenizer.from_file(str(packages.path("minilm_tokenizer")))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LENGTHS[-1])  # including the two control tokens
    cache: dict[str, np.ndarray] = {}

    def embed(texts: Sequence[str]) -> np.ndarray:
        for text in texts:
            if text not in cache:
                cache[text] = np.asarray(encode(params, *padded(tokenizer.encode(text).ids)))
        return np.stack([cache[text] for text in texts])

    return embed


def padded(ids: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, mask) of the shortest of LENGTHS that holds them: few shapes, so few programs to compile."""
    padding = next(length for length in LENGTHS if length >= len(ids)) - len(ids)
    return np.array([*ids, *[0] * padding], np.int32), np.array([1] * len(ids) + [0] * padding, np.float32)


@jax.jit
def encode(params: dict, tokens_T: jax.Array, mask_T: jax.Array) -> jax.Array:
    """The embedding of one text; `mask` is 1 at its tokens and 0 at padding."""

    def norm(name: str, x_TxE: jax.Array) -> jax.Array:
        x_TxE = x_TxE - x_TxE.mean(-1, keepdims=True)
        x_TxE = x_TxE / jnp.sqrt((x_TxE * x_TxE).mean(-1, keepdims=True) + EPSILON)
        return x_TxE * params[f"{name}.LayerNorm.weight"][None] + params[f"{name}.LayerNorm.bias"][None]

    def dense(name: str, x: jax.Array) -> jax.Array:
        return x @ params[f"{name}.weight"].T + params[f"{name}.bias"][None]

    words_TxE = params["embeddings.word_embeddings.weight"][tokens_T]
    places_TxE = params["embeddings.position_embeddings.weight"][: len(tokens_T)]
    kind_E = params["embeddings.token_type_embeddings.weight"][0]  # a second text would have another
    x_TxE = norm("embeddings", words_TxE + places_TxE + kind_E[None])
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        projected = (dense(f"{at}.attention.self.{name}", x_TxE) for name in ("query", "key", "value"))
        q_TxKxD, k_TxKxD, v_TxKxD = (x.reshape(len(x), HEADS, -1) for x in projected)
        scores_KxTxT = jnp.einsum("tkd,skd->kts", q_TxKxD, k_TxKxD) / q_TxKxD.shape[-1] ** 0.5
        weights_KxTxT = jax.nn.softmax(scores_KxTxT, where=mask_T[None, None] > 0)
        seen_TxE = jnp.einsum("kts,skd->tkd", weights_KxTxT, v_TxKxD).reshape(x_TxE.shape)
        x_TxE = norm(f"{at}.attention.output", x_TxE + dense(f"{at}.attention.output.dense", seen_TxE))
        inner_TxF = jax.nn.gelu(dense(f"{at}.intermediate.dense", x_TxE), approximate=False)
        x_TxE = norm(f"{at}.output", x_TxE + dense(f"{at}.output.dense", inner_TxF))
    mean_E = mask_T @ x_TxE / mask_T.sum()
    return mean_E / jnp.linalg.norm(mean_E)


def cosine(embed: Embed, first: str, second: str) -> float:
    """From about 0 for unrelated texts to 1 for the same text."""
    a, b = embed([first, second])
    return float(a @ b)
