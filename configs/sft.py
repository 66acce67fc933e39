"""Train a model on PASTA-LANG: Pasta-SFT, or with --config.strip_tags=True Baseline-SFT on the same answers.

    python -m launch.sft --config=configs/sft.py:toy --workdir=runs/toy

The same command goes on where it was stopped or killed. In the workdir: config.json, metrics.jsonl, checkpoints/, and
at the end model/, which `launch.decode --config=configs/decode.py:local --config.model.path=…/model` reads.

Variants:

tiny          the toy task as small as it can be: under a minute on two CPU cores; all works, little is learnt
toy           the toy task: five minutes on two CPU cores; then all but one answer that can be forked is, and 99 % of
              held-out ones are right to the byte (docs/RESULTS.md)
smollm2_135m  SmolLM2 with an adapter; wants --config.data.records=<folder that launch.annotate wrote>. On two CPU cores
              a step of 2 rows of 512 tokens takes about 8 s and 5 GB, so it is for accelerators, or for a first look:
              --config.data.rows=2 "--config.data.lengths=(512,)" --config.train.epochs=0 --config.train.steps=20
gemma3_270m   Gemma 3 270M, all parameters, on such records
gemma_7b      the paper's settings, on such records; wants --config.model.path=<folder with the weights>. Weights, their
              moments and gradients are 16 bytes a parameter, 140 GB, to be shared by the devices of --config.mesh.model

The last three have not been trained to their end yet.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = "toy") -> ConfigDict:
    """The config of a variant."""
    return common.pick(
        {
            "tiny": tiny,
            "toy": toy,
            "smollm2_135m": smollm2_135m,
            "gemma3_270m": gemma3_270m,
            "gemma_7b": gemma_7b,
        },
        variant,
        "configs/sft.py",
    )


def sft() -> ConfigDict:
    """What all variants share, with the paper's settings."""
    return ConfigDict(
        {
            "model": common.model(""),
            # A model to be trained from nothing instead, with the toy task's tokenizer; layers 0: not this.
            "fresh": {
                "layers": 0,
                "embed": 0,
                "ff": 0,
                "heads": 0,
                "kv_heads": 0,
                "head_dim": 0,
                "context": 0,
                "widen": 1.0,  # factor on the first weights; small models learn sooner from larger ones
            },
            "strip_tags": False,  # True: plain answers, for the baseline
            # Position policy: predicted, constant (main skips `constant` ids), oracle (training only), shared_start.
            # The model stores it and is decoded with it.
            "positions": {"policy": "predicted", "constant": 40},
            "data": {
                "records": "",  # folder that launch.annotate wrote
                "toy": "",  # or a level of the toy task: small, medium, large
                "toy_count": 0,  # its problems
                "toy_seed": 1,
                "held_out": 64,  # records kept apart to measure on
                "lengths": (1024,),  # tokens of a row; a record goes to the shortest that holds it
                "rows": 8,
                "packed": True,  # several records to a row
                "too_long": "drop",  # or split
            },
            "adapter": {
                "rank": 0,
                "alpha": 0.0,
                "targets": ("qkv", "out", "gate_up", "down"),
            },  # rank 0: none
            "train": {
                "epochs": 4,
                "steps": 0,  # other than 0: so many steps instead
                "learning_rate": 1e-5,  # falls to 0 linearly
                "warmup": 0,  # steps that rise to it first
                "weight_decay": 0.0,
                "clip": 1.0,
                "b1": 0.9,
                "b2": 0.999,
                "eps": 1e-8,
                "accumulate": 1,  # parts of a batch that are computed one after another
                "remat": True,  # compute each layer again in the backward pass: less memory for a third more time
                "block": 0,  # tokens attention looks at at a time, on a TPU n * 128; 0: a row, with its mask in memory
                "slice": 256,  # tokens of a row whose logits exist at a time
                "seed": 0,  # of fresh weights, adapters, and the order of the data
            },
            "weights": {"main": 1.0, "topic": 1.0, "length": 1.0, "chunk": 1.0, "sync": 1.0},  # of each kind of label
            "mesh": {"data": 0, "model": 1},  # devices that share rows, and heads; data 0: all that model leaves
            "every": {"log": 10, "held_out": 200, "probe": 200, "save": 200},  # steps; 0: never
            "keep": {"newest": 3, "every": 0},  # checkpoints; those at multiples of `every` steps stay for good
            # Held-out prompts that are answered greedily now and then, to see whether and how well the model forks.
            "probe": {"prompts": 8, "rows": 8, "max_tokens": 400},
            "tensorboard": False,  # also write TensorBoard events
        }
    )


def tiny() -> ConfigDict:
    """The toy task in seconds."""
    config = toy()
    config.fresh.update(layers=2, embed=32, ff=64, heads=4, kv_heads=2, head_dim=8, context=1024)
    config.data.update(toy="small", toy_count=64, held_out=8, lengths=(128,), rows=4)
    config.train.update(epochs=0, steps=12, learning_rate=1e-2, warmup=2)
    config.every.update(log=1, held_out=6, probe=12, save=4)
    config.probe.update(prompts=2, rows=4, max_tokens=60)
    return config


def toy() -> ConfigDict:
    """The toy task, from nothing."""
    config = sft()
    config.fresh.update(layers=4, embed=128, ff=384, heads=4, kv_heads=4, head_dim=32, context=1024, widen=3.0)
    config.data.update(toy="medium", toy_count=16_000, lengths=(256,), rows=8)
    config.train.update(epochs=0, steps=1000, learning_rate=3e-3, warmup=100, weight_decay=0.01, b2=0.98, remat=False)
    config.weights.main = 2.0  # the lines of ends are few
    return config


def smollm2_135m() -> ConfigDict:
    """SmolLM2 with an adapter."""
    config = sft()
    config.model = common.model("smollm2_135m")
    config.adapter.update(rank=16, alpha=32.0)
    config.train.update(learning_rate=2e-4, warmup=50)
    return config


def gemma3_270m() -> ConfigDict:
    """Gemma 3 270M, all parameters."""
    config = sft()
    config.model = common.model("gemma3_270m")
    config.train.update(learning_rate=2e-5, warmup=50)
    return config


def gemma_7b() -> ConfigDict:
    """The paper's model and settings."""
    config = sft()
    config.model = common.model("gemma_7b")
    config.data.update(lengths=(2048,))
    return config
