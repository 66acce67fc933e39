"""Rotary positions in config.json: the fields of either version of `transformers`, and our Rope."""

import dataclasses
import math
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Protocol

from msgspec import Meta

from pasta_jax.errors import PastaError
from pasta_jax.files.validated import AboveZero, AtLeastZero, Positive
from pasta_jax.models.config import Rope

FIX = "use the config.json of a supported model"


@dataclasses.dataclass(frozen=True)
class RopeFields:
    """Rope of one kind of layers; `type` is an older name of `rope_type`."""

    rope_theta: AboveZero | None = None
    rope_type: str | None = None
    type: str | None = None
    factor: AboveZero | None = None
    low_freq_factor: AboveZero | None = None
    high_freq_factor: AboveZero | None = None
    original_max_position_embeddings: Positive | None = None
    partial_rotary_factor: AboveZero | None = None
    attention_factor: AboveZero | None = None
    beta_fast: AboveZero | None = None
    beta_slow: AboveZero | None = None
    mscale: AtLeastZero | None = None
    mscale_all_dim: AtLeastZero | None = None
    truncate: bool = True
    short_factor: Annotated[tuple[AboveZero, ...], Meta(max_length=4096)] | None = None
    llama_4_scaling_beta: AtLeastZero | None = None


@dataclasses.dataclass(frozen=True)
class RopesFields(RopeFields):
    """Rope of all layers, or of each kind."""

    full_attention: RopeFields | None = None
    sliding_attention: RopeFields | None = None


class Stated(Protocol):
    """What config.json states of positions."""

    context: int
    partial_rotary_factor: float | None
    original_max_position_embeddings: int | None
    rope_theta: float | None
    rope_scaling: RopeFields | None
    rope_parameters: RopesFields | None


def original_context(file: Stated, scaling: RopeFields) -> int | None:
    """The longest position before a scaling of positions; Phi 3's stands beside the scaling, others' in it."""
    inner, outer = scaling.original_max_position_embeddings, file.original_max_position_embeddings
    return (outer or inner) if scaling.short_factor is not None else (inner or outer)


def scaling_in(file: Stated) -> tuple[RopeFields, RopeFields]:
    """Rope of global layers as the newer version states it, and where its scaling stands, perhaps as the older does."""
    parameters = file.rope_parameters or RopesFields()
    nested = parameters.full_attention or parameters.sliding_attention
    whole = (parameters.full_attention or RopeFields()) if nested else parameters
    return whole, whole if whole.rope_type or whole.type else (file.rope_scaling or RopeFields())


def _kind(fields: RopeFields) -> str:
    return fields.rope_type or fields.type or "default"


def require_one_reading(file: Stated, options: Collection[str], has_older: bool, path: Path) -> None:
    """Refuse what `transformers` reads otherwise; `has_older`: the file itself states rope_scaling."""
    whole, scaling = scaling_in(file)
    older, parameters = file.rope_scaling, file.rope_parameters or RopesFields()
    if has_older and older and scaling is whole:
        names = {field.name for field in dataclasses.fields(RopeFields)} - {"rope_type", "type"}
        names -= {name for name in ("rope_theta", "partial_rotary_factor") if getattr(older, name) is None}
        if _kind(older) != _kind(whole) or any(getattr(older, name) != getattr(whole, name) for name in names):
            raise PastaError(f"{path}: rope_scaling and rope_parameters differ; delete the one that isn't the model's")
    if "local_rope" in options:
        own = parameters.sliding_attention
        if own and _kind(own) != "default":
            key = "rope_parameters.sliding_attention.rope_type"
            raise PastaError(f"{path}: unsupported {key} {_kind(own)!r}; use a model whose local layers are unscaled")
        is_read = _kind(parameters) == "default" and parameters.rope_theta in (None, file.rope_theta)
        if not own and not parameters.full_attention and not is_read:  # else `transformers` passes over it
            raise PastaError(
                f"{path}: rope_parameters of no kind of layers; state them in rope_parameters.full_attention"
            )


