"""Agreement of proxy judges with the preferences of a dataset. Settings are those of configs/judges.py."""

import dataclasses
from typing import Literal

from pasta_jax.data.sources import known_preferences
from pasta_jax.judges.judge import Agreement, agreement
from pasta_jax.judges.offline import comparing, proxy
from pasta_jax.progress import track
from pasta_jax.ranges import Positive


@dataclasses.dataclass(frozen=True)
class Settings:
    """The fields of configs/judges.py."""

    kinds: tuple[Literal["rules", "repetition"], ...]
    pairs: Positive
    rules: str  # where `rules` reads its rules from


@dataclasses.dataclass(frozen=True)
class Report:
    """The agreement of each kind of judge."""

    pairs: int
    judges: dict[str, Agreement]

    def fields(self) -> dict[str, object]:
        """As JSON holds it."""
        judges = {
            kind: dataclasses.asdict(result) | {"near_chance": result.near_chance}
            for kind, result in self.judges.items()
        }
        return {"pairs": self.pairs, "judges": judges}


def measure(settings: Settings) -> Report:
    """Every judge over the same pairs."""
    pairs = known_preferences()[: settings.pairs]
    return Report(
        len(pairs),
        {
            kind: agreement(comparing(proxy(kind, settings.rules), scale=1.0), track(pairs, kind, len(pairs)))
            for kind in settings.kinds
        },
    )
