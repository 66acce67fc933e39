"""Small GGUF files of whole models: random weights with a small tokenizer, plain or in blocks."""

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np

from pasta_jax.files.gguf import FORMATS
from pasta_jax.models.config import PRESETS, Rope
from pasta_jax.models.parameters import unpack_layer
from pasta_jax.weights import families
from pasta_jax.weights.family import FIELD_NAMES, GGUF, OPTIONS
from tests.helpers.gguf_writer import write_gguf
from tests.helpers.models import random_params
from tests.helpers.tiny_tokenizers import (
    SMOLLM2_SPECIALS,
    bpe_metadata,
    sentencepiece_metadata,
    train_bpe,
    train_sentencepiece,
)

TOY = PRESETS["toy"]
LLAMA = dataclasses.replace(
    TOY, scaled_embed=False, post_norms=False, qk_norm=False, window=None, global_every=1, local_rope=None,
    attention_cap=None, logit_cap=None, activation="silu", context=64, norm_eps=1e-5,
)  # fmt: skip
QWEN2 = dataclasses.replace(LLAMA, qkv_bias=True)
GEMMA3 = dataclasses.replace(
    TOY, local_rope=Rope(10_000.0), rope=Rope(1e6), global_every=6, attention_cap=None, logit_cap=None, context=64
)


PAIRS = ("llama", "smollm3", "granite", "mistral3")  # whose ropes rotate neighbours in such files


@functools.cache
def tokenizer_metadata(kind: str) -> dict:
    if not kind.startswith("gemma"):
        return bpe_metadata(train_bpe(SMOLLM2_SPECIALS), "smollm")
    return sentencepiece_metadata(train_sentencepiece())


