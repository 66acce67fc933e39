"""How far next-token logits move when inputs are rounded to 16 or 8 bits, and in llama.cpp, which rounds too."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from pasta_jax.benchmark import peers
from pasta_jax.benchmark.settings import BenchmarkSettings
from pasta_jax.data.pairs import Pair
from pasta_jax.data.sources import read
from pasta_jax.errors import PastaError
from pasta_jax.models.transformer import causal, forward
from pasta_jax.progress import track
from pasta_jax.runs.settings import changed
from pasta_jax.weights.for_cpu import with_bits
from pasta_jax.weights.model import BLOCKS, Model
from pasta_jax.weights.source import load

EXACT, ROUNDED = 32, (16, 8)  # bits of inputs


def measure(settings: BenchmarkSettings, with_peers: bool) -> dict[str, Any]:
    """KL divergence of next-token distributions from those of inputs in float32, over the tokens of some texts."""
    config = settings.rounding
    if with_peers:
        peers.require(settings.model, ("cyllama",))
    model = load(changed(settings.model, dtype="q4", bits=16), only_decoding=True)
    if model.precision != BLOCKS:
        raise PastaError(
            "rounding: only inputs of a quantised file's blocks are rounded, on one CPU; set another model"
        )
    pairs = (pair for pair in read(config.source) if isinstance(pair, Pair))
    whole = (model.tokenizer.encode(f"{pair.instruction}\n\n{pair.response}") for pair in pairs)
    texts = [
        ids[: config.tokens]
        for ids in itertools.islice((ids for ids in whole if len(ids) >= config.tokens), config.texts)
    ]
    if not texts:
        raise PastaError(f"rounding.tokens: no text of {config.source} has {config.tokens} tokens; lower it")
    exact = _ours(model, EXACT, texts)
    found = {f"{bits} bits": _distance(exact, _ours(model, bits, texts)) for bits in ROUNDED}
    if with_peers:
        logits = peers.llama_cpp_logits(peers.files(model)["llama_cpp"], texts)
        found["llama_cpp"] = _distance(exact, logits)
    return {
        "benchmark": "rounding",
        "model": model.name,
        "dtype": model.precision,
        "tokens": sum(map(len, texts)),
        "from_float32": found,
    }


def _ours(model: Model, bits: int, texts: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Logits [T, V] of each text."""
    params = with_bits(model.params, bits)
    run: Callable[..., jax.Array] = jax.jit(forward, static_argnums=1)

    def of(ids: Sequence[int]) -> np.ndarray:
        positions = jnp.arange(len(ids))[None]
        return np.asarray(run(params, model.config, jnp.asarray([ids]), positions, causal(positions))[0])

    return [of(ids) for ids in track(texts, f"inputs of {bits} bits", len(texts))]


def _distance(exact: Sequence[np.ndarray], rounded: Sequence[np.ndarray]) -> dict[str, float]:
    """Of the second to the first: mean and median KL divergence in nats, and the share of equal likeliest tokens."""
    common = min(exact[0].shape[1], rounded[0].shape[1])  # ids: our table is padded
    log_p = functools.partial(scipy.special.log_softmax, axis=-1)
    pairs = [
        (log_p(a[:, :common].astype(np.float64)), log_p(b[:, :common].astype(np.float64)))
        for a, b in zip(exact, rounded, strict=True)
    ]
    kl = np.concatenate([(np.exp(a) * (a - b)).sum(-1) for a, b in pairs])
    same = np.concatenate([a.argmax(-1) == b.argmax(-1) for a, b in pairs])
    return {
        "kl": float(f"{kl.mean():.2g}"),
        "kl_median": float(f"{np.median(kl):.2g}"),
        "same_token": round(float(same.mean()), 3),
    }
