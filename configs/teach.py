r"""Teach a model to fork, from its own answers: from prompts to an adapter, its evaluation and a page.

    python -m launch.teach --config=configs/teach.py:local --config.model.path=FOLDER --workdir=runs/teach

FOLDER is a Hugging Face folder, its id, or a GGUF file of a model of docs/MODELS.md that follows instructions. The
command prints what it is going to do, and with --plan nothing else. Rerun it to resume a run that was stopped or
killed; each stage is printed as the command that it stands for. Your own prompts: --config.prompts.file=FILE, JSON
lines with `prompt`. At the end, WORKDIR/sft/adapter is the adapter (if they ran, corrected_sft/adapter or
preference/adapter), WORKDIR/evaluation/report.html what it does, and WORKDIR/side_by_side.md has ten answers beside
those of the model as it was.

Variants:

local    any model, at --config.model.path
qwen     Qwen2.5-Coder-1.5B-Instruct (setup.sh --qwen)
smollm2  SmolLM2-135M-Instruct; few of its own answers are good enough to learn from
tiny     twelve prompts and two steps of training, to see every stage in little time; needs --config.model.path
"""

from pasta_jax.runs.settings import changed
from pasta_jax.teaching.settings import TeachSettings
from pasta_jax.weights.settings import ModelSource


def local() -> TeachSettings:
    """Any model that follows instructions, at model.path."""
    return TeachSettings()


def qwen() -> TeachSettings:
    """Qwen2.5-Coder-1.5B-Instruct; an adapter of rank 8 takes 19 MB."""
    return changed(
        TeachSettings(model=ModelSource("qwen2_5_coder_1_5b", bits=8)),  # of what decoding multiplies; faster by rows
        answers=dict(temperature=0.7, top_p=0.8),  # what Qwen's own generation_config.json states, the file does not
        training=dict(adapter=dict(rank=8, alpha=16.0)),
    )


def smollm2() -> TeachSettings:
    """SmolLM2-135M-Instruct."""
    return changed(
        TeachSettings(model=ModelSource("smollm2_135m")),
        answers=dict(temperature=0.6),
        training=dict(learning_rate=1e-3, keep_products=True),
    )


def tiny() -> TeachSettings:
    """Every stage in little time, and nothing learnt."""
    return changed(
        TeachSettings(),
        prompts=dict(count=12, held_out=2),
        answers=dict(lanes=4, max_tokens=100, temperature=1.0),
        filtered=False,
        training=dict(adapter=dict(rank=2, alpha=4.0), epochs=0, steps=2, warmup=0, lengths=(128,), save=1),
        evaluate_tokens=24,
    )
