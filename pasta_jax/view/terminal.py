"""A finished answer on a terminal: the text in reading order with its chunks in colour, a timeline, its figures."""

import itertools
import re
from collections.abc import Iterator, Mapping

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.style import Style as Look
from rich.table import Table
from rich.text import Text

from pasta_jax.decode.trace import Trace
from pasta_jax.view.markdown import Style, displayed, styled, styles
from pasta_jax.view.text import cells, printable, short

# Main has the terminal's own colour; the others are legible on black and on white.
STYLES = ("", *(f"color({number})" for number in (33, 166, 35, 163, 136, 37, 160, 99)))
_LIST_ITEM = re.compile(r"\s*(?:[•*+-]|\d{1,3}[.)])\s+(?=\S)")


def style_of(thread: int) -> str:
    """The colour of a thread; chunks share eight."""
    return STYLES[1 + (thread - 1) % (len(STYLES) - 1)] if thread else STYLES[0]


def formatted(text: str, at_line_start: bool = True) -> Text:
    """Printable text with its Markdown shown. Bold that is open at the end counts: the text may still grow."""
    shown = styles(text + "**", at_line_start)
    if Style.MARK not in shown.pop():
        shown = [*styles(text, at_line_start), Style.PLAIN]
    shown.pop()
    parts = Text()
    for piece, style in displayed(text, shown):
        _append(parts, piece, style, "")
    return parts


def wrapped(text: Text, columns: int, console: Console) -> list[Text]:
    """The lines of a text, broken between words; the lines of a list's item are indented like its first."""
    lines: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        line.expand_tabs(8)  # before it is measured
        item = _LIST_ITEM.match(line.plain)
        indent = min(item.end() if item else 0, columns // 3)
        first, *others = line[indent:].wrap(console, max(columns - indent, 1)) if len(line) else [Text()]
        lines += [line[:indent] + first, *(Text(" " * indent) + other for other in others)]
    return lines


def _append(text: Text, piece: str, style: Style, colour: str) -> None:
    """Add a piece in the look of its Markdown style."""
    look = Look.parse(colour) + Look(bold=Style.BOLD in style or None, italic=Style.ITALIC in style or None)
    if Style.CODE in style:
        look += Look(dim=True) if not colour else Look(underline=True)
    text.append(piece, style=look)


def answer_view(trace: Trace, console: Console) -> RenderableType:
    """The answer in reading order with its chunks coloured, and the timeline below."""
    answer = answer_text(trace)
    answer.rstrip()
    text = Group(*wrapped(answer, console.width, console))
    return Group(text, Text(), *timeline(trace, console.width)) if len(trace.closed) > 1 else text


def answer_text(trace: Trace) -> Text:
    """The text in reading order, in the colours of its threads, with its Markdown shown."""
    text = Text()
    for (thread, style), group in itertools.groupby(styled(trace), key=lambda piece: piece[:2]):
        _append(text, printable("".join(piece for *_, piece in group)), style, style_of(thread))
    return text


def timeline(trace: Trace, columns: int) -> Iterator[Text]:
    """One line per thread: █ feeds text, ▒ feeds tags and topics only, · waits."""
    names = [printable(thread.name) for thread in trace.threads()]
    longest = max(sum(map(cells, " ".join(name.split()))) for name in names)
    gutter = min(longest + 2, max(columns * 2 // 5, 8))
    wide = max(10, min(columns - gutter - 1, trace.steps))
    column_of = np.minimum((trace.step - 1) * wide // max(trace.steps, 1), wide - 1)
    silent = trace.in_topic | trace.tags.is_tag(trace.token)
    for thread, name in zip(trace.threads(), names, strict=True):
        fed = trace.thread == thread.number
        line = np.full(wide, " ")
        if thread.tokens:
            line[column_of[fed].min() : column_of[fed].max()] = "·"
        line[column_of[fed & silent]] = "▒"
        line[column_of[fed & ~silent]] = "█"
        named = Text(short(name, gutter - 2), style=f"bold {style_of(thread.number)}")
        named.align("left", gutter)
        yield named + Text("".join(line).rstrip(), style=style_of(thread.number))
    end = f"{trace.steps} steps"
    yield Text(" " * gutter + "1" + end.rjust(wide - 1), style="dim")


def figures(rows: Mapping[str, str]) -> RenderableType:
    """Figures with their names, a line each or more on a narrow screen; none is cut."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows.items():
        grid.add_row(name, Text(printable(value)))  # a path may have brackets, which are markup
    return grid


def beside(columns: Mapping[str, Mapping[str, str]]) -> RenderableType:
    """Figures of several answers, a column each, right-aligned."""
    grid = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    grid.add_column("", style="dim", no_wrap=True)
    for name in columns:
        grid.add_column(name, justify="right", no_wrap=True)
    for row in dict.fromkeys(itertools.chain(*columns.values())):
        grid.add_row(row, *(values.get(row, "") for values in columns.values()))
    return grid
