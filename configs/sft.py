r"""Train a model on PASTA-LANG: Pasta-SFT, or with --config.strip_tags=True Baseline-SFT on the same answers.

    python -m launch.sft --config=configs/sft.py:toy --workdir=runs/toy

Rerun the command to resume a run that was stopped or killed. Ctrl-C and SIGTERM save a checkpoint first and exit with
130 or 143; a second one ends at once. The workdir holds config.json, metrics.jsonl, checkpoints/ and, at the end,
model/, which `launch.decode --config=configs/decode.py:local --config.model.path=WORKDIR` reads. With an adapter, it
also holds adapter/, which `peft` reads too; --config.model.adapter=PATH trains one further. One process at a time may
use a workdir.

Variants:

tiny          the toy task at its smallest: under a minute on two CPU cores; everything runs, little is learnt
toy           the toy task: five minutes on two CPU cores; afterwards nearly all answers that can be forked are, and 97
              to 100% of the held-out answers are byte-exact, depending on the seed (docs/TOY.md)
smollm2_135m  SmolLM2 with an adapter; needs --config.data.records=<folder that launch.annotate wrote>. On two CPU cores
              a step of 2 rows of 512 tokens takes about 8 s and 5 GB, so it is meant for accelerators. For a first try:

    python -m launch.sft --config=configs/sft.py:smollm2_135m --config.data.records=runs/structure --workdir=runs/try \
        --config.data.rows=2 "--config.data.lengths=(512,)" --config.train.epochs=0 --config.train.steps=20

local         any model of docs/MODELS.md at --config.model.path=<GGUF file, Hugging Face folder or id>, in the same way
pasta         what pasta_sft and baseline_sft were trained with, but for what the commands in docs/results/adapters.md
              change: SmolLM2 with an adapter, on records of launch.annotate's :pasta. With --config.train.remat=False,
              280 tokens per second on two CPU cores with AVX512-BF16, and 180 with --config.train.products=float32 too,
              which suits other CPUs
taught        how launch.teach trains: an adapter of any model, beside weights in bfloat16
apar          the rival APAR from the same records with the same settings: forks without topics, lengths and joins
gemma3_270m   Gemma 3 270M, all parameters, on such records
gemma_7b      the paper's settings, on such records; needs --config.model.path=<folder with the weights>. Weights,
              gradients and moments take 16 bytes per parameter, 140 GB, divided over the devices of --config.mesh.model
              and, with --config.mesh.fsdp=True, of --config.mesh.data

The last two have not been trained to completion yet.
"""

from pasta_jax.runs.settings import changed
from pasta_jax.train.settings import SftSettings


def toy() -> SftSettings:
    """The toy task, from random weights."""
    return changed(
        SftSettings(),
        fresh=dict(layers=4, embed=128, ff=384, heads=4, kv_heads=4, head_dim=32, context=1024, widen=3.0),
        data=dict(toy="medium", toy_count=16_000, lengths=(256,)),
        train=dict(epochs=0, steps=1000, learning_rate=3e-3, warmup=100, weight_decay=0.01, b2=0.98, remat=False),
        weights=dict(main=2.0),  # few labels are in the lines that name the ends
    )


def tiny() -> SftSettings:
    """The toy task in seconds."""
    return changed(
        toy(),
        fresh=dict(layers=2, embed=32, ff=64, heads=4, kv_heads=2, head_dim=8),
        data=dict(toy="small", toy_count=64, held_out=8, lengths=(128,), rows=4),
        train=dict(steps=12, learning_rate=1e-2, warmup=2),
        every=dict(log=1, held_out=6, probe=12, save=4),
        probe=dict(prompts=2, rows=4, max_tokens=60),
    )


def smollm2_135m() -> SftSettings:
    """SmolLM2 with an adapter."""
    return changed(
        SftSettings(),
        model=dict(preset="smollm2_135m"),
        adapter=dict(rank=16, alpha=32.0, dtype="bfloat16"),  # weights move by far more than it rounds
        train=dict(learning_rate=2e-4, warmup=50),
    )


def local() -> SftSettings:
    """Any model of docs/MODELS.md at model.path, with an adapter."""
    return changed(smollm2_135m(), model=dict(preset=""))


def pasta() -> SftSettings:
    """How both passes of pasta_sft and baseline_sft begin; docs/results/adapters.md has what each changes."""
    return changed(
        smollm2_135m(),
        data=dict(lengths=(256, 320, 384, 448, 512), rows=2),
        train=dict(learning_rate=1e-3, warmup=20, epochs=3, keep_products=True, slice=64, b2=0.99, products="bfloat16"),
        weights=dict(bracket=2.0),
        defaults=dict(temperature=0.6, max_topic_words=3, distinct_topics=True, end_stray_chunks=True),
        every=dict(held_out=100, probe=0, save=50),
    )


def taught() -> SftSettings:
    """How launch.teach trains an adapter."""
    return changed(
        pasta(),
        model=dict(preset="", dtype="bfloat16"),
        data=dict(lengths=(512,), held_out=0),
        train=dict(warmup=5, learning_rate=7e-4),
        weights=dict(legal=32.0, length=2.0),
        every=dict(held_out=0, save=4, log=1),
        keep=dict(newest=2),
    )


def apar() -> SftSettings:
    """The rival APAR on the same records, with the same settings."""
    return changed(
        pasta(),
        tree=True,
        positions=dict(policy="shared_start"),
        defaults=dict(max_topic_words=0, distinct_topics=False),
    )


def gemma3_270m() -> SftSettings:
    """Gemma 3 270M, all parameters."""
    return changed(SftSettings(), model=dict(preset="gemma3_270m"), train=dict(learning_rate=2e-5, warmup=50))


def gemma_7b() -> SftSettings:
    """The paper's model and settings."""
    return changed(SftSettings(), model=dict(preset="gemma_7b"), data=dict(lengths=(2048,)))
