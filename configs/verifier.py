"""Does the likelihood verifier tell text that uses a chunk's fact from text that doesn't?

    python -m launch.verifier --config=configs/verifier.py:smollm2_135m

Twins are constructed from a seed: answers that differ in their last part alone, which takes up a fact of a hidden chunk
or speaks of something else (pasta_jax/evaluate/dependence.py). With 200 pairs three minutes on two CPU cores; the area
under the curve is 0.997. `tiny` measures 8 pairs in half a minute.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = "smollm2_135m") -> ConfigDict:
    """The config of a variant."""
    variants = {
        "smollm2_135m": lambda: verifier(pairs=200),
        "tiny": lambda: verifier(pairs=8),
    }
    return common.pick(variants, variant, "configs/verifier.py")


def verifier(pairs: int) -> ConfigDict:
    """One model, so many pairs of twins."""
    return ConfigDict(
        {
            "model": common.model("smollm2_135m"),
            "pairs": pairs,
            "seed": 0,
            "max_cost": 0.15,  # the verifier's own limit, to be judged beside the best one; nats a token
            "window": 12,  # tokens; a passage's cost is that of its costliest window
            "lengths": (192,),  # slots for the ids of a row
        }
    )
