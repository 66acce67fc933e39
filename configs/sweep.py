"""Runs of the preference stage over values of some config fields, with one table and one plot of all of them.

    python -m launch.sweep --config=configs/sweep.py:toy --workdir=runs/toy_sweep \
        --config.base.model.path=runs/toy/model --config.base.baseline.path=runs/toy_baseline/model

The runs share artifacts, so whatever does not depend on the swept fields, above all sampling, is computed once. Rerun
the command to resume. The workdir ends with points/ (a folder per run), results.json, results.md and pareto.svg. A run
that fails stops no other one; the command then ends with exit code 1 and names it.

--config.executor=ray does the runs on a Ray cluster (docs/TPU.md). --config.executor=commands prints a command for each
run, for any scheduler; when all have ended, the same command with --config.executor=local makes the table.

Variants: toy (the quality weights 1, 2, 4, 8 and inf on the toy task; ten minutes on two busy CPU cores), toy_seeds
(each weight with three seeds), tiny (two runs with a few prompts, for models of configs/sft.py:tiny; for those of
configs/sft.py:toy add --config.base.prompts.toy=medium), smollm2_135m (the same weights with SmolLM2), pasta (the
weights 1, 4 and inf from the adapter pasta_sft on: docs/results/adapters.md has the commands that make it and the
records that --config.base.prompts.records needs; an hour and 40 minutes on two CPU cores).
"""

from ml_collections import ConfigDict

from configs import common, preference

WEIGHTS = (1.0, 2.0, 4.0, 8.0, float("inf"))
SEEDS = "sample.seed+train.seed"  # fields joined by + get the same value


def get_config(variant: str = "toy") -> ConfigDict:
    """The config of a variant."""
    variants = {"tiny": tiny, "toy": toy, "toy_seeds": toy_seeds, "smollm2_135m": smollm2_135m, "pasta": pasta}
    return common.pick(variants, variant, "configs/sweep.py")


def sweep(base: ConfigDict) -> ConfigDict:
    """A sweep over the quality weight."""
    return ConfigDict(
        {
            "base": base,
            "mode": "grid",  # every combination; zip: the first values of all fields, then the second ones, …
            "fields": ("score.quality_weight",),  # of base
            "choices": (WEIGHTS,),  # one list per field
            # Where runs happen: local (one after another), ray (config.ray), or commands: print one for each run.
            "executor": "local",
            "ray": common.ray(),
        }
    )


def toy() -> ConfigDict:
    """The toy task."""
    return sweep(preference.toy())


def toy_seeds() -> ConfigDict:
    """The toy task with three seeds; the table shows means and ranges."""
    config = toy()
    config.fields = (SEEDS, "score.quality_weight")
    config.choices = ((0, 1, 2), WEIGHTS)
    return config


def tiny() -> ConfigDict:
    """Two runs in seconds."""
    config = sweep(preference.tiny())
    config.choices = ((1.0, float("inf")),)
    return config


def smollm2_135m() -> ConfigDict:
    """SmolLM2."""
    return sweep(preference.smollm2_135m())


def pasta() -> ConfigDict:
    """From the shipped adapter that forks on."""
    config = sweep(preference.pasta())
    config.choices = ((1.0, 4.0, float("inf")),)
    return config
