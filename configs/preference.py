"""Preference optimisation: from Pasta-SFT to a better and faster model; the weight of quality is adjustable.

    python -m launch.preference --config=configs/preference.py:toy --workdir=runs/toy_preference \
        --config.model.path=runs/toy/model --config.baseline.path=runs/toy_baseline/model

A round samples answers, scores them, pairs the best with the worst, trains on the pairs, and evaluates. Each step is a
file in WORKDIR/artifacts (or in --config.artifacts, which runs may share) and is computed once: rerun the command to
resume a killed run. During training, Ctrl-C and SIGTERM save a checkpoint first and exit with 130 or 143. Changing
--config.score.quality_weight or --config.score.efficiency reuses all samples and verdicts. The workdir ends with model/
(and adapter/) and report.json; stdout with a table, its last line one JSON object.

Variants: tiny (a few prompts, to see that everything works), toy (the toy task; five minutes on two busy CPU cores;
docs/RESULTS.md has the expected figures), smollm2_135m (LoRA; a language model judges: set --config.judge.endpoint.url
and .model), pasta (pasta_sft, trained further: docs/results/adapters.md has the commands that make it and the records
that --config.prompts.records needs; the judge `checked`; on two CPU cores an hour, and 20 minutes for each
further weight, as samples and verdicts are reused).
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import common


def get_config(variant: str = "toy") -> ConfigDict:
    """The config of a variant."""
    variants = {"tiny": tiny, "toy": toy, "smollm2_135m": smollm2_135m, "pasta": pasta}
    return common.pick(variants, variant, "configs/preference.py")


def preference() -> ConfigDict:
    """The settings that variants share: the paper's."""
    config = ConfigDict(
        {
            "model": common.model(""),  # Pasta-SFT: where the first round starts, and the reference of every round
            "baseline": common.model(""),  # Baseline-SFT: trained on the same data without tags
            "artifacts": "",  # folder of the artifacts; empty: WORKDIR/artifacts
            "rounds": 2,
            "prompts": {
                "toy": "",  # a level of the toy task: small, medium, large
                "toy_seed": 2,  # other problems than those of supervised training
                "source": "",  # or a source of pairs (data/sources.py)
                "records": "",  # or the training prompts of a folder that launch.annotate wrote
                "count": 2000,
                "prompt_words": (1, 300),  # fewest and most, of pairs from a source
                "response_words": (1, 500),
            },
            "sample": {
                "count": 10,
                "temperature": 1.0,
                "baseline_temperature": 0.0,  # of Baseline-SFT's answers, which speed and quality are relative to
                "seed": 0,
                "block": 64,  # prompts decoded together
            },
            "decoding": common.decoding(lanes=64, rows=9),
            "request": {
                "max_tokens": 600,
                "max_topic_tokens": 12,
                "max_chunk_tokens": 638,
                "max_topic_words": placeholder(int),  # 0: no limit; None: the model's own
                "distinct_topics": placeholder(bool),  # no topic repeats one of the same answer; None: the model's own
                "end_stray_chunks": placeholder(bool),  # a chunk that would do what only main may ends; None: the same
            },
            "judge": {
                "kind": "llm",  # llm, toy, checked (finished, topics, repetition, …), or a proxy: rules, repetition
                "scale": 1.0,  # of a proxy: the difference that is a verdict of 73%; 0.1 suits shares
                "asks": 3,  # of llm: attempts to get a well-formed verdict
                "concurrency": 8,
                "checked": common.checked_judge(),
                "agreement": 300,  # pairs of chosen and rejected answers to compare the judge with; 0: none
                "endpoint": {
                    "url": "",  # of any endpoint with OpenAI's chat completions API
                    "model": "",
                    "key_variable": "",  # environment variable with the API key; empty: no key is sent
                    "temperature": 0.0,
                    "max_tokens": 300,
                    "timeout_s": 60.0,
                    "requests_per_minute": 600.0,
                    "retries": 6,  # then the run ends with exit code 3; rerun the command to resume
                    "backoff_s": 1.0,
                    "max_backoff_s": 60.0,
                    "dollars_per_million_in": 0.0,
                    "dollars_per_million_out": 0.0,
                },
            },
            "score": {
                "efficiency": "speedup",  # or parallelism, or their mean: arithmetic, harmonic
                "quality_weight": 2.0,  # relative to efficiency; inf: quality alone
                "floor": 0.25,  # smallest divisor: quality is confidence of wins over that of losses
            },
            "loss": {
                "loss": "bonbon",  # or dpo, ipo
                "alpha": 0.005,  # of bonbon: weight of the better answer's likelihood
                "margin": 0.0,  # of bonbon; 0: best of n's, (n - 1) H(n - 1)
                "beta": 0.1,  # of dpo and ipo
                "legal": 0.0,  # weight of: minus the log-probability that an answer is well-formed without the mask
            },
            "adapter": {
                "rank": 0,
                "alpha": 0.0,
                "targets": ("qkv", "out", "gate_up", "down"),
                # Of its file, or bfloat16: half the size, but rounds at low rates move weights by less than it rounds.
                "dtype": "float32",
            },  # rank 0: no adapter
            "train": {
                "epochs": 1,
                "learning_rate": 5e-7,  # decays linearly to 0
                "warmup": 0,
                "weight_decay": 0.0,
                "clip": 10.0,
                "b1": 0.9,
                "b2": 0.999,
                "eps": 1e-8,
                "lengths": (1024,),  # tokens per row; a pair gets the shortest that holds both answers
                "rows": 8,  # pairs per batch
                "accumulate": 1,
                "remat": True,
                "slice": 256,
                "products": "float32",  # or bfloat16, as in configs/sft.py
                "block": 0,  # tokens per block of attention; 0: all
                "seed": 0,
            },
            "mesh": common.training_mesh(),
            "executor": "local",  # where answers are sampled: local, or ray (docs/TPU.md)
            "ray": common.ray(),
            "every": {"log": 10, "save": 100},  # updates; 0: never
            "evaluate": {
                "count": 256,  # held-out prompts
                "temperatures": (0.0,),  # plots show the first
                "timed": 0,  # prompts that are also answered one at a time, for realised speedup
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
    # Sampled as in training: greedy answers only show the likeliest way of forking.
    config.evaluate.update(count=384, temperatures=(1.0,), timed=16)
    return config


def tiny() -> ConfigDict:
    """Every step in seconds."""
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
    """SmolLM2 with an adapter, on packaged instructions."""
    config = preference()
    config.prompts.update(source="alpaca_rows")
    config.adapter.update(rank=16, alpha=32.0)
    config.train.update(learning_rate=1e-5, lengths=(256, 512, 1024), rows=4)
    return config


def pasta() -> ConfigDict:
    """How the adapters with a preference round were trained; docs/results/adapters.md has what each changes."""
    config = smollm2_135m()
    config.model, config.baseline = common.shipped("runs/pasta_sft/adapter"), common.shipped("baseline_sft")
    config.rounds = 1
    config.prompts.update(source="", count=192, prompt_words=(3, 100))
    # Greedy, a small baseline repeats itself: any answer would be better.
    config.sample.update(count=8, temperature=0.8, baseline_temperature=0.6, block=32)
    config.decoding.update(lanes=32, rows=8, packed=(16, 32, 48, 64, 96))
    config.request.update(max_tokens=400)
    config.judge.update(kind="checked", agreement=0)
    config.judge.checked.products = "bfloat16"
    config.judge.checked.checks.weights.enough = 2.0  # or the briefest answers win
    config.loss.legal = 100.0  # per nat; the squared distance from the margin changes by some 36 per nat at first
    config.adapter.update(dtype="bfloat16")
    config.train.update(
        learning_rate=1e-4, lengths=(256, 384, 512), rows=2, accumulate=2, remat=False, warmup=5, products="bfloat16"
    )
    config.evaluate.update(count=48, temperatures=(0.6,))
    return config
