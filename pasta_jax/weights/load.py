"""Load and export models: weights, configuration, tokenizer, positions; from GGUF files and Hugging Face folders."""

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np

from pasta_jax.errors import PastaError
from pasta_jax.files import fingerprints, hub, packages
from pasta_jax.files.gguf import GGUF
from pasta_jax.lang.tags import NUM_TAGS
from pasta_jax.models.config import PRESETS, TransformerConfig
from pasta_jax.models.parameters import Params, unstack
from pasta_jax.models.tag_rows import initial_tag_rows, put_tag_rows
from pasta_jax.progress import say
from pasta_jax.tokenizers import bpe, spm
from pasta_jax.tokenizers.tokenizer import Tokenizer, in_gguf, load_tokenizer
from pasta_jax.weights import cache, config_file, export, gguf_model, huggingface
from pasta_jax.weights import card as cards
from pasta_jax.weights import family as columns
from pasta_jax.weights.card import Card
from pasta_jax.weights.for_cpu import in_blocks
from pasta_jax.weights.generation_config import PLAIN, read_defaults
from pasta_jax.weights.lazy import Deferred, params_of, read_now
from pasta_jax.weights.model import BLOCKS, Model

_FIRST = re.compile(rb'"prepend_scheme":\s*"first"')
PACKAGED = ("smollm2_135m", "gemma3_270m", "qwen2_5_coder_1_5b")  # presets whose weights a package ships


_SPARE_PIECES = 1024  # that a tokenizer may have beyond the rows of its model's embedding, as for images


def require_named(preset: str, path: str, name: str = "config.model") -> None:
    """Raise if neither a known preset nor a path names a model."""
    if not preset and not path:
        raise PastaError(f"no model named: set --{name}.path=<GGUF file or Hugging Face folder>")
    if preset and preset not in PRESETS:
        raise PastaError(f"unknown model preset {preset!r}; choose one of {', '.join(PRESETS)}")


def read_model(preset: str, path: str, deferred: bool = False, blocks: bool = False) -> Model:
    """The model at `path`, or with an empty path the preset that a package ships.

    A path is that of a GGUF file or a Hugging Face folder, or a folder's id on the Hub.

    The weights are float32 host arrays, unrolled; `deferred` ones are read when they are placed. With `blocks`, those
    of a quantised GGUF file are as the file holds them, in the layout to decode with. With a path, the preset is what
    the file must hold; an empty preset accepts any model.
    """
    require_named(preset, path)
    if not path and preset not in PACKAGED:
        raise PastaError(
            f"model {preset}: no package ships its weights; set --config.model.path=<GGUF file or Hugging Face folder>"
        )
    source = weights_at(path) if path else packages.path(preset)
    files = open_files(source)
    if preset and (different := difference(files.config, PRESETS[preset])):
        raise PastaError(f"{source}: not a {preset} ({different}); choose another preset")
    params, fingerprint = weights_of(files, blocks, deferred)
    defaults = read_defaults(source) if source.is_dir() else None
    name = preset or (source.stem if source.is_file() else Path(path).name)
    origin = path and (path if hub.is_id(path) else str(source.absolute()))
    positions = files.record and files.record.positions
    return Model(name, files.config, params, files.tokenizer, positions, fingerprint, defaults or PLAIN, origin)


def weights_at(path: str) -> Path:
    """The folder or the GGUF file that a config names, or the id of one on the Hub."""
    source = in_run(hub.local(path), "model", "config.json")
    if not source.exists():
        use = "use a GGUF file, a folder with config.json and *.safetensors, or the workdir of launch.sft"
        raise PastaError(f"{source}: not found; {use}")
    return source


def in_run(folder: Path, part: str, file: str) -> Path:
    """The folder itself, or the `part` with that file in the folder of a training run."""
    of_run = (folder / part / file).is_file() and not any(folder.glob("*.safetensors"))
    return folder / part if of_run else folder


def difference(config: TransformerConfig, preset: TransformerConfig) -> str:
    """The first field in which a file differs from its preset; empty if there is none.

    Vocabulary rows, which tags and padding change, and the stated context may differ, and so may what other files of
    the same model state otherwise: a head of its own that equals the embedding, and how scores are scaled.
    """
    free = ("vocab", "context", "tied_head", "query_scalar", "attention_scale")
    names = [field.name for field in dataclasses.fields(config) if field.compare and field.name not in free]
    for name in (*names, "score_scale"):
        actual, expected = getattr(config, name), getattr(preset, name)
        if actual != expected:
            return f"{name} is {actual}, not {expected}"
    return ""


