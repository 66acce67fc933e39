"""The page that links to the pages of many answers: one line each, with its figures."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from pasta_jax.view.markdown import plain
from pasta_jax.view.style import css_variables
from pasta_jax.view.text import markup, short

TEMPLATE = Path(__file__).with_name("index.html")


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
    longest = max((max(entry.tokens, entry.steps) for entry in entries), default=1) or 1
    forked = sum(entry.chunks > 0 for entry in entries)
    about = f"{len(entries)} answers · {forked} with chunks · {sum(entry.tokens for entry in entries):,} tokens"
    speedups = any(entry.speedup is not None for entry in entries)
    heads = ["", "prompt", "chunks", "tokens in steps", "parallelism", *(["speedup"] if speedups else [])]
    contents = {
        "style": css_variables(),
        "about": markup(about),
        "head": "".join(f"<th>{head}</th>" for head in heads),
        "rows": "".join(_row(number, entry, longest, speedups) for number, entry in enumerate(entries, start=1)),
    }
    html = TEMPLATE.read_text(encoding="utf-8")
    for name, content in contents.items():  # no content holds a raw "<!--", so none is mistaken for a placeholder
        html = html.replace(f"<!--{name}-->", content)
    return html


def _unit(name: str) -> str:
    """A unit, which the heads of a wide page already name."""
    return f'<span class="unit"> {name}</span>'


def _row(number: int, entry: Entry, longest: int, speedups: bool) -> str:
    """One answer: the pale bar is its tokens, the solid one its steps."""
    tokens, steps = (100 * count / longest for count in (entry.tokens, entry.steps))
    bar = f'<span class="bar"><b style="width:{tokens:.1f}%"></b><i style="width:{steps:.1f}%"></i></span>'
    speedup = "–" if entry.speedup is None else f"{entry.speedup:.2f}"
    cells = [
        f'<td class="number">{number}</td>',
        f'<td class="prompt"><a href="{markup(quote(entry.file))}">{markup(short(entry.prompt, 150))}</a>'
        f"<p>{markup(short(plain(entry.answer), 150))}</p></td>",
        f'<td data-name="chunks">{entry.chunks or "–"}</td>',
        f'<td class="steps" data-name="">{entry.tokens}{_unit("tokens")} in {entry.steps}{_unit("steps")}{bar}</td>',
        f'<td data-name="parallelism">{entry.parallelism:.2f}</td>',
        *([f'<td data-name="speedup">{speedup}</td>'] if speedups else []),
    ]
    return f"<tr>{''.join(cells)}</tr>"
