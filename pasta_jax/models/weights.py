"""Real weights in: a GGUF file (converted once, then read from the cache) or a Hugging Face folder, and a tokenizer."""

import dataclasses
import hashlib
import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from absl import logging
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from pasta_jax import assets, fingerprints
from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import Positions
from pasta_jax.lang.tags import NUM_TAGS
from pasta_jax.models import huggingface
from pasta_jax.models.config import PRESETS, Rope, TransformerConfig
from pasta_jax.models.gguf import GGUF
from pasta_jax.models.large_pages import on_large_pages
from pasta_jax.models.layers import stack, unstack
from pasta_jax.models.layout import Plain, grow_rows, pack_layer, plain_shapes
from pasta_jax.models.tag_rows import put_tag_rows
from pasta_jax.models.tokenizer import Tokenizer, load_tokenizer

CONVERTER = 3  # raise it when the same GGUF would give other parameters

PACKAGED = {"smollm2_135m": assets.smollm2_gguf, "gemma3_270m": assets.gemma3_270m_gguf}

_GGUF_NAMES = {
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "out": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "attn_norm": "attn_norm",
    "mlp_norm": "ffn_norm",
    "post_attn_norm": "post_attention_norm",
    "post_mlp_norm": "post_ffw_norm",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
}
_GLOBAL_EVERY = {"gemma2": 2, "gemma3": 6}  # part of the architecture, not of the file
_QUERY_SCALAR = {("gemma2", 46): 144, ("gemma3", 62): 168}  # the 27B models scale by embed / heads


@dataclasses.dataclass(frozen=True)
class Model:
    """A transformer with its weights and its tokenizer."""

    name: str
    config: TransformerConfig
    params: dict
    tokenizer: Tokenizer
    positions: Positions | None = None  # those it was trained with; None: it was not trained on the tags
    fingerprint: str = ""  # of the weights as loaded (fingerprint_of); empty: not loaded but made here

    @property
    def dtype(self) -> jnp.dtype:
        """What it computes in."""
        return jax.tree.leaves(self.params)[0].dtype


def load_model(preset: str, path: str, dtype=None, stacked: bool | None = None, only_decoding: bool = False) -> Model:
    """The model that `read_model` reads, on the device."""
    return on_device(read_model(preset, path), dtype, stacked, only_decoding)


def read_model(preset: str, path: str) -> Model:
    """The model at `path` (GGUF file or Hugging Face folder), or with an empty path the preset that a package ships.

    The weights are float32 arrays on the host, layers as a tuple. A preset beside a path is what the file must hold;
    an empty preset accepts any model.
    """
    if not preset and not path:
        raise PastaError("no model named: give --config.model.path=<GGUF file or Hugging Face folder>")
    if preset and preset not in PRESETS:
        raise PastaError(f"model preset {preset!r}: there is none of this name; choose one of {', '.join(PRESETS)}")
    if not path and preset not in PACKAGED:
        raise PastaError(
            f"model {preset}: no package ships its weights; give --config.model.path=<GGUF file or Hugging Face folder>"
        )
    source = Path(path) if path else PACKAGED[preset]()
    if not source.exists():
        raise PastaError(f"{source}: not found; give a GGUF file or a folder with config.json and *.safetensors")
    if source.is_file() and not is_gguf(source):
        raise PastaError(f"{source}: not a GGUF file; give a GGUF file or a folder with config.json and *.safetensors")
    positions = None
    if source.is_dir():
        config, params, tokenizer, positions = read_folder(source)
    else:
        config, params, tokenizer = read_gguf(source)
    name = preset or source.stem
    if preset and not same_architecture(config, PRESETS[preset]):
        raise PastaError(
            f"{source}: is not a {preset}: {difference(config, PRESETS[preset])}; choose the preset that fits"
        )
    return Model(name, config, params, tokenizer, positions, fingerprint_of(config, params, tokenizer))


