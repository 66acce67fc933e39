"""Compile the interpreter's loop, a prefill or a training step for a TPU topology, without a TPU, from shapes alone.

    python -m launch.compile_tpu --topology=v5e:2x4 --config=configs/compile_tpu.py:gemma_7b

Needs libtpu (bash launch/setup.sh --tpu). Prints one JSON line last: bytes a device of arguments, of what is updated in
place, of temporaries and at the peak, the collectives and kernels of each program, and how long it compiled: half a
minute on two CPU cores. Expected for the default: parameters 2.0 GiB and state 1.75 GiB on each of eight devices, all
of the state updated in place, temporaries under 20 MiB. What doesn't fit is refused in one line with exit code 2.

A training step takes minutes and is compiled where --config.programs="('train',)" asks for it: of all parameters, with
attention by blocks in kernels, each layer computed again in the backward pass.

Variants: gemma_7b, gemma_2b, gemma3_270m, smollm2_135m.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = "gemma_7b") -> ConfigDict:
    """The config of a variant."""
    variants = {name: lambda name=name: compile_tpu(name) for name in VARIANTS}
    return common.pick(variants, variant, "configs/compile_tpu.py")


VARIANTS = ("gemma_7b", "gemma_2b", "gemma3_270m", "smollm2_135m")


def compile_tpu(preset: str) -> ConfigDict:
    """One model's shape, in bfloat16 and with scanned layers as on a TPU."""
    return ConfigDict(
        {
            "preset": preset,
            "data": 1,  # devices that share the lanes out; the rest of the topology shares each lane's heads out
            "lanes": 8,
            "rows": 8,
            "slots": 4096,
            "prefill": 512,  # tokens of a prompt that are written at once: 16, 32, 64, 128, 256 or 512
            "train": {"rows": 8, "tokens": 2048, "block": 256, "slice": 256},  # as in configs/sft.py; all parameters
            "programs": ("run", "prefill"),  # and train
        }
    )
