"""Measure this machine: the cost of a decoding step, and the speedup that asynchronous decoding realises.

    python -m launch.benchmark decode --config=configs/benchmark.py:smollm2_135m [--peers]
    python -m launch.benchmark prefill --config=configs/benchmark.py:smollm2_135m [--peers]
    python -m launch.benchmark interpreter --config=configs/benchmark.py:smollm2_135m [--programs=FILE]
    python -m launch.benchmark train --config=configs/benchmark.py:smollm2_135m [--peers]
    python -m launch.benchmark sampling --config=configs/benchmark.py:smollm2_135m
    python -m launch.benchmark serve --config=configs/benchmark.py:smollm2_135m [--peers]
    python -m launch.benchmark profile --config=configs/benchmark.py:smollm2_135m

The last line of each is one JSON object. `decode` takes about two minutes on two CPU cores, four to five with --peers
(transformers on torch and llama.cpp on the same weights in float32, interleaved in the same run; launch/setup.sh
--dev). Expect about 18 ms per step of one row and 23 of eight; 19 and 40 with --config.model.kernel=False; 7 and 20
with --config.model.dtype=q4, from the blocks of the packaged file, which the peer llama.cpp then reads too. `prefill`
reads prompts of 128 and 512 tokens: a minute. `interpreter` replays 43 programs (parallelism 1.0 to 4.0, answers of 120
to 563 tokens; random combinations of phrases) asynchronously and, as their plain text,
sequentially: half an hour, or 23 minutes with --config.interpreter.rounds=1. `train` runs steps over all parameters,
with --peers also those of transformers on torch: about two minutes. `sampling` answers prompts ten times each at
temperature 1, by continuous batching over 1, 8, 32 and 128 lanes, and estimates the time for 2,000 prompts: six
minutes. `serve` starts our server with 1, 2, 4 and 8 lanes, sequential and with the adapter that forks, and with
--peers llama.cpp's with the same weights in float32 and as packaged; as many clients as lanes stream answers to the
same questions. `profile` prints where the time of a step goes (products, attention, writes, sampling, …) and that of an
answer, between theoretical and realised speedup; it writes pictures, and traces for ui.perfetto.dev, to
--config.profile.folder. It has read the profiler's events on CPUs only.

`:gemma_7b_random` has the paper's shape and random weights created on the device (17 GB in bfloat16, SmolLM2's
tokenizer): for accelerators. It has not been run on one yet.
"""

from ml_collections import ConfigDict

from configs import common
from configs import serve as serving


def get_config(variant: str = "smollm2_135m") -> ConfigDict:
    """The config of a variant."""
    variants = {
        "smollm2_135m": lambda: benchmark("smollm2_135m"),  # SmolLM2-135M-Instruct
        "gemma3_270m": lambda: benchmark("gemma3_270m"),  # Gemma 3 270M; setup.sh --gemma
        "gemma_7b_random": lambda: benchmark("gemma_7b", random_weights=True),  # the paper's shape, for accelerators
    }
    return common.pick(variants, variant, "configs/benchmark.py")


def benchmark(preset: str, random_weights: bool = False) -> ConfigDict:
    """Every benchmark with one model."""
    server = serving.serve(preset)
    server.log = False
    return ConfigDict(
        {
            "model": common.model(preset, dtype="platform"),  # q4: in the blocks of the packaged file
            "random_weights": random_weights,  # random weights of the model's shape; no file is read
            "mesh": common.mesh(),
            "decode": {
                "widths": (1, 2, 4, 8),  # threads of one request that feed a token in a step
                "slots": 512,
                "prompt": 128,  # tokens before the first measured step
                "steps": 16,  # steps per measurement
                "rounds": 11,  # measurements of each width, interleaved
            },
            "prefill": {
                "lengths": (128, 512),  # tokens of a prompt, which is read alone
                "slots": 1024,
                "rounds": 11,  # measurements of each length, interleaved
            },
            "train": {
                "rows": 2,
                "length": 128,  # tokens per batch row
                "steps": 1,  # per measurement, after one for warm-up
                "rounds": 3,
                "slice": 256,  # slice, block and remat as in configs/sft.py
                "block": 0,
                "remat": False,
                "clip": 1.0,
            },
            "sampling": {
                "source": "alpaca_rows",  # see docs/DATA.md
                "lanes": (1, 8, 32, 128),
                "count": 10,  # answers per prompt
                "waves": 2.0,  # answers per lane, so that lanes are also refilled
                "max_tokens": 128,  # per answer
                "rows": 4,
                "slots": 512,
                "seed": 0,
            },
            "serve": {
                "server": server,  # but for its model, lanes and port
                "threads": common.shipped(common.FORKS, "platform") if preset == "smollm2_135m" else common.model(""),
                "lanes": (1, 2, 4, 8),
                "max_tokens": 128,  # per answer
                "rounds": 3,  # of one question per client, the servers in turn
                "source": "alpaca_rows",
                "least_characters": 800,  # of the answer in the source, so that few answers end early
            },
            "interpreter": {
                "programs": "pasta_jax/benchmark/programs.jsonl",  # one {"program": "surface text"} per line
                "rows": 16,
                "widths": (1, 2, 4, 8, 16),
                "slots": 1024,
                "prompt": 64,
                "rounds": 2,  # measured runs of each program in each way, alternating
                "event_rounds": 25,  # measured steps that fork, join, or do neither
            },
            "profile": {
                "answers": 5,  # of the interpreter's programs
                "folder": "runs/profile",  # of its pictures, traces and report
            },
        }
    )
