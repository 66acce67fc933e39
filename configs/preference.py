"""Preference optimisation: from Pasta-SFT to a model that is better and faster, with the weight of quality as a dial.

    python -m launch.preference --config=configs/preference.py:toy --workdir=runs/toy_preference \
        --config.model.path=runs/toy/model --config.baseline.path=runs/toy_baseline/model

A round: sample answers, score them, pair best with worst, train on the pairs, evaluate. Every step is a file in
WORKDIR/steps (or in --config.steps, which runs may share) and is made once, so the same command goes on where it was
killed, and with another --config.score.quality_weight or --config.score.efficiency nothing is sampled or judged again.
At the end: model/ (and adapter.safetensors), report.json, and a table on stdout, its last line one JSON object.

Variants: tiny (a few prompts, to see that all works), toy (the toy task; five minutes on two
busy CPU cores; docs/RESULTS.md has the figures to expect), smollm2_135m (LoRA; judged by a language model: give
--config.judge.endpoint.url and .model).
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = "toy") -> ConfigDict:
    """The config of a variant."""
    return common.pick({"tiny": tiny, "toy": toy, "smollm2_135m": smollm2_135m}, variant, "configs/preference.py")


def preference() -> ConfigDict:
    """What all variants share, with the paper's settings."""
    config = ConfigDict(
        {
            "model": common.model(""),  # Pasta-SFT: where the first round starts, and the reference of all
            "baseline": common.model(""),  # Baseline-SFT: the same data without tags
            "artifacts": "",  # folder of the steps' files; empty: WORKDIR/artifacts
            "rounds": 2,
            "prompts": {
                "toy": "",  # a level of the toy task: small, medium, large
                "toy_seed": 2,  # not the one trained on
                "source": "",  # or where pairs come from: data/sources.py
                "count": 2000,
                "prompt_words": (1, 300),  # fewest and most, of a source's
                "response_words": (1, 500),
            },
            "sample": {"count": 10, "temperature": 1.0, "seed": 0, "block": 64},  # block: prompts sampled together
            "decoding": common.decoding(lanes=64, rows=9),
            "request": {"max_tokens": 600, "max_topic_tokens": 12, "max_chunk_tokens": 638},
            "judge": {
                "kind": "llm",  # llm, toy, or a proxy: rules, repetition
                "scale": 1.0,  # of a proxy: the difference that is a verdict of 73 %; 0.1 suits shares
                "asks": 3,  # of llm: how often a malformed verdict is asked for anew
                "concurrency": 8,
                "agreement": 300,  # chosen and rejected answers of others that it is compared with; 0: none
                "endpoint": {
                    "kind": "openai",  # or gemini
                    "url": "",
                    "model": "",
                    "key_variable": "",  # environment variable with the API key; empty: none is sent
                    "temperature": 0.0,
                    "max_tokens": 300,
                    "timeout_s": 60.0,
                    "requests_per_minute": 600.0,
                    "retries": 6,
                    "backoff_s": 1.0,
                    "max_backoff_s": 60.0,
                    "dollars_per_million_in": 0.0,
                    "dollars_per_million_out": 0.0,
                },
            },
            "score": {
                "efficiency": "speedup",  # or parallelism, or their arithmetic or harmonic mean
                "quality_weight": 2.0,  # the dial; inf: quality alone
                "floor": 0.25,  # least confidence of losses that wins are divided by
            },
            "loss": {
                "loss": "bonbon",  # or dpo, ipo
                "alpha": 0.005,
                "margin": 0.0,  # 0: that of best of n, (n - 1) H(n - 1)
                "beta": 0.1,  # of dpo and ipo
            },
            "adapter": {"rank": 0, "alpha": 0.0, "targets": ("qkv", "out", "gate_up", "down")},  # rank 0: none
            "train": {
                "epochs": 1,
                "learning_rate": 5e-7,  # falls to 0 linearly
                "warmup": 0,
                "weight_decay": 0.0,
                "clip": 10.0,
                "b1": 0.9,
                "b2": 0.999,
                "eps": 1e-8,
                "lengths": (1024,),  # tokens of a row; a pair goes to the shortest that holds both its answers
                "rows": 8,  # pairs a batch
                "accumulate": 1,
                "remat": True,
                "slice": 256,
                "block": 0,  # tokens that attention looks at at a time; 0: all
                "seed": 0,
            },
            "mesh": {"data": 0, "model": 1},
            "every": {"log": 10, "save": 100},  # steps of training; 0: never
            "evaluate": {
                "count": 256,  # held-out prompts
                "temperatures": (0.0,),  # the first is the one that tables and plots show
                "timed": 0,  # of these prompts, how many are answered again alone, for realised speedup
            },
        }
    )
    return config


def toy() -> ConfigDict:
    """The toy task."""
    config = preference()
    config.rounds = 1
    config.prompts.update(toy="medium", count=256)
    config.sample.update(block=48)
    config.request.update(max_tokens=400)
    config.judge.update(kind="toy", agreement=0)
    config.train.update(learning_rate=1.6e-4, lengths=(192, 320, 512), rows=16, remat=False, epochs=2)
    # Sampled as in training, since greedy answers show the likeliest way of forking only.
    config.evaluate.update(count=384, temperatures=(1.0,), timed=16)
    return config


def tiny() -> ConfigDict:
    """All steps in seconds."""
    config = toy()
    config.prompts.update(toy="small", count=6)
    config.sample.update(count=3, block=2)
    config.decoding.update(lanes=4, rows=4, widths=())
    config.request.update(max_tokens=100, max_topic_tokens=4, max_chunk_tokens=40)
    config.train.update(lengths=(256,), rows=2)
    config.every.update(log=1, save=1)
    config.evaluate.update(count=4, temperatures=(0.0,), timed=0)
    return config


def smollm2_135m() -> ConfigDict:
    """SmolLM2 with an adapter, on instructions that packages ship."""
    config = preference()
    config.prompts.update(source="alpaca_rows")
    config.adapter.update(rank=16, alpha=32.0)
    config.train.update(learning_rate=1e-5, lengths=(256, 512, 1024), rows=4)
    return config
