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
from pasta_jax.models.parameters import packed_shapes, plain_shapes
from pasta_jax.tokenizers.tokenizer import load_tokenizer
from pasta_jax.weights import adapter as lora
from pasta_jax.weights import cache as converted
from pasta_jax.weights import config_file, huggingface, load
from tests.fuzz.mutations import Mutator
from tests.fuzz.run import Input
from tests.fuzz.tokenizer_files import use
from tests.helpers.families import VARIANTS
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


def gguf(folder: Path) -> list[Input]:
    """The metadata, tensors, and bytes of a GGUF file."""
    path = folder / "model.gguf"
    words = [(SMOLLM2_SPECIALS, "smollm"), (LLAMA3_SPECIALS, "llama-bpe")]
    bases = [bpe_metadata(train_bpe(specials), name) for specials, name in words]
    bases.append(sentencepiece_metadata(train_sentencepiece()))

    def change(by: Mutator, content: bytes) -> bytes:
        path.write_bytes(content)
        file = GGUF.open(path)
        tensors = {name: (info.shape, "F32", file.read(name).tobytes()) for name, info in file.tensors.items()}
        kinds = {int: np.uint32, float: np.float32, bool: np.bool_}
        metadata = {key: kinds[type(v)](v) if type(v) in kinds else v for key, v in file.metadata.items()}
        for _ in range(by.choice((1, 1, 2, 4))):
            change_gguf(by, metadata, tensors)
        return write_gguf(metadata, tensors)

    def read() -> None:
        files = load.open_files(path)
        files.read(blocks=False, deferred=False)
        use(files.tokenizer)

    return [Input(path, gguf_model(base), read, change) for base in bases]


def change_gguf(by: Mutator, metadata: dict[str, Any], tensors: dict[str, Any]) -> None:
    """Another architecture, other settings of it, another tensor, or any value."""
    key, name = by.choice(list(metadata)), by.choice(list(tensors))
    match by.randrange(6):
        case 0:
            arch = by.choice(("gemma", "gemma2", "gemma3", "llama", "qwen2", ""))
            for old in [old for old in metadata if old.partition(".")[0] in ("llama", "gemma3")]:
                metadata[f"{arch}.{old.partition('.')[2]}"] = metadata.pop(old)
            metadata["general.architecture"] = arch
        case 1:
            names = ("rope.freq_base", "rope.scaling.factor", "rope.scaling.type", "attention.key_length")
            names += ("attention.head_count_kv", "attention.sliding_window", "attn_logit_softcapping")
            metadata[f"llama.{by.choice(names)}"] = changed_gguf(by, 1)
        case 2:
            metadata["general.alignment"] = by.choice((0, 1, 3, 2**31, np.float32(32), "32"))
        case 3:
            shape, kind, data = tensors.pop(name)
            shapes = shape[::-1], (0, *shape[1:]), (2**40, *shape[1:]), (*shape, 1, 1, 1), shape
            other = by.choice(shapes), by.choice((kind, kind, "Q4_0", "F16", "Q2_K", "BF16"))
            if by.often(0.8):
                tensors[name] = *other, by.choice((data, data[: len(data) // 2]))
        case 4:
            del metadata[key]
        case _:
            metadata[key] = changed_gguf(by, metadata[key])


def changed_gguf(by: Mutator, value: Any) -> Any:
    """A value of metadata changed as in JSON, in a type that such a file can hold."""
    plain = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    changed = by.tree(plain)
    if isinstance(changed, str):
        return changed.encode("utf-8", "ignore").decode()
    if isinstance(changed, list) and changed and all(isinstance(one, str) for one in changed):
        return [one.encode("utf-8", "ignore").decode() for one in changed]
    types = ("u1", "<i2", "<u4", "<i4", "<i8", "<u8", "<f4", "<f8", "?")
    numbers = [one for one in (changed if isinstance(changed, list) else [changed]) if isinstance(one, int | float)]
    with np.errstate(all="ignore"):
        array = np.array(numbers, np.float64).astype(by.choice((getattr(value, "dtype", np.dtype("<u4")).str, *types)))
    return array if isinstance(changed, list) or not len(array) else array[0]


def safetensors(folder: Path) -> list[Input]:
    """The header and bytes of model.safetensors, of an adapter, and of the cache of converted weights."""
    params = random_params(TINY, 1)
    model, base = folder / "model", tiny_model()
    model.mkdir()
    (model / "tokenizer.json").write_text(train_bpe(SMOLLM2_SPECIALS))
    rows = load_tokenizer(model / "tokenizer.json").model_vocab
    shape = dataclasses.replace(TINY, vocab=rows, activation="silu")
    huggingface.write_model(model, random_params(shape, 1), shape)
    adapter, about = folder / "adapter" / lora.WEIGHTS, lora.AdapterSettings(2, 4.0)
    new = lora.new_adapter(jax.tree.map(jnp.asarray, params), about, base.tokenizer.tags, 0)
    lora.save_adapter(adapter.parent, new, base, lora.describe(base, about, PREDICTED))
    cached = folder / "cached.safetensors"
    converted.save(cached, TINY, params)
    reads = {
        model / "model.safetensors": lambda: load.open_files(model).read(blocks=False, deferred=False),
        adapter: lambda: lora.load_adapter(adapter.parent, base),
        cached: lambda: converted.load(cached),
    }
    return [Input(path, path.read_bytes(), read, change_header) for path, read in reads.items()]


def change_header(by: Mutator, content: bytes) -> bytes:
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    described = [key for key in ("about", "config") if key in header.get("__metadata__", {})]
    if described and by.often(0.6):
        metadata = header["__metadata__"]
        metadata[described[0]] = by.json(json.loads(metadata[described[0]])).decode("utf-8", "ignore")
    else:
        header = by.tree(header)
    data = json.dumps(header).encode()
    return struct.pack("<Q", len(data)) + data + content[8 + size :]


def config_json(folder: Path) -> list[Input]:
    """config.json of a model folder, and what is computed from it before any tensor is read."""
    (folder / "tokenizer.json").write_text(train_bpe(SMOLLM2_SPECIALS))
    valid = [config_file.config_to_json(shape, None) for shape in VARIANTS.values()]
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 128
    valid.append(valid[3] | {"rope_parameters": None, "rope_theta": 5e5, "rope_scaling": scaling})
    valid.append({"model_type": "gemma3", "text_config": valid[2], "pasta_jax": {"tags_base": 420}})
    valid.append(config_file.config_to_json(TINY, config_file.TagRecord(256, PREDICTED)))

    def read() -> None:
        _, config, _ = config_file.read_config(folder)
        plain_shapes(config)
        packed_shapes(config)
        config.rope.frequencies(config.head_dim)
        assert [config.is_local(layer) for layer in range(config.layers)]
        assert config.score_scale > 0

    return [Input(folder / "config.json", one, read) for one in valid]
