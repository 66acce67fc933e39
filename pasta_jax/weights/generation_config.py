"""How a model is meant to be sampled: generation_config.json beside its weights or its adapter, explicit options win.

    {"do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 0,
     "pasta_jax": {"max_topic_words": 3, "distinct_topics": true, "end_stray_chunks": true}}

Hugging Face's tools have this file too and ignore our section. Without the file, or without `do_sample`, decoding is
greedy; without our section, topics and chunks have no rules but the language's.
"""

import dataclasses
from pathlib import Path
from typing import Any

from pasta_jax.files.validated import MIB, read_json
from pasta_jax.weights.rules import MODELS_OWN, Defaults, optional

FILE, SECTION = "generation_config.json", "pasta_jax"
SAMPLED = ("temperature", "top_k", "top_p", "min_p")  # Hugging Face's names, which count only with `do_sample`
ALWAYS = ("repetition_penalty",)  # Hugging Face's too
_OURS = [name for name in MODELS_OWN if name not in SAMPLED + ALWAYS]

_Section = dataclasses.make_dataclass("_Section", optional(*_OURS), frozen=True)
_File = dataclasses.make_dataclass(
    "_File",
    [("do_sample", bool | None, None), *optional(*SAMPLED, *ALWAYS), (SECTION, _Section | None, None)],
    frozen=True,
)

PLAIN = Defaults()  # of a model without the file


def read_defaults(folder: Path) -> Defaults | None:
    """The model's own rules in a folder; None if it has no such file."""
    path = folder / FILE
    if not path.is_file():
        return None
    file = read_json(path, _File, most=MIB, fix="fix or delete the file")
    names = ALWAYS + SAMPLED if file.do_sample else ALWAYS
    stated = vars(file.pasta_jax or _Section()) | {name: getattr(file, name) for name in names}
    stated = {name: value for name, value in stated.items() if value is not None}
    unstated = {"temperature": 1.0} if file.do_sample else {}  # as in Hugging Face's tools, whose top_k would be 50
    return Defaults(**(unstated | stated))


def as_json(defaults: Defaults) -> dict[str, Any]:
    """The fields of the file that `read_defaults` reads back."""
    sampled = {name: getattr(defaults, name) for name in SAMPLED}
    ours = {name: getattr(defaults, name) for name in _OURS}
    raw: dict[str, Any] = {"do_sample": True, **sampled} if defaults.temperature else {"do_sample": False}
    raw |= {name: getattr(defaults, name) for name in ALWAYS if getattr(defaults, name) != getattr(PLAIN, name)}
    return raw | {SECTION: ours} if any(ours.values()) else raw
