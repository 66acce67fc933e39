"""Doors of models: GGUF, safetensors, adapters, the cache of converted weights, config.json."""

import dataclasses
import json
import struct
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.files.gguf import GGUF
from pasta_jax.lang.structure import PREDICTED
from pasta_jax.models.parameters import plain_shapes
from pasta_jax.tokenizers.tokenizer import load_tokenizer
from pasta_jax.weights import adapter as lora
from pasta_jax.weights import cache as converted
from pasta_jax.weights import config_file, huggingface, load
from tests.fuzz.mutations import Mutator, Unchanged
from tests.fuzz.run import Read
from tests.fuzz.tokenizer_files import use
from tests.helpers.gguf_writer import write_gguf
from tests.helpers.models import TINY, random_params
from tests.helpers.tiny_tokenizers import (
    LLAMA3_SPECIALS,
    SMOLLM2_SPECIALS,
    bpe_metadata,
    gguf_model,
    sentencepiece_metadata,
    train_bpe,
    train_sentencepiece,
)
from tests.helpers.traces import tiny_model

GEMMA3 = {
    "model_type": "gemma3_text",
    "vocab_size": 490,
    "num_hidden_layers": 3,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "sliding_window": 16,
    "query_pre_attn_scalar": 4,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
LLAMA = {
    "model_type": "llama",
    "vocab_size": 512,
    "num_hidden_layers": 1,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "rope_theta": 5e5,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
}
GEMMA2 = GEMMA3 | {
    "model_type": "gemma2",
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "rope_parameters": None,
    "layer_types": None,
}
WRAPPED = {"model_type": "gemma3", "text_config": GEMMA3, "pasta_jax": {"tags_base": 420}}
_NUMBERS = ("u1", "<i2", "<u4", "<i4", "<i8", "<u8", "<f4", "<f8", "?")


def gguf(folder: Path):
    """The metadata, tensors, and bytes of a GGUF file."""
    bases = [
        bpe_metadata(train_bpe(SMOLLM2_SPECIALS), "smollm"),
        sentencepiece_metadata(train_sentencepiece()),
        bpe_metadata(train_bpe(LLAMA3_SPECIALS), "llama-bpe"),
    ]
    files = [_parts(folder / "valid.gguf", gguf_model(base)) for base in bases]
    path = folder / "model.gguf"

    def attempt(by: Unchanged) -> Read:
        metadata, tensors = by.pick(files)
        metadata, tensors = dict(metadata), dict(tensors)
        if isinstance(by, Mutator) and by.rng.random() < 0.8:
            for _ in range(by.pick((1, 1, 2, 4))):
                _change_gguf(by, metadata, tensors)
        data = write_gguf(metadata, tensors)
        path.write_bytes(by.raw(data) if isinstance(by, Mutator) and by.rng.random() < 0.3 else data)

        def read() -> None:
            tokenizer = load_tokenizer(path)
            load.convert_gguf(path, tokenizer)
            use(tokenizer)

        return read

    return attempt


def _parts(path: Path, data: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metadata and tensors of a GGUF file as write_gguf takes them."""
    path.write_bytes(data)
    gguf = GGUF.open(path)
    tensors = {name: (info.shape, "F32", gguf.read(name).tobytes()) for name, info in gguf.tensors.items()}
    kinds = {int: np.uint32, float: np.float32, bool: np.bool_}
    metadata = {key: kinds[type(v)](v) if type(v) in kinds else v for key, v in gguf.metadata.items()}
    return metadata, tensors


def _change_gguf(by: Mutator, metadata: dict[str, Any], tensors: dict[str, Any]) -> None:
    key = by.pick(list(metadata))
    value = metadata[key]
    match by.rng.randrange(10):
        case 0:
            del metadata[key]
        case 1:
            name = by.pick(list(tensors))
            shape, kind, data = tensors[name]
            tensors[name] = by.pick(
                (
                    (shape[::-1], kind, data),
                    ((0, *shape[1:]), kind, b""),
                    (shape, by.pick(("Q4_0", "F16", "Q2_K", "BF16")), data),
                    ((2**40, *shape[1:]), kind, data),
                    ((*shape, 1, 1, 1), kind, data),
                    (shape, kind, data[: len(data) // 2]),
                )
            )
        case 2:
            tensors.pop(by.pick(list(tensors)))
        case 3 if isinstance(value, np.ndarray) and value.size:
            changed = value.copy()
            with np.errstate(all="ignore"):
                changed[by.rng.randrange(value.size)] = by.pick((0, 1, 3, 6, 255, -1, 2**31 - 1))
                if value.dtype.kind == "f":
                    changed[by.rng.randrange(value.size)] = by.pick((np.nan, np.inf, -np.inf, 1e30))
            metadata[key] = by.pick((changed, changed[:-1], changed.astype("<f8"), changed.astype("?")))
        case 4 if isinstance(value, list) and value:
            changed = list(value)
            changed[by.rng.randrange(len(value))] = by.pick(
                ("", " ", "a", value[0], "\0", "<0xZZ>", "<0x41>", "x" * 10_000)
            )
            metadata[key] = by.pick((changed, changed[:-1], [*changed, "x"], []))
        case 5:
            metadata["general.alignment"] = by.pick((0, 1, 3, 2**31, np.float32(32), "32"))
        case 6:
            arch = by.pick(("gemma", "gemma2", "gemma3", "llama", "qwen2", ""))
            old = metadata.get("general.architecture", "llama")
            for name in [name for name in metadata if isinstance(old, str) and name.startswith(f"{old}.")]:
                metadata[f"{arch}.{name.partition('.')[2]}"] = metadata.pop(name)
            metadata["general.architecture"] = arch
        case 7:
            names = ("rope.freq_base", "rope.scaling.factor", "rope.scaling.type", "attention.key_length")
            names += ("attention.head_count_kv", "attention.sliding_window", "attn_logit_softcapping")
            metadata[f"llama.{by.pick(names)}"] = _strange_gguf(by)
        case _:
            metadata[key] = _strange_gguf(by)


def _strange_gguf(by: Mutator) -> Any:
    kind = np.dtype(by.pick(_NUMBERS))
    with np.errstate(all="ignore"):
        number = np.float64(by.pick((0, 1, -1, 2, 3, 8, 255, 65_535, 2**31, 1e19, np.nan, np.inf))).astype(kind)
    return by.pick(
        (number, np.array([number] * by.pick((0, 1, 3)), kind), "", "linear", "x\ny", [], ["a"], [""] * 500, 0, 1)
    )


def safetensors(folder: Path):
    """The header and bytes of model.safetensors, of an adapter, and of the cache of converted weights."""
    params = random_params(TINY, 1)
    model, base = folder / "model", tiny_model()
    model.mkdir()
    (model / "tokenizer.json").write_text(train_bpe(SMOLLM2_SPECIALS))
    rows = load_tokenizer(model / "tokenizer.json").model_vocab
    shape = dataclasses.replace(TINY, vocab=rows, activation="silu")
    huggingface.write_model(model, random_params(shape, 1), shape)
    adapter, about = folder / "adapter" / lora.WEIGHTS, lora.AdapterConfig(2, 4.0)
    new = lora.new_adapter(jax.tree.map(jnp.asarray, params), about, base.tokenizer.tags, 0)
    lora.save_adapter(adapter.parent, new, base, lora.describe(base, about, PREDICTED))
    cached = folder / "cached.safetensors"
    converted.save(cached, TINY, params)
    reads = {
        model / "model.safetensors": lambda: load.read_folder(model),
        adapter: lambda: lora.load_adapter(adapter.parent, base),
        cached: lambda: converted.load(cached),
    }
    contents = {path: path.read_bytes() for path in reads}

    def attempt(by: Unchanged) -> Read:
        path = by.pick(list(reads))
        content = contents[path]
        if isinstance(by, Mutator):
            for other, data in contents.items():
                if other != path:
                    other.write_bytes(data)
            content = _changed_header(by, content) if by.rng.random() < 0.6 else by.raw(content)
        path.write_bytes(content)
        return reads[path]

    return attempt


def _changed_header(by: Mutator, content: bytes) -> bytes:
    size = int.from_bytes(content[:8], "little")
    header, body = json.loads(content[8 : 8 + size]), content[8 + size :]
    metadata = header.get("__metadata__", {})
    for key in [key for key in ("about", "config") if key in metadata and by.rng.random() < 0.6]:
        metadata[key] = by.json(json.loads(metadata[key])).decode("utf-8", "ignore")
        header["__metadata__"] = metadata
        break
    else:
        header = by.tree(header)
    data = json.dumps(header).encode()
    return struct.pack("<Q", len(data)) + data + body


def config_json(folder: Path):
    """config.json of a model folder."""
    (folder / "tokenizer.json").write_text(train_bpe(SMOLLM2_SPECIALS))
    valid = [LLAMA, GEMMA3, GEMMA2, WRAPPED, GEMMA3 | {"model_type": "gemma"}]
    valid.append(huggingface.config_to_json(TINY, config_file.TagRecord(256, PREDICTED)))
    path = folder / "config.json"

    def attempt(by: Unchanged) -> Read:
        path.write_bytes(by.json(by.pick(valid)))
        return lambda: _shapes(config_file.read_config(folder)[0])

    return attempt


def _shapes(config) -> None:
    """What is computed from a config before any tensor is read."""
    plain_shapes(config)
    config.rope.frequencies(config.head_dim)
    assert [config.is_local(layer) for layer in range(config.layers)]
    assert config.score_scale > 0