def on_device(model: Model, dtype=None, stacked: bool | None = None, only_decoding: bool = False) -> Model:
    """The model that was read, its weights on the device.

    By default, dtype and layer layout are the platform's: float32 and unrolled on the CPU, bfloat16 and scanned
    elsewhere. A model for decoding alone has its kernels as the platform multiplies a few rows fastest; it can't be
    trained, divided over devices or written.
    """
    return dataclasses.replace(model, params=to_device(model.params, dtype, stacked, only_decoding))


def fingerprint_of(config: TransformerConfig, params: dict, tokenizer: Tokenizer) -> str:
    """Fingerprint of a model as an adapter's base: equal on every platform, and for every copy of the same weights.

    It covers the architecture and a few elements of each array of the host parameters. Rows of the tags, which travel
    with an adapter, and of padding don't count.
    """
    shape = dataclasses.asdict(config)
    del shape["vocab"], shape["context"]
    tags, samples = tokenizer.tags, 64
    parts = [json.dumps(shape, sort_keys=True)]
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name in ("embed", "head"):
            end = tokenizer.vocab_size
            rows = end - NUM_TAGS if tags.base < end else end
            place = np.linspace(0, rows * config.embed - 1, samples, dtype=np.int64)
            row, column = np.divmod(place, config.embed)
            values, size = leaf[row + NUM_TAGS * (row >= tags.base), column], (rows, config.embed)
        else:
            place = np.linspace(0, leaf.size - 1, samples, dtype=np.int64)
            values, size = leaf[np.unravel_index(place, leaf.shape)], leaf.shape
        parts.append(f"{name} {size} {values.astype(ml_dtypes.bfloat16).tobytes().hex()}")
    return fingerprints.of_texts(parts)


def is_gguf(path: Path) -> bool:
    """Whether a file begins as GGUF files do."""
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def same_architecture(config: TransformerConfig, preset: TransformerConfig) -> bool:
    """Equal but for vocabulary rows, which tags and padding change, and the stated context."""
    return dataclasses.replace(config, vocab=preset.vocab, context=preset.context) == preset


def difference(config: TransformerConfig, preset: TransformerConfig) -> str:
    """The first field in which a file differs from its preset."""
    for field in dataclasses.fields(config):
        has, wants = getattr(config, field.name), getattr(preset, field.name)
        if field.name not in ("vocab", "context") and has != wants:
            return f"{field.name} is {has}, not {wants}"
    raise AssertionError("no difference")


def platform_dtype():
    """bfloat16 where it is native; on the CPU it is 4 to 20 times slower than float32."""
    return jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16


def to_device(params: dict, dtype=None, stacked: bool | None = None, only_decoding: bool = False) -> dict:
    """Host parameters (layers as a tuple) as device arrays, layers stacked for scanning or left apart."""
    dtype = platform_dtype() if dtype is None else dtype
    stacked = jax.default_backend() != "cpu" if stacked is None else stacked
    if stacked:
        params = stack(params)
    if jax.default_backend() == "cpu":
        if only_decoding and not stacked:
            params = by_columns(params)
        return on_large_pages(jax.tree.map(lambda leaf: np.asarray(leaf, dtype), params))
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), params)


def by_columns(params: dict) -> dict:
    """Parameters with each kernel [*outputs, in] as `columns` [in, out], and so the head's table.

    On large pages XLA's CPU product of two to eight rows takes a quarter less time so, and that of one row no more.
    """

    def turned(leaves: dict) -> dict:
        if set(leaves) != {"kernel"}:
            return leaves
        kernel = leaves["kernel"]
        return {"columns": kernel.reshape(-1, kernel.shape[-1]).T}

    layers = tuple({name: turned(leaves) for name, leaves in layer.items()} for layer in params["layers"])
    table = "head" if "head" in params else "embed"
    others = {name: leaf for name, leaf in params.items() if name != table}
    return others | {f"{table}_columns": params[table].T, "layers": layers}


