"""Train a model on PASTA-LANG: Pasta-SFT, or with --config.strip_tags=True Baseline-SFT on the same answers.

    python -m launch.sft --config=configs/sft.py:toy --workdir=runs/toy

Rerun the command to resume a run that was stopped or killed. Ctrl-C and SIGTERM save a checkpoint first and exit with
130 or 143; a second one ends at once. The workdir holds config.json, metrics.jsonl, checkpoints/ and, at the end,
model/, which `launch.decode --config=configs/decode.py:local --config.model.path=…/model` reads. With an adapter, it
also holds adapter/, which `peft` reads too; --config.model.adapter=PATH trains one further. One process at a time may
use a workdir.

Variants:

tiny          the toy task at its smallest: under a minute on two CPU cores; everything runs, little is learnt
toy           the toy task: five minutes on two CPU cores; afterwards nearly all answers that can be forked are, and 97
              to 100% of the held-out answers are byte-exact, depending on the seed (docs/RESULTS.md)
smollm2_135m  SmolLM2 with an adapter; needs --config.data.records=<folder that launch.annotate wrote>. On two CPU cores
              a step of 2 rows of 512 tokens takes about 8 s and 5 GB, so it is meant for accelerators. For a first try:
              --config.data.rows=2 "--config.data.lengths=(512,)" --config.train.epochs=0 --config.train.steps=20
pasta         what pasta_sft and baseline_sft were trained with, but for what the commands in docs/results/adapters.md
              change: SmolLM2 with an adapter, on records of launch.annotate's :pasta; 280 tokens per second on two
              CPU cores with AVX512-BF16, 180 with --config.train.products=float32, which suits other CPUs
apar          the rival APAR from the same records with the same settings: forks without topics, lengths and joins
gemma3_270m   Gemma 3 270M, all parameters, on such records
gemma_7b      the paper's settings, on such records; needs --config.model.path=<folder with the weights>. Weights,
              gradients and moments take 16 bytes per parameter, 140 GB, divided over the devices of --config.mesh.model
              and, with --config.mesh.fsdp=True, of --config.mesh.data

The last three have not been trained to completion yet.
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
            "pasta": pasta,
            "apar": apar,
            "gemma3_270m": gemma3_270m,
            "gemma_7b": gemma_7b,
        },
        variant,
        "configs/sft.py",
    )


def sft() -> ConfigDict:
    """The settings that all variants share; the paper's."""
    return ConfigDict(
        {
            "model": common.model(""),
            # Train a model from random weights instead, with the toy task's tokenizer; layers 0: start from `model`.
            "fresh": {
                "layers": 0,
                "embed": 0,
                "ff": 0,
                "heads": 0,
                "kv_heads": 0,
                "head_dim": 0,
                "context": 0,
                "widen": 1.0,  # factor on the initial weights; small models learn faster from larger ones
            },
            # Where a new adapter's tag rows start: near words of their meaning, or apart from all words.
            "tag_rows": "words",
            # How the trained model is meant to be sampled, written beside it (weights/generation_config.py).
            "defaults": {
                "temperature": 0.0,  # greedy
                "top_k": 0,
                "top_p": 1.0,
                "max_topic_words": 0,  # 0: no limit
                "distinct_topics": False,  # True: no topic repeats one of the same answer
                "end_stray_chunks": False,  # True: a chunk that would fork, join or end the turn ends instead
            },
            "strip_tags": False,  # True: train on plain answers, for the baseline
            "tree": False,  # True: forks without topics, lengths and joins, as APAR has them (lang/tree.py)
            # Position policy: predicted, constant (main skips `constant` ids), oracle (training only), shared_start.
            # Stored with the model, which is then decoded with it. A trained model keeps its own.
            "positions": {"policy": "predicted", "constant": 40},
            "data": {
                "records": "",  # folder that launch.annotate wrote
                "toy": "",  # or a level of the toy task: small, medium, large
                "toy_count": 0,  # number of its problems
                "toy_seed": 1,
                "held_out": 64,  # records to measure on that are not trained on
                "lengths": (1024,),  # tokens of a batch row; a record goes to the shortest that fits it
                "rows": 8,
                "packed": True,  # several records per row
                "too_long": "drop",  # or split
                # Share of the chunks that go on with what main writes before its next promise, and are to end there:
                # records end their chunks in time, so a model learns from them what comes after "\n2." in main only.
                "stray": 0.0,
            },
            "adapter": {
                "rank": 0,  # 0: none, all parameters are trained; an adapter of config.model is merged first
                "alpha": 0.0,
                "targets": ("qkv", "out", "gate_up", "down"),
                "dtype": "float32",  # of its file, or bfloat16: half the size
            },
            "train": {
                "epochs": 4,
                "steps": 0,  # a number of steps instead of epochs, which must then be 0
                "learning_rate": 1e-5,  # decays linearly to 0
                "warmup": 0,  # steps in which it rises linearly first
                "weight_decay": 0.0,
                "clip": 1.0,
                "b1": 0.9,
                "b2": 0.999,
                "eps": 1e-8,
                "accumulate": 1,  # parts of a batch, computed one after another to save memory
                "remat": True,  # recompute each layer in the backward pass: less memory, a third more time
                "block": 0,  # tokens per block of attention, n * 128 on a TPU; 0: a whole row, with its mask in memory
                "slice": 256,  # tokens of a row whose logits are in memory at a time
                # Of the factors in products with weights, on platforms that compute in float32: bfloat16 takes half the
                # time on CPUs with AVX512-BF16. Accelerators use bfloat16 for everything.
                "products": "float32",
                "seed": 0,  # of fresh weights, new adapters, and the order of the data
            },
            "weights": {
                "main": 1.0,
                "topic": 1.0,
                "length": 1.0,
                "chunk": 1.0,
                "sync": 1.0,
                "bracket": 1.0,  # a further factor on [PROMISE] and [/ASYNC], labels of kinds main and chunk
                # Added, times the mean over labels: the negative log-probability of any id that is legal in a label's
                # place. Few labels are tags, so the likelihood alone hardly teaches where tags are illegal.
                "legal": 0.0,
            },  # of each kind of label in the loss
            "mesh": common.training_mesh(),
            "every": {"log": 10, "held_out": 200, "probe": 200, "save": 200},  # in steps; 0: never
            "keep": {"newest": 3, "every": 0},  # checkpoints: the newest, and those at multiples of `every` steps
            # Held-out prompts answered greedily during training, to see whether and how well the model forks.
            "probe": {"prompts": 8, "rows": 8, "max_tokens": 400},
            "tensorboard": False,  # write TensorBoard events as well
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
    """The toy task, from random weights."""
    config = sft()
    config.fresh.update(layers=4, embed=128, ff=384, heads=4, kv_heads=4, head_dim=32, context=1024, widen=3.0)
    config.data.update(toy="medium", toy_count=16_000, lengths=(256,), rows=8)
    config.train.update(epochs=0, steps=1000, learning_rate=3e-3, warmup=100, weight_decay=0.01, b2=0.98, remat=False)
    config.weights.main = 2.0  # few labels are in the lines that name the ends
    return config


def smollm2_135m() -> ConfigDict:
    """SmolLM2 with an adapter."""
    config = sft()
    config.model = common.model("smollm2_135m")
    config.adapter.update(rank=16, alpha=32.0, dtype="bfloat16")  # weights move by far more than it rounds
    config.train.update(learning_rate=2e-4, warmup=50)
    return config


def pasta() -> ConfigDict:
    """How both passes of pasta_sft and baseline_sft begin; docs/results/adapters.md has what each changes."""
    config = smollm2_135m()
    config.data.update(lengths=(256, 320, 384, 448, 512), rows=2, packed=True)
    config.train.update(learning_rate=1e-3, warmup=20, epochs=3, remat=False, slice=64, b2=0.99, products="bfloat16")
    config.weights.bracket = 2.0
    config.defaults.update(temperature=0.6, max_topic_words=3, distinct_topics=True, end_stray_chunks=True)
    config.every.update(held_out=100, probe=0, save=50)
    return config


def apar() -> ConfigDict:
    """The rival APAR on the same records, with the same settings."""
    config = pasta()
    config.tree = True
    config.positions.policy = "shared_start"
    config.defaults.update(max_topic_words=0, distinct_topics=False)
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
