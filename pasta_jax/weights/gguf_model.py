"""From a GGUF file's metadata to its family and our configuration."""

import math
from typing import Any

import numpy as np

from pasta_jax.errors import PastaError
from pasta_jax.files.gguf import GGUF as File
from pasta_jax.files.validated import AboveZero, Positive
from pasta_jax.models.config import Rope, Size, TransformerConfig
from pasta_jax.weights import families
from pasta_jax.weights.family import FIELD_NAMES, GGUF, Family, stated_in

_AGAIN = "convert the model again"
_ROPE = {
    "rope_base": "rope.freq_base",
    "rope_factor": "rope.scaling.factor",
    "scaling": "rope.scaling.type",
    "original": "rope.scaling.original_context_length",
    "amplitude": "rope.scaling.attn_factor",
    "rotated": "rope.dimension_count",
    "fast": "rope.scaling.yarn_beta_fast",
    "slow": "rope.scaling.yarn_beta_slow",
}
_DIVISORS = ("rope_freqs.weight", "rope_factors_short.weight")  # of Llama 3, and LongRoPE
_LLAMA3_FACTORS = (8.0, 32.0)  # of Llama 3.1, and 3.2


class _Metadata(stated_in(GGUF), frozen=True, kw_only=True, rename=_ROPE):
    """The metadata that we read; those of families.py are under our names."""

    rope_base: AboveZero = 10_000.0
    rope_factor: AboveZero = 1.0
    scaling: str = "none"
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
    file = gguf.section(f"{kind}.", _Metadata)
    if file.scaling not in ("none", "linear", "longrope", "yarn"):
        raise PastaError(
            f"{path}: unsupported rope scaling {file.scaling!r}; use the Hugging Face folder of this model instead"
        )
    for name in family.required:
        if getattr(file, name) is None:
            raise PastaError(f"{path}: metadata {kind}: {FIELD_NAMES[name][GGUF]}: missing; {_AGAIN}")
    if file.window is not None and "window" not in family.options:
        raise PastaError(f"{path}: unsupported metadata {kind}: {FIELD_NAMES['window'][GGUF]}; use a model without")
    fields: dict[str, Any] = dict(
        vocab=gguf.tensors[embed].shape[0],
        rope=_rope(gguf, family, file),
        norm_eps=round(file.norm_eps, 12),  # stored as float32
        tied_head=head not in gguf.tensors,
    )
    if family.query_scalars:
        fields["query_scalar"] = family.query_scalars.get(file.layers)
    if "global_every" not in family.features and "window" in family.options:
        fields |= _window(file)
    if "divisors" in fields["rope"] and file.original is not None:
        fields["context"] = min(file.context, file.original)
    matrices = {"qkv_bias": "q", "out_bias": "out", "mlp_bias": "down"}
    for field in matrices.keys() & family.options:
        fields[field] = family.tensor(GGUF, f"{matrices[field]}_bias", 0) in gguf.tensors
    return family, family.config(file, path, _AGAIN, **fields)


def _window(file: _Metadata) -> dict[str, Any]:
    """All layers are local, where the window is shorter than the context."""
    is_local = file.window is not None and file.window < file.context
    return {"window": file.window if is_local else None, "global_every": file.layers + 1 if is_local else 1}


def _rope(gguf: File, family: Family, file: _Metadata) -> dict[str, Any]:
    """The rope; Llama 3's scaling and LongRoPE are tensors of divisors."""
    rope: dict[str, Any] = {"base": file.rope_base, "scale": file.rope_factor}
    if file.scaling == "yarn":
        factor, rope["scale"] = file.rope_factor, 1.0
        yarn = {"factor": factor, "context": file.original or file.context, "whole": family.yarn_is_whole}
        rope["yarn"] = yarn | {"fast": file.fast, "slow": file.slow}
        rope["amplitude"] = file.amplitude * (1 + 0.1 * math.log(max(factor, 1.0)))
    head_dim = file.head_dim or file.embed // file.heads
    if file.rotated is not None and file.rotated != head_dim:
        rope["share"] = file.rotated / head_dim
    for name in _DIVISORS:
        if name in gguf.tensors:
            divisors = gguf.read(name)
            for factor in _LLAMA3_FACTORS:
                llama3 = Rope(file.rope_base, llama3=(factor, 1.0, 4.0, 8192))
                ratios = np.array(Rope(file.rope_base).frequencies(head_dim)) / llama3.frequencies(head_dim)
                if divisors.shape == ratios.shape and np.allclose(divisors, ratios, rtol=1e-5):
                    return rope | {"llama3": llama3.llama3}  # as a folder of the same model says it
            return rope | {"divisors": tuple(divisors.tolist()), "amplitude": file.amplitude}
    return rope