def read_folder(folder: Path) -> tuple[TransformerConfig, dict, Tokenizer, Positions | None]:
    """A Hugging Face folder; tags that it has no rows for get fresh ones."""
    config, record = huggingface.read_config(folder)
    tokenizer = load_tokenizer(tokenizer_file(folder))
    params = huggingface.read_params(folder, config, max(config.vocab, tokenizer.model_vocab))
    positions = None
    if record is not None and record.tags_base == tokenizer.tags.base:
        positions = record.positions
    else:
        params = put_tag_rows(params, tokenizer)
    return dataclasses.replace(config, vocab=params["embed"].shape[0]), params, tokenizer, positions


def tokenizer_file(folder: Path) -> Path:
    """The tokenizer in a Hugging Face folder."""
    for name in ("tokenizer.model", "tokenizer.json"):
        if (folder / name).is_file():
            return folder / name
    raise PastaError(f"{folder}: holds neither tokenizer.model nor tokenizer.json; copy the model's tokenizer there")


def export_model(model: Model, folder: Path) -> None:
    """Write the model where `transformers` and `load_model` read it, tags included."""
    params = unstack(jax.tree.map(np.asarray, model.params))
    record = huggingface.TagRecord(model.tokenizer.tags.base, model.positions)
    model.tokenizer.save(folder)
    huggingface.write_model(folder, params, model.config, record)


def read_gguf(path: Path) -> tuple[TransformerConfig, dict, Tokenizer]:
    """A GGUF file; its dequantised weights are kept in the cache, so that only the first start converts."""
    tokenizer = load_tokenizer(path)
    stat = path.stat()
    identity = f"{CONVERTER} {path.resolve()} {stat.st_size} {stat.st_mtime_ns}"
    key = hashlib.sha256(identity.encode()).hexdigest()[:16]
    cached = assets.cache_dir() / "converted" / f"{path.stem}-{key}.safetensors"
    if cached.is_file():
        try:
            return *load_converted(cached), tokenizer
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            logging.warning("%s: not readable (%s); converting again", cached, error)
    gguf = GGUF.open(path)
    config = config_from_gguf(gguf, path)
    params = put_tag_rows(params_from_gguf(gguf, config, path, max(config.vocab, tokenizer.model_vocab)), tokenizer)
    config = dataclasses.replace(config, vocab=params["embed"].shape[0])
    save_converted(cached, config, params)
    return config, params, tokenizer


