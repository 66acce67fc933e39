r"""Runs of the preference stage over values of some config fields, with one table and one plot of all of them.

    python -m launch.sweep --config=configs/sweep.py:toy --workdir=runs/toy_sweep \
        --config.base.model.path=runs/toy/model --config.base.baseline.path=runs/toy_baseline/model

The runs share artifacts, so whatever does not depend on the swept fields, above all sampling, is computed once. Rerun
the command to resume. The workdir ends with points/ (a folder per run), results.json, results.md and pareto.svg. A run
that fails stops no other one; the command then ends with exit code 1 and names it. A run whose samples have no better
and worse answer is marked "no pairs". The last line on stdout is one JSON object with the place of results.json.

--config.executor=ray does the runs on a Ray cluster (docs/TPU.md). --config.executor=commands prints a command for each
run, for any scheduler; when all have ended, the same command with --config.executor=local makes the table.

Other fields of configs/preference.py can be swept too: "--config.fields=('train.learning_rate','loss.alpha')"
"--config.choices=((1e-4,2e-4),(0.005,0.05))" does all four combinations, and --config.mode=zip two. Infinity is 1e999.

Variants: toy (the quality weights 1, 2, 4, 8 and inf on the toy task; ten minutes on two busy CPU cores), toy_seeds
(each weight with three seeds), tiny (two runs with a few prompts, for models of configs/sft.py:tiny; for those of
configs/sft.py:toy add --config.base.prompts.toy=medium), smollm2_135m (the same weights with SmolLM2), pasta (the
weights 1, 4 and inf from the adapter pasta_sft on: docs/results/adapters.md has the commands that make it and the
records that --config.base.prompts.records needs; an hour and 40 minutes on two CPU cores).
"""

from configs import preference
from pasta_jax.preference.settings import SweepSettings


def toy() -> SweepSettings:
    """The toy task."""
    return SweepSettings(preference.toy())


def toy_seeds() -> SweepSettings:
    """The toy task with three seeds; the table shows means and ranges."""
    fields = ("sample.seed+train.seed", "score.quality_weight")
    return SweepSettings(preference.toy(), fields=fields, choices=((0, 1, 2), *SweepSettings().choices))


def tiny() -> SweepSettings:
    """Two runs in seconds."""
    return SweepSettings(preference.tiny(), choices=((1.0, float("inf")),))


def smollm2_135m() -> SweepSettings:
    """SmolLM2."""
    return SweepSettings(preference.smollm2_135m())


def pasta() -> SweepSettings:
    """From the adapter that forks on."""
    return SweepSettings(preference.pasta(), choices=((1.0, 4.0, float("inf")),))
