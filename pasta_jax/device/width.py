"""What a step costs by the rows that it computes: measured once for a program on a machine, then kept.

Estimates from published figures are wrong by an order of magnitude: the shape of a kernel decides how many rows are
nearly free, so they are measured.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from msgspec import Meta

from pasta_jax.errors import PastaError
from pasta_jax.files import fingerprints, packages
from pasta_jax.files.atomic import write_json
from pasta_jax.files.validated import AboveZero, Positive, read_json
from pasta_jax.progress import doing, say

NEAR_FREE = (1.1, 1.25)  # of a one-row step


@dataclasses.dataclass(frozen=True)
class Width:
    """What steps of one program cost."""

    steps: Annotated[tuple[tuple[Positive, AboveZero], ...], Meta(min_length=1, max_length=64)]  # (rows, milliseconds)

    @property
    def ms(self) -> dict[int, float]:
        """Milliseconds of a step, by the rows that it computes."""
        return dict(self.steps)

    def near_free(self, share: float) -> int:
        """The widest step that takes at most `share` of the narrowest one's time."""
        return max(rows for rows, ms in self.steps if ms <= share * self.steps[0][1])

    @property
    def best(self) -> int:
        """The size with most rows per second."""
        return max(self.steps, key=lambda step: step[0] / step[1])[0]

    def __str__(self) -> str:
        times = ", ".join(f"{rows}: {ms:.1f}" for rows, ms in self.steps)
        free = " and ".join(f"{self.near_free(share)} (at most {share:g} of it)" for share in NEAR_FREE)
        return f"milliseconds of a step by rows: {times}; as good as one row: {free}; most per second: {self.best}"


def width_of(about: Mapping[str, Any], measure: Callable[[], Mapping[int, float]]) -> Width:
    """The width of a program, which `about` identifies with its machine: as kept, else measured now, and printed."""
    try:
        path = packages.cache_dir() / "widths" / f"{fingerprints.of_data(about)}.json"
    except PastaError:  # no cache
        return _measured(measure)
    if path.exists():
        try:
            width = read_json(path, Width, 1 << 16, "delete it")
            say(str(width))
            return width
        except PastaError as error:
            say(f"{error}: measured again")
    width = _measured(measure)
    try:
        write_json(path, {"about": about, "steps": width.steps})
    except PastaError as error:
        say(f"what rows cost is not kept for later runs: {error}")
    return width


def _measured(measure: Callable[[], Mapping[int, float]]) -> Width:
    with doing("measuring what rows cost"):
        width = Width(cleaned(measure()))
    say(str(width))
    return width


def cleaned(ms: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    """Times by size, ascending, in which no step takes longer than a wider one: other work only adds to a time."""
    return tuple((size, min(other for wider, other in ms.items() if wider >= size)) for size in sorted(ms))
