"""An asynchronous answer on a terminal: threads growing side by side, then the coloured text and a timeline."""

import itertools
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pasta_jax.decode.trace import Trace
from pasta_jax.decode.transcript import ThreadText, Transcript
from pasta_jax.lang.tags import TagIds
from pasta_jax.view.picture import label
from pasta_jax.view.text import printable, short

if TYPE_CHECKING:
    from pasta_jax.decode.generate import Event  # which loads JAX

# Main has the terminal's own colour; the others are legible on black and on white.
STYLES = (
    "",
    "color(33)",
    "color(166)",
    "color(35)",
    "color(163)",
    "color(136)",
    "color(37)",
    "color(160)",
    "color(99)",
)
NARROWEST = 30  # columns of a panel
FRAMES = 15  # per second, at most


def style_of(thread: int) -> str:
    """The colour of a thread; chunks share eight."""
    return STYLES[1 + (thread - 1) % (len(STYLES) - 1)] if thread else STYLES[0]


class LiveView:
    """Shows a request's threads while it runs: `push` its events. The display is erased at the end."""

    def __init__(self, tags: TagIds, console: Console):
        self.transcript = Transcript(tags)
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._last_frame_time = 0.0

    def __enter__(self) -> "LiveView":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def push(self, event: "Event") -> None:
        """Add an event; the screen is redrawn if the last time was long enough ago."""
        self.transcript.push(event.thread, event.token, event.step, event.text)
        now = time.perf_counter()
        if now - self._last_frame_time > 1 / FRAMES:
            self._last_frame_time = now
            self._live.update(frame(self.transcript, self._console), refresh=True)


def frame(transcript: Transcript, console: Console) -> RenderableType:
    """Main and the chunks, one panel each, within the screen.

    If there are too many, the oldest finished chunks are hidden first, then the oldest running ones.
    """
    width, height = console.width, console.height - 2
    columns = max(1, min(width // NARROWEST, len(transcript.threads)))
    limit = columns * max(1, height // 4)
    main, *chunks = transcript.threads
    while chunks and 1 + len(chunks) > limit:
        chunks.remove(next((chunk for chunk in chunks if chunk.ended), chunks[0]))
    on_screen = [main, *chunks]
    rows = -(-len(on_screen) // columns)
    panel_height = max(3, min(12, height // rows))
    grid = Table.grid(expand=True)
    for _ in range(columns):
        grid.add_column(ratio=1)
    panels = [_panel(thread, transcript.step, width // columns, panel_height, console) for thread in on_screen]
    for start in range(0, len(panels), columns):
        grid.add_row(*panels[start : start + columns])
    running = sum(not thread.ended for thread in transcript.threads)
    hidden = len(transcript.threads) - len(on_screen)
    status = f"step {transcript.step}, {running} of {len(transcript.threads)} threads open"
    status += f", {hidden} hidden" if hidden else ""
    return Group(grid, Text(status, style="dim", no_wrap=True, overflow="crop"))


def _panel(thread: ThreadText, step: int, width: int, height: int, console: Console) -> Panel:
    style = style_of(thread.number)
    inner, lines = width - 4, height - 2
    text = Text(printable(thread.text[-inner * lines * 2 :]), style="dim" if thread.ended else "")
    tail = text.wrap(console, inner)[-lines:]
    title = f"{thread.number} {thread.topic}" if thread.number else "main"
    length = f"{thread.tokens} of {10 * thread.tens}" if thread.number else str(thread.tokens)
    mark = " ✓" if thread.ended else " idle" if thread.step < step - 1 else ""
    return Panel(
        Text("\n").join(tail),
        title=Text(short(printable(title), max(inner - 4, 4)), style=f"bold {style}"),
        subtitle=Text(f"{length}{mark}", style=style),
        title_align="left",
        subtitle_align="right",
        height=height,
        border_style=style or "dim",
    )


def answer_view(trace: Trace, columns: int) -> RenderableType:
    """The answer in reading order with its chunks coloured, and the timeline below."""
    return Group(answer_text(trace), Text(), *timeline(trace, columns)) if len(trace.closed) > 1 else answer_text(trace)


def answer_text(trace: Trace) -> Text:
    """The text in reading order, in the colours of its threads."""
    order = [i for i in trace.order() if not trace.in_topic[i]]
    text = Text()
    for thread, run in itertools.groupby(order, key=lambda i: int(trace.thread[i])):
        text.append(printable("".join(trace.text[i] for i in run)), style=style_of(thread))
    return text


def timeline(trace: Trace, columns: int) -> Iterator[Text]:
    """One line per thread: █ feeds text, ▒ feeds tags and topics only, · waits."""
    names = [printable(label(thread)) for thread in trace.threads()]
    gutter = min(max(18, *(len(name) + 2 for name in names)), 30)
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
        named = Text(short(name, gutter - 2), style=style_of(thread.number))
        named.align("left", gutter)
        yield named + Text("".join(line).rstrip(), style=style_of(thread.number))
    end = f"{trace.steps} steps"
    yield Text(" " * gutter + "1" + end.rjust(wide - 1), style="dim")
