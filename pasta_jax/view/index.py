"""The page that links to the pages of many answers: one line each, with its figures."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from pasta_jax.view.markdown import plain
from pasta_jax.view.style import css_variables
from pasta_jax.view.templates import render
from pasta_jax.view.text import short


@dataclasses.dataclass(frozen=True)
class Entry:
    """One answer."""

    file: str  # its page, in the same folder
    prompt: str
    answer: str
    chunks: int
    tokens: int
    steps: int
    parallelism: float
    speedup: float | None  # over the baseline's answer, if known


def index(entries: Sequence[Entry]) -> str:
    """Render the page."""
    return render(
        Path(__file__).with_name("index.html"),
        style=Markup(css_variables()),
        entries=entries,
        forked=sum(entry.chunks > 0 for entry in entries),
        tokens=f"{sum(entry.tokens for entry in entries):,}",
        longest=max((max(entry.tokens, entry.steps) for entry in entries), default=1) or 1,
        speedups=any(entry.speedup is not None for entry in entries),
        plain=plain,
        short=short,
    )
