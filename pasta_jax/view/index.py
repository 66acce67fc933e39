"""The page that links to the pages of many answers: one line each, with its figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pasta_jax.view.markdown import plain
from pasta_jax.view.style import css_variables
from pasta_jax.view.templates import render
from pasta_jax.view.text import short


def index(entries: Sequence[Mapping[str, Any]]) -> str:
    """Render the page from the fields of each answer's record (answer/record.py), and `file`, its page beside this."""
    return render(
        Path(__file__).with_name("index.html"),
        style=Markup(css_variables()),
        entries=entries,
        forked=sum(entry["chunks"] > 0 for entry in entries),
        tokens=f"{sum(entry['tokens'] for entry in entries):,}",
        longest=max((max(entry["tokens"], entry["steps"]) for entry in entries), default=1) or 1,
        speedups=any(entry["theoretical_speedup"] is not None for entry in entries),
        plain=plain,
        short=short,
    )
