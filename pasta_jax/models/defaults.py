"""How a model is meant to be sampled: generation_config.json beside its weights or its adapter, explicit options win.

    {"do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 0,
     "pasta_jax": {"max_topic_words": 3, "distinct_topics": true}}

Hugging Face's tools have this file too and ignore our section. Without the file, or without `do_sample`, decoding is
greedy; without our section, topics have no rules but the language's.
"""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from pasta_jax.errors import PastaError

FILE, SECTION = "generation_config.json", "pasta_jax"
_TOPIC_RULES = ("max_topic_words", "distinct_topics")

Options = TypeVar("Options")


@dataclasses.dataclass(frozen=True)
class Defaults:
    """Options of a request that a model has values of its own for."""

    temperature: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    top_k: Annotated[int, msgspec.Meta(ge=0)] = 0
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    max_topic_words: Annotated[int, msgspec.Meta(ge=0)] = 0
    distinct_topics: bool = False


PLAIN = Defaults()  # of a model without the file


def read_defaults(folder: Path) -> Defaults | None:
    """The defaults in a folder; None if it has no such file."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return msgspec.convert(_chosen(raw), Defaults)
    except (ValueError, AttributeError, msgspec.ValidationError) as error:
        raise PastaError(f"{path}: malformed ({error}); fix or delete the file") from None


def filled(options: Options, defaults: Defaults) -> Options:
    """A dataclass of options, in which each of the model's own that is None has its default."""
    names = {field.name for field in dataclasses.fields(options)} & {
        field.name for field in dataclasses.fields(Defaults)
    }
    unset = {name: getattr(defaults, name) for name in names if getattr(options, name) is None}
    return dataclasses.replace(options, **unset)


def _chosen(raw: dict[str, Any]) -> dict[str, Any]:
    """The fields of Defaults in a file. Sampling at an unstated temperature is at 1, as in Hugging Face's tools."""
    rules = raw.get(SECTION, {})
    chosen = {name: rules[name] for name in _TOPIC_RULES if rules.get(name) is not None}
    if raw.get("do_sample"):
        chosen["temperature"] = 1.0
        chosen |= {name: raw[name] for name in ("temperature", "top_k", "top_p") if raw.get(name) is not None}
    return chosen
