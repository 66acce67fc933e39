"""Measure this machine: milliseconds of a decoding step at several widths, and what memory allows.

    python -m launch.benchmark decode --config=configs/benchmark.py:smollm2_135m [--peers]

Prints one JSON line last. About one minute on two CPU cores, four with --peers (transformers on torch and llama.cpp on
the same weights in float32, interleaved in the same run; bash launch/setup.sh --dev). Expected there: the step of one
row takes about 23 ms, that of eight about 55; one row reads the weights at over half of the speed of a copy.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = "smollm2_135m") -> ConfigDict:
    """The config of a variant."""
    variants = {
        "smollm2_135m": lambda: benchmark("smollm2_135m"),
        "gemma3_270m": lambda: benchmark("gemma3_270m"),
    }
    return common.pick(variants, variant, "configs/benchmark.py")


def benchmark(preset: str) -> ConfigDict:
    """One model; what each benchmark measures with it."""
    return ConfigDict(
        {
            "model": common.model(preset),
            "decode": {
                "widths": (1, 2, 4, 8),  # threads of one request that feed in a step
                "slots": 512,
                "prompt": 128,  # tokens before the first step that is measured
                "steps": 16,  # steps a measurement
                "rounds": 7,  # measurements of each, interleaved
            },
        }
    )
