"""Train a judge that reads: a reward model on published verdicts of GPT-4, for questions that it has not learnt from.

    git clone https://github.com/tatsu-lab/alpaca_eval ~/alpaca_eval
    python -m launch.train_judge --config=configs/train_judge.py:smollm2 --config.verdicts=$HOME/alpaca_eval/results \
        --workdir=runs/judge
    python -m launch.judges --config=configs/judges.py:reward --config.reward.model=runs/judge

Two models' answers to a question are compared by the difference of the log-odds with which GPT-4 preferred each to the
same reference. All questions are divided into parts (five, or two); the judge of a part is trained on the others, and
never on answers of 20 models, which all figures are about. alpaca_eval's data are under CC BY-NC 4.0, and so is what is
learnt from them: keep the judges to research. Rerun the command to resume.

Variants: smollm2, qwen (Qwen2.5-Coder-1.5B, for an accelerator: some three and a half minutes a judge on one
H200), tiny (a few pairs, to see that it works).
"""

from pasta_jax.judges.settings import TrainJudgeSettings
from pasta_jax.runs.settings import changed
from pasta_jax.weights.settings import ModelSource


def smollm2() -> TrainJudgeSettings:
    """SmolLM2-135M-Instruct."""
    return TrainJudgeSettings()


def qwen() -> TrainJudgeSettings:
    """Qwen2.5-Coder-1.5B-Instruct; each of two judges learns from half of the questions."""
    return changed(
        TrainJudgeSettings(),
        model=ModelSource("qwen2_5_coder_1_5b"),
        folds=2,
        measured=1000,
        ranked=400,
        rows=8,
        train=dict(learning_rate=2e-4),
    )


def tiny() -> TrainJudgeSettings:
    """A few pairs; nothing is learnt."""
    return changed(
        TrainJudgeSettings(),
        folds=2,
        hidden=4,
        pairs=8,
        measured=16,  # of published answers, a tenth fits into so few tokens
        ranked=2,
        wins=1.0,
        lengths=(128, 256),
        rows=2,
        adapter=dict(rank=2, alpha=4.0),
        train=dict(warmup=0),
    )