def gguf_bytes(
    kind: str, config, seed: int = 0, drop: str = "", formats: Mapping[str, str] | None = None, **metadata
) -> tuple[bytes, dict]:
    """A GGUF file of random weights, and our parameters for it.

    `formats`: of tensors by the last part of their names, as `attn_q`; these hold random blocks, and others float32.
    """
    words = tokenizer_metadata(kind)
    config = dataclasses.replace(config, vocab=len(words["tokenizer.ggml.tokens"]))
    params, family = random_params(config, seed), families.of_config(config)
    tensors = {"token_embd.weight": params["embed"], "output_norm.weight": params["final_norm"]["weight"]}
    tensors |= {} if config.tied_head else {"output.weight": params["head"]}
    plain = Rope(config.rope.base).frequencies(int(config.head_dim * config.rope.share))
    if config.rope.llama3 is not None:
        tensors["rope_freqs.weight"] = (plain / config.rope.frequencies(config.head_dim)).astype(np.float32)
    if config.rope.divisors is not None:
        for which in ("short", "long"):
            tensors[f"rope_factors_{which}.weight"] = np.float32(config.rope.divisors)
    if config.rope.of_pairs:
        moving = config.rope.frequencies(config.global_head_dim)
        tensors["rope_freqs.weight"] = np.float32([1.0 if one else 1e30 for one in moving])
    for name in ("layer_embed", "layer_projection", "layer_norm") if config.layer_embed else ():
        leaf = params[name]
        tensors[family.tensor(GGUF, name)] = next(iter(leaf.values())) if isinstance(leaf, dict) else leaf
    for l, layer in enumerate(params["layers"]):
        arrays = unpack_layer(layer, config.of_layer(l))
        for name in {"q", "k", "q_bias", "k_bias"} & arrays.keys() if kind in PAIRS else ():  # undo Family.ours
            halves = arrays[name].reshape(-1, 2, config.head_dim // 2, *arrays[name].shape[1:])
            arrays[name] = halves.swapaxes(1, 2).reshape(arrays[name].shape)
        for name, array in family.stored(GGUF, arrays).items():
            tensors[family.tensor(GGUF, name, l)] = array
    if config.rope.yarn is not None:
        metadata[f"{kind}.rope.scaling.type"] = "yarn"
        metadata[f"{kind}.rope.scaling.factor"] = np.float32(config.rope.yarn.factor)
        metadata[f"{kind}.rope.scaling.original_context_length"] = config.rope.yarn.context
    header = {
        "general.architecture": kind,
        f"{kind}.block_count": config.layers,
        f"{kind}.context_length": config.context,
        f"{kind}.embedding_length": config.embed,
        f"{kind}.feed_forward_length": config.ff,
        f"{kind}.expert_feed_forward_length": config.ff,
        f"{kind}.attention.head_count": config.heads,
        f"{kind}.attention.head_count_kv": config.kv_heads,
        f"{kind}.attention.key_length": config.head_dim,
        f"{kind}.attention.layer_norm_rms_epsilon": np.float32(config.norm_eps),
        f"{kind}.rope.freq_base": np.float32(config.rope.base),
        f"{kind}.rope.dimension_count": int(config.head_dim * config.rope.share),
    }
    if config.rope.divisors is not None and config.rope.amplitude != 1.0:
        header[f"{kind}.rope.scaling.attn_factor"] = np.float32(config.rope.amplitude)
    if config.layer_embed:
        widths = [config.of_layer(l).ff for l in range(config.layers)]
        header |= {
            f"{kind}.feed_forward_length": np.array(widths, "<i4"),
            f"{kind}.attention.key_length": config.global_head_dim,
            f"{kind}.attention.value_length": config.global_head_dim,
            f"{kind}.attention.key_length_swa": config.head_dim,
            f"{kind}.attention.value_length_swa": config.head_dim,
            f"{kind}.embedding_length_per_layer_input": config.layer_embed,
            f"{kind}.rope.dimension_count": config.global_head_dim,
            f"{kind}.rope.dimension_count_swa": config.head_dim,
            f"{kind}.rope.freq_base_swa": np.float32(config.local_rope.base),
        }
    if kind in ("gemma4", "olmo2") and config.window is not None:
        local = [config.is_local(l) for l in range(config.layers)]
        header[f"{kind}.attention.sliding_window_pattern"] = np.array(local)
    if kind == "mistral3":
        header |= {
            f"{kind}.rope.scaling.yarn_log_multiplier": np.float32(1),
            f"{kind}.attention.temperature_scale": np.float32(0.1),
        }
    for name in OPTIONS.keys() & family.options:
        value, key = getattr(config, name), FIELD_NAMES[name][GGUF]
        if value is not None and key is not None:
            header[f"{kind}.{key}"] = value if isinstance(value, int) else np.float32(value)
    rng, stored = np.random.default_rng(seed), {}
    for name, array in tensors.items():
        if name == f"{drop}.weight":
            continue
        format, data = (formats or {}).get(name.split(".")[-2], "F32"), np.ascontiguousarray(array)
        data = data.tobytes() if format == "F32" else random_blocks(rng, format, array.size).tobytes()
        stored[name] = (array.shape, format, data)
    return write_gguf(header | words | metadata, stored), params


HALVES = dict.fromkeys(("Q4_0", "Q5_0", "Q8_0"), (0,)) | dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2))
HALVES["Q6_K"] = (208,)


def random_blocks(rng: np.random.Generator, format: str, values: int) -> np.ndarray:
    """Bytes of a tensor: random ones, but for the numbers of 16 bits, which stand at `HALVES`; weights are below 1."""
    about = next(one for one in FORMATS.values() if one.name == format)
    stored = rng.integers(0, 256, (values // about.values, about.bytes)).astype(np.uint8)
    size = {"Q4_K": 1e-4, "Q5_K": 1e-4, "Q6_K": 2e-5}.get(format, 4e-4 if format == "Q8_0" else 5e-3)
    for place in HALVES[format]:
        halves = (size * rng.standard_normal(len(stored))).astype(np.float16)
        stored[:, place : place + 2] = halves.view(np.uint8).reshape(-1, 2)
    return stored.reshape(-1)
