"""Measure whether the likelihood verifier can tell text that uses a chunk's fact from text that doesn't.

    python -m launch.verifier --config=configs/verifier.py:smollm2_135m

The pairs are constructed from a seed: twin answers that differ only in their last part, which uses a fact of a hidden
chunk or speaks of something else (pasta_jax/annotate/dependence.py). 200 pairs take three minutes on two CPU cores; the
area under the curve is 0.997. `tiny` measures 8 pairs in half a minute.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = "smollm2_135m") -> ConfigDict:
    """The config of a variant."""
    variants = {
        "smollm2_135m": lambda: verifier(pairs=200),  # three minutes on two CPU cores
        "tiny": lambda: verifier(pairs=8),  # half a minute
    }
    return common.pick(variants, variant, "configs/verifier.py")


def verifier(pairs: int) -> ConfigDict:
    """One model and a number of twins (annotate/verifier.py::Settings)."""
    return ConfigDict(
        {
            "model": common.model("smollm2_135m"),
            "pairs": pairs,
            "seed": 0,
            "max_cost": 0.15,  # the limit in use, reported with the best one; nats per token
            "window": 12,  # tokens; a passage costs what its most expensive window costs on average
            "lengths": (192,),  # slots for a row's ids
        }
    )
