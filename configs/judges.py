"""Measure how often the proxy judges agree with known preferences.

    python -m launch.judges --config=configs/judges.py:offline

300 questions with a chosen and a rejected answer (the dataset does not state who chose), judged in both orders.
Chance is 50 ± 5.8%. `rules` reads IFEval's questions, none of which is among the 300, so it is undecided on all of
them. There is no seed: nothing is random. Takes seconds; docs/RESULTS.md has the figures to expect.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = "offline") -> ConfigDict:
    """The config of a variant."""
    variants = {
        "offline": lambda: judges(("rules", "repetition"), pairs=300),  # all pairs, in seconds
        "tiny": lambda: judges(("repetition",), pairs=8),  # a few pairs, to see that it works
    }
    return common.pick(variants, variant, "configs/judges.py")


def judges(kinds: tuple[str, ...], pairs: int) -> ConfigDict:
    """Judges over the first `pairs` pairs."""
    return ConfigDict(
        {
            "kinds": kinds,
            "pairs": pairs,
            "rules": "ifeval",  # where `rules` reads its rules from; see docs/DATA.md
        }
    )
