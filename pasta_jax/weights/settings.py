"""Which model to load, as configs name it, and the adapter to train."""

import dataclasses
import shlex
from typing import Annotated, Literal

from msgspec import Meta

from pasta_jax.files.validated import AtLeastZero
from pasta_jax.lang.structure import Distance


@dataclasses.dataclass(frozen=True)
class ModelSource:
    """A model, and how to hold it."""

    preset: str = ""  # a known architecture; empty: any that `path` holds
    # GGUF file, Hugging Face folder or id, as org/name, or a workdir of launch.sft; empty: weights from a package
    path: str = ""
    adapter: str = ""  # a name in checkpoints/, a workdir of launch.sft, its adapter/, or an id on the Hub; empty: none
    drafter: str = ""  # for decoding.draft=drafter: pasta, qwen2_5_coder_1_5b, or a workdir of launch.train_drafter
    policy: str = ""  # position policy; empty: the model's own (any other is refused)
    constant: Distance = 40  # positions per chunk under the policy `constant`
    # To decode: float32, bfloat16 (on one CPU, of the matrices), `platform` (float32 on a CPU, bfloat16 elsewhere), q8
    # (8 bits, on one CPU), q4 (the blocks of a quantised GGUF file as they are, on one CPU), or `auto`: q4 where
    # possible, else `platform`. Training uses the platform's, but a CPU can hold what an adapter leaves frozen in
    # bfloat16, half of the memory; the adapter is then all that is written. With float32, TPUs and GPUs still multiply
    # in bfloat16 and TF32, unless JAX_DEFAULT_MATMUL_PRECISION says otherwise.
    dtype: Literal["auto", "platform", "float32", "bfloat16", "q8", "q4"] = "auto"
    # Of the inputs that q4 and q8 multiply as integers, on CPUs with AVX2. 16 is close to float32, and faster; 8 is
    # faster still, and changes some greedy tokens, as llama.cpp's 8 bits do (`launch.benchmark rounding` measures
    # both); 32 keeps float32
    bits: Literal[8, 16, 32] = 16
    kernel: bool = True  # decode on the CPU with our own products of a few rows; False: with XLA's

    def named(self, section: str = "config.model") -> str:
        """The flag that names the model without its adapter."""
        return shlex.join([f"--{section}.path={self.path}" if self.path else f"--{section}.preset={self.preset}"])


# A layer's projections
Targets = Annotated[tuple[Literal["qkv", "out", "gate_up", "down"], ...], Meta(min_length=1, max_length=4)]


@dataclasses.dataclass(frozen=True)
class AdapterSettings:
    """The adapter to train."""

    rank: Annotated[int, Meta(ge=0, le=4096)] = 0  # 0: none, all parameters are trained; config.model's is merged first
    alpha: AtLeastZero = 0.0  # with a rank, above 0, usually twice the rank
    targets: Targets = ("qkv", "out", "gate_up", "down")
    # Of its file; it is trained in float32. bfloat16 halves the file, but rounds by more than low learning rates move.
    dtype: Literal["float32", "bfloat16"] = "float32"
