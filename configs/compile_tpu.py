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

from pasta_jax.tpu.settings import CompileSettings, TrainShape


def gemma_7b() -> CompileSettings:
    """The paper's model."""
    return CompileSettings()


def gemma_2b() -> CompileSettings:
    """Gemma 2B."""
    return CompileSettings(("gemma_2b",))


def gemma2_27b() -> CompileSettings:
    """Gemma 2 27B."""
    return CompileSettings(("gemma2_27b",))


def gemma3_270m() -> CompileSettings:
    """Gemma 3 270M."""
    return CompileSettings(("gemma3_270m",))


def smollm2_135m() -> CompileSettings:
    """SmolLM2-135M."""
    return CompileSettings(("smollm2_135m",))


def all() -> CompileSettings:
    """Three sizes, decoding and training; an hour on two CPU cores."""
    return CompileSettings(
        ("gemma_2b", "gemma_7b", "gemma2_27b"),
        programs=("run", "prefill", "sft", "preference"),
        train=TrainShape(data=4, fsdp=True),
    )
