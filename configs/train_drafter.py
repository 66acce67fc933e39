"""Train a drafter: a small network that guesses a model's next tokens, so that several are decoded in a step.

    python -m launch.decode --config=configs/decode.py:pasta --prompts_file=prompts.jsonl --output=runs/answers.jsonl
    python -m launch.train_drafter --config.answers=runs/answers.jsonl --workdir=runs/drafter
    python -m launch.decode --config=configs/decode.py:pasta --config.model.drafter=runs/drafter \
        --config.decoding.draft=drafter "Give three tips for staying healthy."

Answers stay the same: a guess counts only where the model samples the same token. The first command needs prompts of
the kind that the model will be asked, a few hundred; the hidden states of its answers are computed once and kept in the
workdir, with 2 bytes a number. Rerun the command to resume.

Variants: smollm2 (with the adapter pasta), qwen (with its adapter), local (any model at --config.model.path).
"""

from pasta_jax.train.settings import DrafterSettings
from pasta_jax.weights.settings import ModelSource


def smollm2() -> DrafterSettings:
    """SmolLM2-135M-Instruct with the adapter that forks."""
    return DrafterSettings()


def qwen() -> DrafterSettings:
    """Qwen2.5-Coder-1.5B with the adapter that forks."""
    return DrafterSettings(ModelSource("qwen2_5_coder_1_5b", adapter="qwen2_5_coder_1_5b", bits=8))


def local() -> DrafterSettings:
    """Any model at model.path."""
    return DrafterSettings(ModelSource())
