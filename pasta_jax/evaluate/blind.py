"""Pairs of answers for a person to compare without knowing who wrote which, and the key that tells.

The pairs hold nothing but the question and both texts, whole. Coins decide which is shown first, so neither the prompt
nor another run tells.
"""

import dataclasses
import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from pasta_jax.evaluate.answers import SystemAnswer
from pasta_jax.files import atomic
from pasta_jax.judges.agreement import PairKey, Written, key_of


def write_blind(path: Path, pairs: Sequence[Mapping[str, SystemAnswer]]) -> None:
    """Write pairs of answers by system; once `verdict` is filled in, `launch.judges` reads them with their key."""
    shown, keys = [], []
    for pair in pairs:
        systems = sorted(pair, key=lambda _: secrets.randbits(64))
        first, second = (pair[system] for system in systems)
        shown.append({"prompt": first.prompt, "first": first.text, "second": second.text, "verdict": ""})
        written = [
            Written(name, pair[name].finished, tuple(one.topic for one in pair[name].chunks)) for name in systems
        ]
        keys.append(dataclasses.asdict(PairKey(first.prompt, *written)))
    for file, lines in ((key_of(path), keys), (path, shown)):
        atomic.write_lines(file, [json.dumps(line, ensure_ascii=False) for line in lines])
