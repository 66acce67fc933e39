"""Measure this machine: what a decoding step costs, and what asynchronous decoding makes of it.

    python -m launch.benchmark decode --config=configs/benchmark.py:smollm2_135m [--peers]
    python -m launch.benchmark interpreter --config=configs/benchmark.py:smollm2_135m [--programs=FILE]
    python -m launch.benchmark train --config=configs/benchmark.py:smollm2_135m [--peers]
    python -m launch.benchmark sampling --config=configs/benchmark.py:smollm2_135m

Each prints one JSON line last. `decode` takes about two minutes on two CPU cores, four to five with --peers
(transformers on torch and llama.cpp on the same weights in float32, interleaved in the same run; launch/setup.sh
--dev). Expected there: one row takes about 20 ms a step, eight rows about 42; one row reads the weights at 85 % of a
copy's speed.
`interpreter` replays 43 programs (parallelism 1.0 to 4.0, answers of 120 to 563 tokens) asynchronously and as their
stripped text sequentially: half an hour there, 23 minutes with --config.interpreter.rounds=1. `train` takes steps over
all parameters, with --peers beside those of transformers on torch: about two minutes there. `sampling` answers prompts
ten times each at temperature 1, through continuous batching with 1, 8, 32 and 128 lanes, and reckons what 2,000 prompts
take: six minutes there.

`:gemma_7b_random` is the paper's shape with random weights made on the device (17 GB in bfloat16, SmolLM2's tokens):
for accelerators. It has not been run on one yet.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = "smollm2_135m") -> ConfigDict:
    """The config of a variant."""
    variants = {
        "smollm2_135m": lambda: benchmark("smollm2_135m"),
        "gemma3_270m": lambda: benchmark("gemma3_270m"),
        "gemma_7b_random": lambda: benchmark("gemma_7b", random_weights=True),
    }
    return common.pick(variants, variant, "configs/benchmark.py")


def benchmark(preset: str, random_weights: bool = False) -> ConfigDict:
    """One model; what each benchmark measures with it."""
    return ConfigDict(
        {
            "model": common.model(preset),
            "random_weights": random_weights,  # of the model's shape, made on the device: nothing is loaded
            "decode": {
                "widths": (1, 2, 4, 8),  # threads of one request that feed in a step
                "slots": 512,
                "prompt": 128,  # tokens before the first step that is measured
                "steps": 16,  # steps a measurement
                "rounds": 11,  # measurements of each, interleaved
            },
            "train": {
                "rows": 2,
                "length": 128,  # tokens of a row
                "steps": 1,  # of a measurement, behind one that warms up
                "rounds": 3,
                "slice": 256,  # these three as in configs/sft.py
                "block": 0,
                "remat": False,
                "clip": 1.0,
            },
            "sampling": {
                "source": "alpaca_rows",  # see docs/DATA.md
                "lanes": (1, 8, 32, 128),
                "count": 10,  # answers a prompt
                "waves": 2.0,  # answers for each lane, so that lanes are also filled again
                "max_tokens": 128,  # of an answer
                "rows": 4,
                "slots": 512,
                "seed": 0,
            },
            "interpreter": {
                "programs": "pasta_jax/benchmark/programs.jsonl",  # one {"program": "surface text"} a line
                "rows": 16,
                "widths": (1, 2, 4, 8, 16),
                "slots": 1024,
                "prompt": 64,
                "rounds": 2,  # counted runs of each program each way, alternating
                "event_rounds": 25,  # single steps that fork, join, or do neither
            },
        }
    )
