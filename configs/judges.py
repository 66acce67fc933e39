"""Measure how often judges agree with known preferences, or with a person's.

    python -m launch.judges --config=configs/judges.py:offline
    python -m launch.judges --config=configs/judges.py:checked --config.file=verdicts.jsonl

offline: the proxies, on 300 questions with a chosen and a rejected answer (the dataset does not state who chose), each
judged in both orders. Chance is 50 ± 5.8%. `rules` reads IFEval's questions, none of which is among the 300, so it is
undecided on all of them. Takes seconds; docs/RESULTS.md has the figures to expect. checked: the judge of what can be
checked (judges/checked.py), with an untrained SmolLM2 and MiniLM. There is no seed: nothing is random.

A file has one JSON object per line: prompt, first, second, and as verdict first, second or tie, which is left out. Each
answer is a text or an object: {"text": "…", "finished": true, "topics": ["…"]}.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = "offline") -> ConfigDict:
    """The config of a variant."""
    variants = {
        "offline": lambda: judges(("rules", "repetition"), pairs=300),  # all pairs, in seconds
        "checked": lambda: judges(("checked", "repetition"), pairs=300),  # needs --assets and --data
        "tiny": lambda: judges(("repetition",), pairs=8),  # a few pairs, to see that it works
    }
    return common.pick(variants, variant, "configs/judges.py")


def judges(kinds: tuple[str, ...], pairs: int) -> ConfigDict:
    """Judges over the first `pairs` pairs."""
    checked = common.checked_judge()
    checked.rows = 2  # the answers of a pair
    return ConfigDict(
        {
            "kinds": kinds,
            "pairs": pairs,
            "file": "",  # of a person's verdicts; empty: known preferences, which `setup.sh --data` installs
            "rules": "ifeval",  # where `rules` and `checked` read their rules from; see docs/DATA.md
            "checked": checked,
        }
    )
