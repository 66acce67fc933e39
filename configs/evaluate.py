r"""Measure a trained model, and its speed relative to its baseline's own answers.

    python -m launch.evaluate --config=configs/evaluate.py:toy \
        --config.model.path=runs/toy/model --config.baseline.path=runs/toy_baseline/model
    python -m launch.evaluate --config=configs/evaluate.py:alpaca --limit=80 --workdir=runs/alpaca

Variants of the toy task: toy (its held-out problems; the models are those of `launch.sft --config=configs/sft.py:toy`,
the baseline with --config.strip_tags=True) and tiny (four problems, in seconds, for the models of configs/sft.py:tiny).
They print shares of exact answers, forks, speedups, and how much exactness remains when a rule of decoding is broken
(docs/TOY.md shows one). toy takes two minutes on two CPU cores.

Variants on ordinary prompts: alpaca (AlpacaEval's 805), mt_bench (80, both turns) and ifeval (541, with its rules) have
five systems on SmolLM2: the adapter that forks, the same with tags forbidden, the baseline, and Skeleton-of-Thought
with and without a shared pool. smollm2 compares the first three only, or adapters named with --config.model.adapter and
--config.baseline.adapter; local does so with other models, for example those of two training runs:

    python -m launch.evaluate --config=configs/evaluate.py:local --config.model.path=runs/mine \
        --config.baseline.path=runs/mine_baseline --config.prompts.file=questions.jsonl --workdir=runs/mine_evaluation

taught is what launch.teach evaluates with: few prompts, some timed, with a quantised file's own blocks.

ablation decodes with one part changed from what the adapter was trained with: no topics, no syncs, other positions.
--limit=80 takes 80 prompts of each set, those whose text has the smallest hash; a later run with more goes on from
there. A killed run resumes. WORKDIR gets report.html, report.md and report.json, one record per answer, and the answers
as alpaca_eval and MT-bench's judge read them. Each system takes some 5 s a prompt on two CPU cores, and twice that
where it is timed.

Each prints a table, and on the last line one JSON object: all figures of the toy task; of other prompts the speedups,
and where report.json is.
"""

from pasta_jax.evaluate.settings import EvaluateSettings, PromptCounts
from pasta_jax.runs.settings import changed
from pasta_jax.toy.settings import ToyEvaluationSettings
from pasta_jax.weights.settings import ModelSource


def toy() -> ToyEvaluationSettings:
    """The toy task."""
    return ToyEvaluationSettings()


def tiny() -> ToyEvaluationSettings:
    """A few problems for the models of configs/sft.py:tiny, in seconds."""
    return changed(
        ToyEvaluationSettings(level="small", problems=4, ablation=0),
        decoding=dict(lanes=4, rows=4),
        request=dict(max_tokens=60),
    )


def smollm2() -> EvaluateSettings:
    """Adapters on SmolLM2, on ordinary prompts."""
    return EvaluateSettings()


def local() -> EvaluateSettings:
    """Any models of docs/MODELS.md, or runs of training, at model.path and baseline.path."""
    return EvaluateSettings(model=ModelSource(dtype="platform"), baseline=ModelSource(dtype="platform"))


def taught() -> EvaluateSettings:
    """A taught model, itself with tags forbidden, and the model that it was."""
    return changed(
        local(),
        model=dict(dtype="auto"),
        baseline=dict(dtype="auto"),
        decoding=dict(lanes=4, widths=(2, 4, 6), packed=()),
        unmasked=0,
        pairs=10,
        timed=8,
        rounds=1,
    )


def alpaca() -> EvaluateSettings:
    """AlpacaEval's 805 prompts, five systems."""
    return _all_systems(alpaca_eval=805)


def mt_bench() -> EvaluateSettings:
    """MT-bench's 80 prompts, both turns, five systems."""
    return _all_systems(mt_bench=80)


def ifeval() -> EvaluateSettings:
    """IFEval's 541 prompts with its rules, five systems."""
    return _all_systems(ifeval=541)


def ablation() -> EvaluateSettings:
    """The shipped adapters, and the one that forks with one part of decoding changed from its training."""
    return EvaluateSettings(
        systems=("model", "baseline", "no_topics", "no_syncs", "constant", "shared_start"),
        prompts=PromptCounts(alpaca_eval=100, no_fork=0),
        unmasked=0,
        pairs=0,
        judges=("checked",),
    )


def _all_systems(**prompts: int) -> EvaluateSettings:
    """The shipped adapters and Skeleton-of-Thought, on all prompts of one set, each timed once, one at a time."""
    return EvaluateSettings(
        systems=("model", "untagged", "baseline", "skeleton", "unshared"),
        prompts=PromptCounts(**dict(alpaca_eval=0, no_fork=0) | prompts),
        timed=sum(prompts.values()),
        rounds=1,
        judges=("repetition",),
    )