@dataclasses.dataclass(frozen=True)
class Files:
    """A model's files, each opened once; of the weights, nothing is read yet."""

    tensors: GGUF | huggingface.Files
    family: columns.Family
    config: TransformerConfig
    tokenizer: Tokenizer
    params: Params = dataclasses.field(repr=False)  # unrolled, to be read
    record: config_file.TagRecord | None  # of the tags' rows in them; None: these are fresh

    def read(self, blocks: bool, deferred: bool) -> Params:
        """The weights in float32, perhaps to be read when they are placed, or in blocks, of which few are decoded."""
        if blocks:
            tables = [name for name in ("embed", "head") if name in self.params]
            rows = {name: initial_tag_rows(self.params[name], self.tokenizer) for name in tables}
            return in_blocks(self.tensors, self.family, self.config, self.params, self.tokenizer.tags, rows)
        params = self.params if deferred else read_now(self.params)
        return params if self.record else put_tag_rows(params, self.tokenizer)


def open_files(source: Path) -> Files:
    """A GGUF file, or a Hugging Face folder; a model of another tool gets fresh rows for the tags."""
    if source.is_dir():
        column, (family, config, record) = columns.TRANSFORMERS, config_file.read_config(source)
        tokenizer, tensors = load_tokenizer(tokenizer_file(source)), huggingface.Files(source)
        if config.tied_head and tensors.differ(*(family.tensor(column, name) for name in ("embed", "head"))):
            config = dataclasses.replace(config, tied_head=False)  # as transformers does, whatever config.json says
    else:
        column, record, tensors = columns.GGUF, None, GGUF.open(source)
        (family, config), tokenizer = gguf_model.read_config(tensors), in_gguf(tensors)
    vocab = rows_for(config, tokenizer, source)
    params = params_of(tensors, column, family, config, vocab)
    is_ours = record is not None and record.tags_base == tokenizer.tags.base
    config = dataclasses.replace(config, vocab=vocab)
    return Files(tensors, family, config, tokenizer, params, record if is_ours else None)


def weights_of(files: Files, blocks: bool, deferred: bool) -> tuple[Params, str]:
    """The weights, and their fingerprint. A GGUF file is converted once; later calls read the cache.

    Blocks are read where they are placed; deferred weights that no cache holds, from the file itself.
    """
    is_gguf_file = isinstance(files.tensors, GGUF)
    blocks = blocks and is_gguf_file
    cached = cache.path_of(files.tensors.path, BLOCKS if blocks else "") if is_gguf_file else None
    kept = cached and cache.load(cached, deferred or blocks)
    _, params, fingerprint = kept or (None, files.read(blocks, deferred), "")
    of = files.params if blocks else params
    fingerprint = fingerprint or fingerprint_of(files.config, of, files.tokenizer)
    if cached and not kept and (blocks or not deferred):
        try:
            cache.save(cached, files.config, params, fingerprint)
        except PastaError as error:
            say(f"the conversion is not kept for later runs: {error}, or set PASTA_JAX_CACHE to one")
    return params, fingerprint


def rows_for(config: TransformerConfig, tokenizer: Tokenizer, path: Path) -> int:
    """Rows of the embedding for all ids of the tokenizer, tags included."""
    if tokenizer.vocab_size > config.vocab + _SPARE_PIECES:
        raise PastaError(
            f"{path}: its tokenizer has {tokenizer.vocab_size:,} pieces, its embedding {config.vocab:,} rows; "
            "use the tokenizer file that came with the model"
        )
    return max(config.vocab, tokenizer.model_vocab)


def tokenizer_file(folder: Path) -> Path:
    """The tokenizer in a Hugging Face folder; a tokenizer.model lacks what was added to it later.

    It doesn't say either that a blank stands before a text's first piece alone, not after control pieces, as Mistral's.
    """
    older, newer = folder / "tokenizer.model", folder / "tokenizer.json"
    if not newer.is_file():
        if not older.is_file():
            raise PastaError(f"{folder}: neither tokenizer.model nor tokenizer.json; copy the model's tokenizer there")
        return older  # which spm.py reads with an added_tokens.json beside it
    is_first = _FIRST.search(newer.read_bytes()) is not None
    if not older.is_file() or is_first or (folder / spm.ADDED).is_file():
        return newer
    return newer if bpe.last_added(newer) >= spm.count(older) else older


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
