"""Compile the interpreter's loop, a prefill or a training step for a TPU topology, without a TPU, from shapes alone.

    python -m launch.compile_tpu --topology=v5e:2x4 --config=configs/compile_tpu.py:gemma_7b
    python -m launch.compile_tpu --topology=all --config=configs/compile_tpu.py:all

Needs libtpu (bash launch/setup.sh --tpu). Prints a table for each topology and model, and as last line one JSON object:
bytes per device of the arguments, of what is updated in place, of temporaries and at the peak; operations and bytes
moved, of decoding in one step, with an estimate of their time from the chip's published figures; collectives and
kernels. A compilation takes half a minute on two CPU cores, a training step minutes. Expected for the first command:
2.0 GiB of parameters and 1.75 GiB of state on each of eight devices, all of the state updated in place, temporaries
under 20 MiB. What does not fit is refused in one line with exit code 2, which names a topology that is large enough;
of several, the others are still compiled.

--config.search=True also looks for the most lanes that fit, on every mesh of the topology: computed from shapes for
some numbers of slots, and for config.slots compiled.

--config.programs="('sft', 'preference')" compiles training steps over all parameters in float32, with blocked attention
in kernels and each layer recomputed in the backward pass. With --config.train.data=8 --config.train.fsdp=True, each of
eight chips keeps an eighth of Gemma 7B's parameters and moments, 11.9 GiB.

Variants: gemma_7b, gemma_2b, gemma2_27b, gemma3_270m, smollm2_135m; all: the first three, decoding and training.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = "gemma_7b") -> ConfigDict:
    """The config of a variant."""
    variants = {
        "gemma_7b": lambda: compile_tpu("gemma_7b"),  # the paper's model
        "gemma_2b": lambda: compile_tpu("gemma_2b"),  # Gemma 2B
        "gemma2_27b": lambda: compile_tpu("gemma2_27b"),  # Gemma 2 27B
        "gemma3_270m": lambda: compile_tpu("gemma3_270m"),  # Gemma 3 270M
        "smollm2_135m": lambda: compile_tpu("smollm2_135m"),  # SmolLM2-135M
        "all": everything,  # three sizes, decoding and training; hours
    }
    return common.pick(variants, variant, "configs/compile_tpu.py")


def compile_tpu(*presets: str) -> ConfigDict:
    """One model's shape, or several, in bfloat16 with scanned layers, as on a TPU."""
    return ConfigDict(
        {
            "presets": presets,
            "data": 1,  # devices that divide the lanes; the rest of the topology divides each lane's heads
            "lanes": 8,
            "rows": 8,
            "slots": 4096,
            "used": 2048,  # slots in use in each lane, for the bytes that a step moves
            "prefill": 512,  # tokens of a prompt written at once: 16, 32, 64, 128, 256 or 512
            "train": {  # as in configs/sft.py; all parameters
                "data": 1,  # devices that divide the rows; the rest of the topology divides each layer
                "fsdp": False,  # divide parameters and moments over `data` too
                "rows": 16,
                "tokens": 2048,
                "block": 256,
                "slice": 256,
            },
            "programs": ("run", "prefill"),  # and sft, preference
            "search": False,  # look for the most lanes that fit
        }
    )


def everything() -> ConfigDict:
    """All programs of three sizes."""
    config = compile_tpu("gemma_2b", "gemma_7b", "gemma2_27b")
    config.programs = ("run", "prefill", "sft", "preference")
    config.train.data, config.train.fsdp = 4, True
    return config