def rope_of(file: Stated, path: Path) -> dict[str, Any]:
    """Rope base and scaling of global layers, from the fields of either version of config.json."""
    whole, scaling = scaling_in(file)
    rope: dict[str, Any] = {"base": whole.rope_theta or scaling.rope_theta or file.rope_theta or 10_000.0}
    shares = whole.partial_rotary_factor, scaling.partial_rotary_factor, file.partial_rotary_factor
    if (share := next(filter(None, shares), 1.0)) != 1.0:
        rope["share"] = share

    def required(key: str, value: float | None = None) -> float:
        value = getattr(scaling, key) if value is None else value
        if value is None:
            raise PastaError(f"{path}: rope scaling without {key}; {FIX}")
        return value

    kind = _kind(scaling)
    if scaling.short_factor is not None and kind in ("su", "yarn"):  # older names, of Phi 3
        kind = "longrope"
    original = original_context(file, scaling)
    match kind:
        case "default":
            return rope
        case "linear":
            return rope | {"scale": required("factor")}
        case "proportional":
            return rope | {"of_pairs": True, "scale": scaling.factor or 1.0}
        case "llama3":
            implied = {"original_max_position_embeddings": original or file.context}
            return rope | {"llama3": tuple(required(key, implied.get(key)) for key in _LLAMA3)}
        case "yarn":
            factor = required("factor", scaling.factor or (original and file.context / original))
            yarn = _yarn(scaling, factor, original or file.context)
            return rope | {"yarn": yarn, "amplitude": _yarn_amplitude(scaling, factor)}
        case "longrope":
            shorter = original or file.context
            factor = scaling.factor or file.context / shorter
            is_longer = factor > 1 and shorter > 1
            amplitude = math.sqrt(1 + math.log(factor) / math.log(shorter)) if is_longer else 1.0
            divisors = required("short_factor")
            return rope | {"divisors": divisors, "amplitude": scaling.attention_factor or amplitude}
        case other:
            raise PastaError(
                f"{path}: unsupported rope scaling {other!r}; "
                "use a model with default, linear, llama3, yarn, longrope or proportional scaling"
            )


def _yarn(scaling: RopeFields, factor: float, original: float) -> dict[str, Any]:
    speeds = {"fast": scaling.beta_fast, "slow": scaling.beta_slow}
    stated = {name: value for name, value in speeds.items() if value is not None}
    return {"factor": factor, "context": original, "whole": scaling.truncate, **stated}


def _yarn_amplitude(scaling: RopeFields, factor: float) -> float:
    def sharpened(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return sharpened(scaling.mscale) / sharpened(scaling.mscale_all_dim)
    return sharpened(1.0)


_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def scaling_of(rope: Rope, context: int) -> dict[str, Any]:
    """The scaling of a rope in the words of config.json."""
    if rope.of_pairs:
        return {"rope_type": "proportional", "factor": rope.scale}
    if rope.llama3 is not None:
        return {"rope_type": "llama3", **dict(zip(_LLAMA3, rope.llama3, strict=True))}
    if rope.divisors is not None:
        both = {"short_factor": list(rope.divisors), "long_factor": list(rope.divisors)}
        about = {"attention_factor": rope.amplitude, "original_max_position_embeddings": context}
        return {"rope_type": "longrope", **both, **about}
    if (yarn := rope.yarn) is not None:
        speeds = {"beta_fast": yarn.fast, "beta_slow": yarn.slow, "truncate": yarn.whole}
        about = {"attention_factor": rope.amplitude, "original_max_position_embeddings": yarn.context}
        return {"rope_type": "yarn", "factor": yarn.factor, **about, **speeds}
    return {"rope_type": "linear", "factor": rope.scale} if rope.scale != 1.0 else {"rope_type": "default"}
