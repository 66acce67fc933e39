"""Compile the interpreter's loop, a prefill or a training step for a TPU topology, without a TPU, from shapes alone.

    python -m launch.compile_tpu --topology=v5e:2x4 --config=configs/compile_tpu.py:gemma_7b

Needs libtpu (bash launch/setup.sh --tpu). The last line is one JSON object: bytes per device of the arguments, of what
is updated in place, of temporaries and at the peak; collectives and kernels of each program; and the compile time, half
a minute on two CPU cores. Expected for the default: 2.0 GiB of parameters and 1.75 GiB of state on each of eight
devices, all of the state updated in place, temporaries under 20 MiB. What does not fit is refused in one line with exit
code 2.

A training step takes minutes; --config.programs="('train',)" compiles one, over all parameters, with blocked attention
in kernels and each layer recomputed in the backward pass.

Variants: gemma_7b, gemma_2b, gemma3_270m, smollm2_135m.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = "gemma_7b") -> ConfigDict:
    """The config of a variant."""
    variants = {
        "gemma_7b": lambda: compile_tpu("gemma_7b"),  # the paper's model
        "gemma_2b": lambda: compile_tpu("gemma_2b"),  # Gemma 2B
        "gemma3_270m": lambda: compile_tpu("gemma3_270m"),  # Gemma 3 270M
        "smollm2_135m": lambda: compile_tpu("smollm2_135m"),  # SmolLM2-135M
    }
    return common.pick(variants, variant, "configs/compile_tpu.py")


def compile_tpu(preset: str) -> ConfigDict:
    """One model's shape, in bfloat16 with scanned layers, as on a TPU."""
    return ConfigDict(
        {
            "preset": preset,
            "data": 1,  # devices that divide the lanes; the rest of the topology divides each lane's heads
            "lanes": 8,
            "rows": 8,
            "slots": 4096,
            "prefill": 512,  # tokens of a prompt written at once: 16, 32, 64, 128, 256 or 512
            "train": {"rows": 8, "tokens": 2048, "block": 256, "slice": 256},  # as in configs/sft.py; all parameters
            "programs": ("run", "prefill"),  # and train
        }
    )
