"""How far do the judges that ask nobody agree with given preferences?

    python -m launch.judges --config=configs/judges.py:offline

300 questions with a chosen and a rejected answer (who preferred is not said), judged in both orders; of a coin 50 % are
expected, give or take 5.8. `relevance` is told no reference answers, and `rules` has those of IFEval's questions, of
which none is among the 300. Nothing is drawn from a seed.

`quick` leaves likelihood out and takes some four minutes on two busy CPU cores; `offline` took 22 there, 31 of CPU
time. What came out stands in docs/RESULTS.md.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = "offline") -> ConfigDict:
    """The config of a variant."""
    cheap = ("repetition", "length", "relevance", "rules")
    variants = {
        "offline": lambda: judges((*cheap, "likelihood"), pairs=300),
        "quick": lambda: judges(cheap, pairs=300),
        "tiny": lambda: judges(("repetition", "length"), pairs=8),
    }
    return common.pick(variants, variant, "configs/judges.py")


def judges(kinds: tuple[str, ...], pairs: int) -> ConfigDict:
    """These judges over the first so many pairs."""
    return ConfigDict(
        {
            "kinds": kinds,
            "pairs": pairs,
            "rules": "ifeval",  # where `rules` has them from
            "model": common.model("smollm2_135m"),  # of `likelihood`
            "lengths": (128, 256, 512, 1024),  # tokens that `likelihood` pads to; more are judged by their beginning
            "slice": 256,  # tokens whose vocabulary logits exist at a time
        }
    )