def config_from_gguf(gguf: GGUF, path: Path) -> TransformerConfig:
    """Translate a GGUF header; architectures this transformer does not do are refused by name."""
    arch = gguf.metadata.get("general.architecture")
    if arch not in ("llama", "gemma", "gemma2", "gemma3"):
        raise PastaError(
            f"{path}: architecture {arch!r} is not supported; supported are llama, gemma, gemma2 and gemma3"
        )
    if "rope_freqs.weight" in gguf.tensors:
        raise PastaError(f"{path}: has its own rope_freqs; use the Hugging Face folder of this model instead")

    def need(key):
        if f"{arch}.{key}" not in gguf.metadata:
            raise PastaError(f"{path}: its header lacks {arch}.{key}; convert the model again")
        return gguf.metadata[f"{arch}.{key}"]

    def perhaps(key, default):
        return gguf.metadata.get(f"{arch}.{key}", default)

    if "token_embd.weight" not in gguf.tensors:
        raise PastaError(f"{path}: no tensor token_embd.weight; convert the model again")
    heads, embed, layers = need("attention.head_count"), need("embedding_length"), need("block_count")
    gemma = arch != "llama"
    scaling = perhaps("rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        raise PastaError(
            f"{path}: rope scaling {scaling!r} is not supported; use the Hugging Face folder of this model instead"
        )
    fields = dict(
        vocab=gguf.tensors["token_embd.weight"].shape[0],
        layers=layers,
        embed=embed,
        ff=need("feed_forward_length"),
        heads=heads,
        kv_heads=perhaps("attention.head_count_kv", heads),
        head_dim=perhaps("attention.key_length", embed // heads),
        context=need("context_length"),
        rope=Rope(float(perhaps("rope.freq_base", 10_000.0)), scale=float(perhaps("rope.scaling.factor", 1.0))),
        norm_eps=round(float(need("attention.layer_norm_rms_epsilon")), 12),  # stored as float32
        activation="gelu" if gemma else "silu",
        tied_head="output.weight" not in gguf.tensors,
        scaled_embed=gemma,
        post_norms=arch in ("gemma2", "gemma3"),
        qk_norm=arch == "gemma3",
    )
    if arch == "gemma2":
        fields |= dict(attention_cap=need("attn_logit_softcapping"), logit_cap=need("final_logit_softcapping"))
    if arch in _GLOBAL_EVERY:
        fields |= dict(
            window=need("attention.sliding_window"),
            global_every=_GLOBAL_EVERY[arch],
            query_scalar=_QUERY_SCALAR.get((arch, layers)),
        )
    if arch == "gemma3":
        fields["local_rope"] = Rope(10_000.0)
    return TransformerConfig(**fields)


def params_from_gguf(gguf: GGUF, config: TransformerConfig, path: Path, vocab: int) -> dict:
    """Our parameter tree as float32 NumPy arrays, the embedding grown to `vocab` rows."""

    def read(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if name not in gguf.tensors:
            raise PastaError(f"{path}: no tensor {name}; the file is incomplete or of another architecture")
        if tuple(gguf.tensors[name].shape) != shape:
            raise PastaError(f"{path}: {name} has shape {gguf.tensors[name].shape}, the header says {shape}")
        return gguf.read(name)

    def layer(l: int) -> Plain:
        plain = {
            name: read(f"blk.{l}.{_GGUF_NAMES[name]}.weight", shape) for name, shape in plain_shapes(config).items()
        }
        if gguf.metadata["general.architecture"] == "llama":  # its q and k rows are interleaved for another rope
            plain["q"], plain["k"] = (by_halves(plain[name], config.head_dim) for name in "qk")
        return plain

    table = (config.vocab, config.embed)
    params = {
        "embed": grow_rows(read("token_embd.weight", table), vocab),
        "final_norm": {"weight": read("output_norm.weight", (config.embed,))},
        "layers": tuple(pack_layer(layer(l), config) for l in range(config.layers)),
    }
    if not config.tied_head:
        params["head"] = grow_rows(read("output.weight", table), vocab)
    return params


def by_halves(matrix: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows of each head from (pair, side) order to (side, pair): rotary positions that turn halves, not neighbours."""
    return matrix.reshape(-1, head_dim // 2, 2, matrix.shape[1]).swapaxes(1, 2).reshape(matrix.shape)


def save_converted(path: Path, config: TransformerConfig, params: dict) -> None:
    """Write converted parameters beside their config, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        flat = {"/".join(names): np.ascontiguousarray(leaf) for names, leaf in flatten(params)}
        save_file(flat, unfinished, metadata={"config": json.dumps(dataclasses.asdict(config))})
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def load_converted(path: Path) -> tuple[TransformerConfig, dict]:
    """Read what `save_converted` wrote."""
    with safe_open(path, framework="numpy") as file:
        raw = json.loads(file.metadata()["config"])
        for name in ("rope", "local_rope"):
            raw[name] = raw[name] and Rope(**raw[name])
        config = TransformerConfig(**raw)
        layers = [{} for _ in range(config.layers)]
        params: dict = {"layers": layers}
        for name in file.keys():  # noqa: SIM118  (a safetensors file is no dict)
            *parents, leaf = name.split("/")
            node = params
            for parent in parents:
                node = node[int(parent)] if node is layers else node.setdefault(parent, {})
            node[leaf] = file.get_tensor(name)
    return config, params | {"layers": tuple(layers)}


def flatten(tree, names: tuple[str, ...] = ()):
    """(path, leaf) of every array in nested dicts and tuples."""
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, tuple) else None
    if children is None:
        yield names, tree
        return
    for name, child in children:
        yield from flatten(child, (*names, str(name)))
