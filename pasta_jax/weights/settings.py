"""Which model to load, as configs name it: weights, an adapter, the positions it was trained with."""

import dataclasses
from typing import Literal

from pasta_jax.lang.structure import Distance


@dataclasses.dataclass(frozen=True)
class ModelSource:
    """A model, and how to hold it."""

    preset: str = ""  # a known architecture; empty: any that `path` holds
    # GGUF file, Hugging Face folder or id, as org/name, or a workdir of launch.sft; empty: weights from a package
    path: str = ""
    adapter: str = ""  # pasta, baseline_sft, a workdir of launch.sft or its adapter/, or an id on the Hub; empty: none
    policy: str = ""  # position policy; empty: the model's own (any other is refused)
    constant: Distance = 40  # positions per chunk under the policy `constant`
    # To decode: float32, bfloat16 (on one CPU, of the matrices), `platform` (float32 on a CPU, bfloat16 elsewhere), q8
    # (8 bits, on one CPU), q4 (the blocks of a quantised GGUF file as they are, on one CPU), or `auto`: q4 where
    # possible, else `platform`. Training uses the platform's.
    dtype: Literal["auto", "platform", "float32", "bfloat16", "q8", "q4"] = "auto"
    kernel: bool = True  # decode on the CPU with our own products of a few rows; False: with XLA's
