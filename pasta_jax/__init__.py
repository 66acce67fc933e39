"""PASTA in JAX: language models that announce which parts of their own answer can be decoded in parallel.

    import pasta_jax as pasta

    model = pasta.load_model("smollm2_135m")
    answer = pasta.generate(model, "Why is the sky blue?", max_tokens=200)
    print(answer.text)

These names are those of pasta_jax/api.py (`teach` is in pasta_jax/teaching/api.py), imported at first use: `import
pasta_jax` and `pasta_jax.lang` load no JAX.
"""

import importlib
import sys
from typing import TYPE_CHECKING

from pasta_jax.device import platform

if TYPE_CHECKING:
    from pasta_jax.api import (
        Answer,
        Event,
        Filled,
        Message,
        Model,
        PastaError,
        Prompt,
        Reply,
        Thread,
        Trace,
        Value,
        ask,
        fill,
        generate,
        load_model,
        stream,
        stream_text,
    )
    from pasta_jax.teaching.api import teach

__version__ = "0.1.0"
__all__ = [
    "Answer",
    "Event",
    "Filled",
    "Message",
    "Model",
    "PastaError",
    "Prompt",
    "Reply",
    "Thread",
    "Trace",
    "Value",
    "ask",
    "fill",
    "generate",
    "load_model",
    "stream",
    "stream_text",
    "teach",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        if "jax" not in sys.modules:
            platform.choose()
            importlib.import_module("pasta_jax.device.compilation_cache").keep()
        return getattr(importlib.import_module("pasta_jax.teaching.api" if name == "teach" else "pasta_jax.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
