"""From a GGUF file's metadata to its family and our configuration."""

import math
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from pasta_jax.errors import PastaError
from pasta_jax.files.gguf import GGUF as File
from pasta_jax.files.validated import AboveZero, AtLeastZero, Count, Positive
from pasta_jax.models.config import Rope, Size, TransformerConfig
from pasta_jax.weights import families
from pasta_jax.weights.config_file import period
from pasta_jax.weights.family import FIELD_NAMES, GGUF, OPTIONS, WITH_POST_NORMS, Family, stated_in

_AGAIN = "convert the model again"
_KEYS = {
    "ff": "feed_forward_length",
    "causal": "attention.causal",
    "every": "attention.sliding_window_pattern",
    "local_head_dim": "attention.key_length_swa",
    "layer_embed": "embedding_length_per_layer_input",
    "temperature": "attention.temperature_scale",
    "local_base": "rope.freq_base_swa",
    "log_factor": "rope.scaling.yarn_log_multiplier",
    "rope_base": "rope.freq_base",
    "rope_factor": "rope.scaling.factor",
    "older_factor": "rope.scale_linear",
    "scaling": "rope.scaling.type",
    "original": "rope.scaling.original_context_length",
    "amplitude": "rope.scaling.attn_factor",
    "rotated": "rope.dimension_count",
    "fast": "rope.scaling.yarn_beta_fast",
    "slow": "rope.scaling.yarn_beta_slow",
}
_DIVISORS = ("rope_freqs.weight", "rope_factors_short.weight")  # of Llama 3 and Gemma 4, and LongRoPE
_STILL = 1e29  # a divisor of pairs that don't rotate
_LLAMA3_FACTORS = (8.0, 32.0)  # of Llama 3.1, and 3.2


class _Metadata(stated_in(GGUF), frozen=True, kw_only=True, rename=_KEYS):
    """The metadata that we read; those of families.py are under our names."""

    ff: Size | Annotated[tuple[Size, ...], Meta(min_length=1)]  # of every layer, or of each
    causal: bool = True
    every: Positive | tuple[bool, ...] | None = None  # n: every n-th layer is global; or whether each is local
    local_head_dim: Size | None = None
    layer_embed: Count | None = None
    temperature: AtLeastZero = 0.0
    local_base: AboveZero | None = None
    log_factor: AtLeastZero = 0.0
    rope_base: AboveZero = 10_000.0
    rope_factor: AboveZero | None = None
    older_factor: AboveZero = 1.0  # its name in files of 2023
    scaling: str = "linear"
    original: Positive | None = None
    amplitude: AboveZero = 1.0
    rotated: Size | None = None
    fast: AboveZero = 32.0
    slow: AboveZero = 1.0


def read_config(gguf: File) -> tuple[Family, TransformerConfig]:
    """Translate the metadata; architectures that our transformer lacks are refused with an error that names them."""
    path, kind = gguf.path, gguf.metadata.get("general.architecture")
    family = families.of_file(GGUF, kind, path, "architecture")
    embed, head = (family.tensor(GGUF, name) for name in ("embed", "head"))
    if embed not in gguf.tensors:
        raise PastaError(f"{path}: no tensor {embed}; {_AGAIN}")
    if scale := next((name for name in gguf.tensors if name.endswith(".scale")), None):  # beside NVFP4
        raise PastaError(f"{path}: unsupported tensor {scale}; use a file in another number format than NVFP4")
    file = gguf.section(f"{kind}.", _Metadata, ("attention.sliding_window", "expert_count"))
    if not file.causal:
        raise PastaError(
            f"{path}: unsupported metadata {kind}: {_KEYS['causal']}; use a model that reads left to right"
        )
    if file.scaling not in ("none", "linear", "longrope", "yarn"):
        raise PastaError(
            f"{path}: unsupported rope scaling {file.scaling!r}; use the Hugging Face folder of this model instead"
        )
    if file.window is not None and kind == "olmo2":
        family = families.of_kind("olmo3")
    for name in family.required:
        if getattr(file, name) is None:
            raise PastaError(f"{path}: metadata {kind}: {FIELD_NAMES[name][GGUF]}: missing; {_AGAIN}")
    for name in OPTIONS:
        if name not in (*family.options, "expert_ff") and getattr(file, name, None) is not None:
            raise PastaError(f"{path}: unsupported metadata {kind}: {FIELD_NAMES[name][GGUF]}; use a model without")
    fields: dict[str, Any] = dict(
        **_widths(file, family, path),
        vocab=gguf.tensors[embed].shape[0],
        rope=_rope(gguf, family, file),
        norm_eps=round(file.norm_eps, 12),  # stored as float32
        tied_head=head not in gguf.tensors,
    )
    if family.query_scalars:
        fields["query_scalar"] = family.query_scalars.get(file.layers)
    if "window" in family.options:
        fields |= _window(file, family, fields["rope"], path)
    if ("divisors" in fields["rope"] or file.temperature) and file.original is not None:
        fields["context"] = min(file.context, file.original)
    if "layer_embed" in family.options:
        fields |= {"layer_embed": file.layer_embed or None, "global_head_dim": file.head_dim}
        fields["head_dim"] = file.local_head_dim or file.head_dim
    matrices = {"qkv_bias": "q", "out_bias": "out", "mlp_bias": "down"}
    for field in matrices.keys() & family.options:
        fields[field] = family.tensor(GGUF, f"{matrices[field]}_bias", 0) in gguf.tensors
    return family, family.config(file, path, _AGAIN, **fields)


