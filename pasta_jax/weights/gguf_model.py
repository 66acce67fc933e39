"""From a GGUF file's metadata to its family and our configuration."""

from typing import Any

from pasta_jax.errors import PastaError
from pasta_jax.files.gguf import GGUF as File
from pasta_jax.files.validated import AboveZero
from pasta_jax.models.config import TransformerConfig
from pasta_jax.weights import families
from pasta_jax.weights.families import FIELD_NAMES, GGUF, Family

_AGAIN = "convert the model again"
_ROPE = {"rope_base": "rope.freq_base", "rope_factor": "rope.scaling.factor", "scaling": "rope.scaling.type"}


class _Metadata(families.stated_in(GGUF), frozen=True, kw_only=True, rename=_ROPE):
    """The metadata that we read; those of families.py are under our names."""

    rope_base: AboveZero = 10_000.0
    rope_factor: AboveZero = 1.0
    scaling: str = "none"


def read_config(gguf: File) -> tuple[Family, TransformerConfig]:
    """Translate the metadata; architectures that our transformer lacks are refused with an error that names them."""
    path, kind = gguf.path, gguf.metadata.get("general.architecture")
    family = families.of_file(GGUF, kind, path, "architecture")
    embed, head, _ = (family.tensor(GGUF, name) for name in families.TABLES)
    if "rope_freqs.weight" in gguf.tensors:
        raise PastaError(f"{path}: unsupported tensor rope_freqs.weight; use the Hugging Face folder of this model")
    if embed not in gguf.tensors:
        raise PastaError(f"{path}: no tensor {embed}; {_AGAIN}")
    file = gguf.section(f"{kind}.", _Metadata)
    if file.scaling not in ("none", "linear"):
        raise PastaError(
            f"{path}: unsupported rope scaling {file.scaling!r}; use the Hugging Face folder of this model instead"
        )
    for name in family.options:
        if getattr(file, name) is None:
            raise PastaError(f"{path}: metadata {kind}: {FIELD_NAMES[name][GGUF]}: missing; {_AGAIN}")
    fields: dict[str, Any] = dict(
        vocab=gguf.tensors[embed].shape[0],
        rope={"base": file.rope_base, "scale": file.rope_factor},
        norm_eps=round(file.norm_eps, 12),  # stored as float32
        tied_head=head not in gguf.tensors,
        query_scalar=family.query_scalars.get(file.layers),
    )
    return family, family.config(file, path, _AGAIN, **fields)
