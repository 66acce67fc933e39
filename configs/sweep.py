"""Many runs of the preference stage over the values of some config fields; one table and one plot of all.

    python -m launch.sweep --config=configs/sweep.py:toy --workdir=runs/toy_sweep \
        --config.base.model.path=runs/toy/model --config.base.baseline.path=runs/toy_baseline/model

The runs share the steps' files, so whatever doesn't depend on the swept fields, sampling above all, is done once. The
same command goes on where it was killed. In the workdir: points/ (a run each), results.json, results.md, pareto.svg.

Variants: toy (the quality weight 1, 2, 4, 8 and inf on the toy task; ten minutes on two busy
CPU cores), toy_seeds (each with three seeds), tiny (two runs with a few prompts), smollm2_135m (the same
weights with SmolLM2).
"""

from ml_collections import ConfigDict

from configs import common, preference

DIAL = (1.0, 2.0, 4.0, 8.0, float("inf"))
SEED = "sample.seed+train.seed"  # fields joined by + get the same value


def get_config(variant: str = "toy") -> ConfigDict:
    """The config of a variant."""
    variants = {"tiny": tiny, "toy": toy, "toy_seeds": toy_seeds, "smollm2_135m": smollm2_135m}
    return common.pick(variants, variant, "configs/sweep.py")


def sweep(base: ConfigDict) -> ConfigDict:
    """Over the dial."""
    return ConfigDict(
        {
            "base": base,
            "mode": "grid",  # every combination; zip: the first values together, the second ones, …
            "fields": ("score.quality_weight",),  # of base
            "choices": (DIAL,),  # of each field
        }
    )


def toy() -> ConfigDict:
    """The toy task."""
    return sweep(preference.toy())


def toy_seeds() -> ConfigDict:
    """The toy task with three seeds; tables show means and ranges over them."""
    config = toy()
    config.fields = (SEED, "score.quality_weight")
    config.choices = ((0, 1, 2), DIAL)
    return config


def tiny() -> ConfigDict:
    """Two runs in seconds."""
    config = sweep(preference.tiny())
    config.choices = ((1.0, float("inf")),)
    return config


def smollm2_135m() -> ConfigDict:
    """SmolLM2."""
    return sweep(preference.smollm2_135m())
