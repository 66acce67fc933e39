"""What config files share: variants chosen by `file.py:variant`; the settings of a model, of decoding, of a request."""

from collections.abc import Callable

from ml_collections import ConfigDict

from pasta_jax.errors import PastaError


def pick(variants: dict[str, Callable[[], ConfigDict]], name: str, file: str) -> ConfigDict:
    """The named variant's config; an unknown name is refused with those there are."""
    if name not in variants:
        raise PastaError(f"--config={file}:{name}: there is no such variant; choose one of {', '.join(variants)}")
    return variants[name]()


def model(preset: str) -> ConfigDict:
    """Which model (models/source.py::ModelSource)."""
    return ConfigDict(
        {
            "preset": preset,  # a known architecture; empty: whatever `path` holds
            "path": "",  # GGUF file or Hugging Face folder; empty: the weights that a package ships
            "adapter": "",  # file written by a run of launch.sft with an adapter
            "policy": "",  # position policy; empty: the one that the model was trained with, and no other is accepted
            "constant": 40,  # of the policy `constant`
        }
    )


def decoding(lanes: int, rows: int) -> ConfigDict:
    """How requests are decoded together (decode/generate.py::DecodeConfig)."""
    return ConfigDict(
        {
            "lanes": lanes,  # requests at a time
            "rows": rows,  # threads of a request at a time, main included
            "widths": (2, 4),  # rows a step may compute beside 1 and all: fewer cost less, each is a program to compile
            "slots": 0,  # tokens a request can hold, its prompt included; 0: as many as needed
        }
    )


def request(max_tokens: int) -> ConfigDict:
    """How one request is answered (decode/generate.py::Request)."""
    return ConfigDict(
        {
            "max_tokens": max_tokens,
            "temperature": 0.0,  # 0: greedy
            "top_k": 0,  # 0: off
            "top_p": 1.0,  # 1: off
            "seed": 0,
            "sequential": False,  # True: no tags, one token after another
            "max_topic_tokens": 12,
            "max_chunk_tokens": 638,  # with its two tags a block of 64 tens, the longest a promise can say
        }
    )
