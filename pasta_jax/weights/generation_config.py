"""How a model is meant to be sampled: generation_config.json beside its weights or its adapter, explicit options win.

    {"do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 0,
     "pasta_jax": {"max_topic_words": 3, "distinct_topics": true, "end_stray_chunks": true}}

Hugging Face's tools have this file too and ignore our section. Without the file, or without `do_sample`, decoding is
greedy; without our section, topics and chunks have no rules but the language's.
"""

import dataclasses
from pathlib import Path
from typing import Any, TypeVar

from pasta_jax.files.validated import MIB, AtLeastZero, Count, TopP, read_json, typed

FILE, SECTION = "generation_config.json", "pasta_jax"
_RULES = ("max_topic_words", "distinct_topics", "end_stray_chunks")

Options = TypeVar("Options")


@dataclasses.dataclass(frozen=True)
class Defaults:
    """Options of a request that a model has values of its own for."""

    temperature: AtLeastZero = 0.0
    top_k: Count = 0
    top_p: TopP = 1.0
    max_topic_words: Count = 0
    distinct_topics: bool = False
    end_stray_chunks: bool = False


@dataclasses.dataclass(frozen=True)
class _Section:
    """Our section of the file."""

    max_topic_words: Count | None = None
    distinct_topics: bool | None = None
    end_stray_chunks: bool | None = None


@dataclasses.dataclass(frozen=True)
class _File:
    """The fields that we read."""

    do_sample: bool | None = None
    temperature: AtLeastZero | None = None
    top_k: Count | None = None
    top_p: TopP | None = None
    pasta_jax: _Section | None = None


PLAIN = Defaults()  # of a model without the file


def read_defaults(folder: Path) -> Defaults | None:
    """The defaults in a folder; None if it has no such file."""
    path = folder / FILE
    if not path.is_file():
        return None
    fix = "fix or delete the file"
    raw = read_json(path, dict[str, Any], most=MIB, fix=fix)
    return typed(_chosen(typed(raw, _File, str(path), fix)), Defaults, str(path), fix)


def as_json(defaults: Defaults) -> dict[str, Any]:
    """The fields of the file that `read_defaults` reads back."""
    sampling = {name: getattr(defaults, name) for name in ("temperature", "top_k", "top_p")}
    rules = {name: getattr(defaults, name) for name in _RULES}
    raw: dict[str, Any] = {"do_sample": True, **sampling} if defaults.temperature else {"do_sample": False}
    return raw | {SECTION: rules} if any(rules.values()) else raw


def filled(options: Options, defaults: Defaults) -> Options:
    """A dataclass of options, in which each of the model's own that is None has its default."""
    names = {field.name for field in dataclasses.fields(options)} & {
        field.name for field in dataclasses.fields(Defaults)
    }
    unset = {name: getattr(defaults, name) for name in names if getattr(options, name) is None}
    return dataclasses.replace(options, **unset)


def _chosen(file: _File) -> dict[str, Any]:
    """The fields of Defaults in a file. Sampling at an unstated temperature is at 1, as in Hugging Face's tools."""
    rules = file.pasta_jax or _Section()
    chosen = {name: getattr(rules, name) for name in _RULES}
    if file.do_sample:
        chosen["temperature"] = 1.0 if file.temperature is None else file.temperature
        chosen |= {name: getattr(file, name) for name in ("top_k", "top_p")}
    return {name: value for name, value in chosen.items() if value is not None}
