"""Load and export models: weights, configuration, tokenizer, positions; from GGUF files and Hugging Face folders."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax.typing import DTypeLike

from pasta_jax.errors import PastaError
from pasta_jax.files import fingerprints, hub, packages
from pasta_jax.files.gguf import GGUF
from pasta_jax.lang.structure import Positions
from pasta_jax.lang.tags import NUM_TAGS
from pasta_jax.models.config import PRESETS, TransformerConfig
from pasta_jax.models.parameters import Params, unstack
from pasta_jax.models.tag_rows import initial_tag_rows, put_tag_rows
from pasta_jax.tokenizers.tokenizer import Tokenizer, load_tokenizer
from pasta_jax.weights import cache as converted
from pasta_jax.weights import card as cards
from pasta_jax.weights import config_file, export, gguf_model, huggingface
from pasta_jax.weights import family as columns
from pasta_jax.weights.card import Card
from pasta_jax.weights.for_cpu import in_blocks
from pasta_jax.weights.generation_config import PLAIN, read_defaults
from pasta_jax.weights.lazy import Deferred, params_of, read_now
from pasta_jax.weights.model import BLOCKS, Model
from pasta_jax.weights.prepare import decodes_codes, on_device

PACKAGED = ("smollm2_135m", "gemma3_270m", "qwen2_5_coder_1_5b")  # presets whose weights a package ships


_SPARE_PIECES = 1024  # that a tokenizer may have beyond the rows of its model's embedding, as for images
_WHAT_TO_USE = "use a GGUF file, a folder with config.json and *.safetensors, or the workdir of launch.sft"


def load_model(
    preset: str, path: str, dtype: DTypeLike | None = None, stacked: bool | None = None, only_decoding: bool = False
) -> Model:
    """`read_model`, then `on_device`."""
    blocks = dtype == BLOCKS and decodes_codes(BLOCKS, only_decoding)
    model = read_model(preset, path, blocks=blocks)
    return on_device(model, None if dtype == BLOCKS else dtype, stacked, only_decoding)


def read_model(preset: str, path: str, deferred: bool = False, blocks: bool = False) -> Model:
    """The model at `path`, or with an empty path the preset that a package ships.

    A path is that of a GGUF file or a Hugging Face folder, or a folder's id on the Hub.

    The weights are float32 host arrays, unrolled; `deferred` ones are read when they are placed. With `blocks`, those
    of a quantised GGUF file are as the file holds them, in the layout to decode with. With a path, the preset is what
    the file must hold; an empty preset accepts any model.
    """
    if not preset and not path:
        raise PastaError("no model named: set --config.model.path=<GGUF file or Hugging Face folder>")
    if preset and preset not in PRESETS:
        raise PastaError(f"unknown model preset {preset!r}; choose one of {', '.join(PRESETS)}")
    if not path and preset not in PACKAGED:
        raise PastaError(
            f"model {preset}: no package ships its weights; set --config.model.path=<GGUF file or Hugging Face folder>"
        )
    source = in_run(hub.local(path), "model", "config.json") if path else packages.path(preset)
    if not source.exists():
        raise PastaError(f"{source}: not found; {_WHAT_TO_USE}")
    if source.is_file() and not is_gguf(source):
        raise PastaError(f"{source}: not a GGUF file; {_WHAT_TO_USE}")
    positions, fingerprint = None, ""
    if source.is_dir():
        config, params, tokenizer, positions = read_folder(source)
        params = params if deferred else read_now(params)
    else:
        config, params, fingerprint, tokenizer = read_gguf(source, BLOCKS if blocks else "", deferred)
    if preset and (different := difference(config, PRESETS[preset])):
        raise PastaError(f"{source}: not a {preset} ({different}); choose another preset")
    fingerprint = fingerprint or fingerprint_of(config, params, tokenizer)
    defaults = read_defaults(source) if source.is_dir() else None
    name = preset or (source.stem if source.is_file() else Path(path).name)
    origin = path and (path if hub.is_id(path) else str(source.absolute()))
    return Model(name, config, params, tokenizer, positions, fingerprint, defaults or PLAIN, origin)


def in_run(folder: Path, part: str, file: str) -> Path:
    """The folder itself, or the `part` with that file in the folder of a training run."""
    of_run = (folder / part / file).is_file() and not any(folder.glob("*.safetensors"))
    return folder / part if of_run else folder


def is_gguf(path: Path) -> bool:
    """Whether a file begins as GGUF files do."""
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def difference(config: TransformerConfig, preset: TransformerConfig) -> str:
    """The first field in which a file differs from its preset; empty if there is none.

    Vocabulary rows, which tags and padding change, and the stated context may differ.
    """
    for field in dataclasses.fields(config):
        actual, expected = getattr(config, field.name), getattr(preset, field.name)
        if field.compare and field.name not in ("vocab", "context") and actual != expected:
            return f"{field.name} is {actual}, not {expected}"
    return ""


def read_gguf(path: Path, form: str = "", deferred: bool = False) -> tuple[TransformerConfig, Params, str, Tokenizer]:
    """A GGUF file, with fresh rows for the tags, or in the form BLOCKS laid out to decode with, and its fingerprint.

    Only the first call converts it; later ones read the cache; blocks are read where they are placed. Deferred weights
    that no cache holds are read from the file itself.
    """
    tokenizer = load_tokenizer(path)
    cached = converted.path_of(path, form)
    kept = converted.load(cached, deferred or bool(form))
    if kept is None:
        kept = blocks_of(path, tokenizer) if form else (*convert_gguf(path, tokenizer, deferred), "")
        if deferred and not form:
            return *kept, tokenizer
        converted.save(cached, *kept)
    return *kept, tokenizer


def blocks_of(path: Path, tokenizer: Tokenizer) -> tuple[TransformerConfig, Params, str]:
    """A GGUF file with its own blocks in the layout to decode with, and its fingerprint. Few rows are dequantised."""
    gguf = GGUF.open(path)
    family, config = gguf_model.read_config(gguf)
    vocab = rows_for(config, tokenizer, path)
    params = params_of(gguf, columns.GGUF, family, config, vocab)
    config = dataclasses.replace(config, vocab=vocab)
    tag_rows = {name: initial_tag_rows(params[name], tokenizer) for name in ("embed", "head") if name in params}
    blocks = in_blocks(gguf, family, config, params, tokenizer.tags, tag_rows)
    return config, blocks, fingerprint_of(config, params, tokenizer)


def convert_gguf(path: Path, tokenizer: Tokenizer, deferred: bool = False) -> tuple[TransformerConfig, Params]:
    """The weights of a GGUF file without the cache, perhaps to be read later."""
    gguf = GGUF.open(path)
    family, config = gguf_model.read_config(gguf)
    vocab = rows_for(config, tokenizer, path)
    params = params_of(gguf, columns.GGUF, family, config, vocab)
    params = put_tag_rows(params if deferred else read_now(params), tokenizer)
    return dataclasses.replace(config, vocab=vocab), params


def read_folder(folder: Path) -> tuple[TransformerConfig, Params, Tokenizer, Positions | None]:
    """A Hugging Face folder, its weights to be read; a model of another tool gets fresh rows for the tags."""
    family, config, record = config_file.read_config(folder)
    tokenizer = load_tokenizer(tokenizer_file(folder))
    vocab = rows_for(config, tokenizer, folder)
    params = params_of(huggingface.Files(folder), columns.TRANSFORMERS, family, config, vocab)
    config = dataclasses.replace(config, vocab=vocab)
    if record is not None and record.tags_base == tokenizer.tags.base:
        return config, params, tokenizer, record.positions
    return config, put_tag_rows(params, tokenizer), tokenizer, None


def rows_for(config: TransformerConfig, tokenizer: Tokenizer, path: Path) -> int:
    """Rows of the embedding for all ids of the tokenizer, tags included."""
    if tokenizer.vocab_size > config.vocab + _SPARE_PIECES:
        raise PastaError(
            f"{path}: its tokenizer has {tokenizer.vocab_size:,} pieces, its embedding {config.vocab:,} rows; "
            "use the tokenizer file that came with the model"
        )
    return max(config.vocab, tokenizer.model_vocab)


def tokenizer_file(folder: Path) -> Path:
    """The tokenizer in a Hugging Face folder."""
    for name in ("tokenizer.model", "tokenizer.json"):
        if (folder / name).is_file():
            return folder / name
    raise PastaError(f"{folder}: neither tokenizer.model nor tokenizer.json; copy the model's tokenizer there")


def export_model(model: Model, folder: Path, card: Card | None = None) -> None:
    """Write the model with its tags, positions and card, so that `load_model` and `transformers` can read it."""
    params = unstack(jax.tree.map(np.asarray, model.params))
    record = config_file.TagRecord(model.tokenizer.tags.base, model.positions)
    cards.write(folder, card or Card("model", model.name, model.positions, model.tokenizer.tags.base))
    export.write(folder, model.tokenizer, model.defaults)
    huggingface.write_model(folder, params, model.config, record)


def known(value: Any) -> Any:
    """A configuration as plain data. Fields that models got later count where they are set: no older one changes."""
    if not dataclasses.is_dataclass(value):
        return value
    fields = dataclasses.fields(value)
    return {
        field.name: known(getattr(value, field.name))
        for field in fields
        if not field.metadata.get("later") or getattr(value, field.name) != field.default
    }


def fingerprint_of(config: TransformerConfig, params: Params, tokenizer: Tokenizer) -> str:
    """Fingerprint of a model as an adapter's base: equal on every platform and for every copy of the same weights.

    It covers the architecture and 64 elements of each array of the unrolled host parameters. Rows of the tags, which
    travel with an adapter, and of padding are left out.
    """
    shape = known(config)
    del shape["vocab"], shape["context"], shape["family"]
    tags, samples = tokenizer.tags, 64
    parts = [json.dumps(shape, sort_keys=True)]
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name in ("embed", "head", "layer_embed"):
            end = tokenizer.vocab_size
            rows = end - NUM_TAGS if tags.base < end else end
            width = leaf.shape[1]
            places = np.linspace(0, rows * width - 1, samples, dtype=np.int64)
            row, column = np.divmod(places, width)
            values = leaf[row + NUM_TAGS * (row >= tags.base)][np.arange(samples), column]
            size = rows, width
        else:
            size, inputs = leaf.shape, leaf.shape[-1]
            row, column = np.divmod(np.linspace(0, math.prod(size) - 1, samples, dtype=np.int64), inputs)
            matrix = leaf if isinstance(leaf, Deferred) else leaf.reshape(-1, inputs)
            values = matrix[row][np.arange(samples), column]
        parts.append(f"{name} {size} {values.astype(ml_dtypes.bfloat16).tobytes().hex()}")
    return fingerprints.of_texts(parts)
