"""Measure how often judges agree with known preferences, or with a person's.

    python -m launch.judges --config=configs/judges.py:offline
    python -m launch.judges --config=configs/judges.py:checked --config.file=verdicts.jsonl

offline: the proxies, on 300 questions with a chosen and a rejected answer (the dataset does not state who chose), each
judged in both orders. Chance is 50 ± 5.8%. `rules` reads IFEval's questions, none of which is among the 300, so it is
undecided on all of them. Takes seconds; docs/results/judges.md has the figures to expect. checked: a weighted sum of
checks and log-likelihood (judges/checked.py), with an untrained SmolLM2 and MiniLM. No seed: nothing is random.

reward: a reward model, whose scores' difference is the log-odds of a verdict. Name one:

    python -m launch.judges --config=configs/judges.py:reward --config.reward.model=Skywork/Skywork-Reward-V2-Qwen3-0.6B

--config.file has one JSON object per line, with prompt, first, second and verdict: first, second or tie (left out).
Each answer is a text or an object: {"text": "…", "finished": true, "topics": ["…"]}.
"""

from pasta_jax.judges.settings import AgreementSettings


def offline() -> AgreementSettings:
    """The proxies on all pairs, in seconds."""
    return AgreementSettings()


def checked() -> AgreementSettings:
    """The weighted sum of checks and log-likelihood; needs setup.sh --assets and --data."""
    return AgreementSettings(("checked", "repetition"))


def reward() -> AgreementSettings:
    """A reward model at reward.model on all pairs."""
    return AgreementSettings(("reward", "repetition"))


def tiny() -> AgreementSettings:
    """A few pairs, to see that it works."""
    return AgreementSettings(("repetition",), pairs=8)