def _widths(file: _Metadata, family: Family, path: Path) -> dict[str, Any]:
    """The width of MLPs; those of the last layers, which share keys and values, may be twice as wide."""
    widths = file.ff if isinstance(file.ff, tuple) else (file.ff,) * file.layers
    wide = len(widths) == file.layers and widths[-1] == 2 * widths[0]
    shared = (file.shared_layers or 0) if wide else 0
    if widths != (widths[0],) * (file.layers - shared) + (widths[-1],) * shared or (wide and not shared):
        raise PastaError(f"{path}: unsupported metadata {_KEYS['ff']} by layer; use a model with one number")
    return {"ff": widths[0]} | ({"wide_shared": wide} if "wide_shared" in family.options else {})


def _window(file: _Metadata, family: Family, rope: dict[str, Any], path: Path) -> dict[str, Any]:
    """Which layers are local, and their rope; without a pattern the family's, or all."""
    if file.window is None or ("global_every" not in family.features and file.window >= file.context):
        return {"window": None, "global_every": 1}
    every = file.every
    if isinstance(every, tuple):
        every = period(every, False, True, _KEYS["every"], "is global", path)
    fields: dict[str, Any] = {"global_every": every or family.features.get("global_every", file.layers + 1)}
    is_known = "local_rope" in family.features
    local = {"base": file.local_base or file.rope_base, "scale": 1.0}
    if "local_rope" in family.options and (file.local_base if is_known else local != rope):
        fields["local_rope"] = local
    return fields


def _rope(gguf: File, family: Family, file: _Metadata) -> dict[str, Any]:
    """The rope; Llama 3's scaling and LongRoPE are tensors of divisors."""
    factor = file.rope_factor or file.older_factor
    rope: dict[str, Any] = {"base": file.rope_base, "scale": 1.0 if file.scaling in ("none", "yarn") else factor}
    if file.scaling == "yarn":
        yarn = {"factor": factor, "context": file.original or file.context, "whole": family.yarn_is_whole}
        rope["yarn"] = yarn | {"fast": file.fast, "slow": file.slow}
        log = 0.1 * math.log(max(factor, 1.0))
        rope["amplitude"] = file.amplitude * (1 + log) / (1 + file.log_factor * log)
        if family.layer is WITH_POST_NORMS and file.amplitude != 1.0:  # OLMo 3's files state the whole factor
            rope["amplitude"] = file.amplitude
    head_dim = file.head_dim or file.embed // file.heads
    if file.rotated is not None and file.rotated != head_dim:
        rope["share"] = file.rotated / head_dim
    for name in _DIVISORS:
        if name in gguf.tensors:
            divisors = gguf.read(name)
            still = divisors >= _STILL
            if still.any() and not (np.diff(still.astype(int)) < 0).any() and (divisors[~still] == 1).all():
                return rope | {"of_pairs": True, "share": 1.0 - float(still.mean())}
            for factor in _LLAMA3_FACTORS:
                llama3 = Rope(file.rope_base, llama3=(factor, 1.0, 4.0, 8192))
                ratios = Rope(file.rope_base).frequencies(head_dim) / llama3.frequencies(head_dim)
                if divisors.shape == ratios.shape and np.allclose(divisors, ratios, rtol=1e-5):
                    return rope | {"llama3": llama3.llama3}  # as a folder of the same model says it
            return rope | {"divisors": tuple(divisors.tolist()), "amplitude": file.amplitude}
    return rope
