"""An asynchronous answer on a terminal: threads that grow side by side, then the coloured text and a timeline."""

import itertools
import time
from collections.abc import Iterator

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pasta_jax.decode.trace import Trace
from pasta_jax.decode.transcript import ThreadText, Transcript
from pasta_jax.view.text import printable, short

# Of the 256 colours of a terminal those that can be read on black and on white; main has the terminal's own.
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
FRAMES = 15  # a second, at most


def style_of(thread: int) -> str:
    """The colour of a thread; chunks take turns."""
    return STYLES[1 + (thread - 1) % (len(STYLES) - 1)] if thread else STYLES[0]


class LiveView:
    """Shows a request's threads while it runs; `push` takes its events. Leaves nothing behind when it is closed."""

    def __init__(self, tags, console: Console):
        self.transcript = Transcript(tags)
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._shown = 0.0

    def __enter__(self) -> "LiveView":
        self._live.start()
        return self

    def __exit__(self, *_) -> None:
        self._live.stop()

    def push(self, event) -> None:
        self.transcript.push(event.thread, event.token, event.step, event.text)
        now = time.perf_counter()
        if now - self._shown > 1 / FRAMES:
            self._shown = now
            self._live.update(frame(self.transcript, self._console), refresh=True)


def frame(transcript: Transcript, console: Console) -> RenderableType:
    """Main and the chunks, a panel each, within the screen.

    Where that is full, the oldest finished chunk goes first, and then the oldest of all.
    """
    width, height = console.width, console.height - 2
    columns = max(1, min(width // NARROWEST, len(transcript.threads)))
    most = columns * max(1, height // 4)
    main, *chunks = transcript.threads
    while 1 + len(chunks) > most:
        gone = next((chunk for chunk in chunks if chunk.ended), chunks[0] if chunks else main)
        if gone is main:
            break
        chunks.remove(gone)
    shown = [main, *chunks]
    rows = -(-len(shown) // columns)
    tall = max(3, min(12, height // rows))
    grid = Table.grid(expand=True)
    for _ in range(columns):
        grid.add_column(ratio=1)
    panels = [_panel(thread, transcript.step, width // columns, tall, console) for thread in shown]
    for start in range(0, len(panels), columns):
        grid.add_row(*panels[start : start + columns])
    running = sum(not thread.ended for thread in transcript.threads)
    hidden = len(transcript.threads) - len(shown)
    status = f"step {transcript.step}, {running} of {len(transcript.threads)} threads open"
    status += f", {hidden} hidden" if hidden else ""
    return Group(grid, Text(status, style="dim", no_wrap=True, overflow="crop"))


def _panel(thread: ThreadText, step: int, width: int, height: int, console: Console) -> Panel:
    style = style_of(thread.number)
    inner, lines = width - 4, height - 2
    text = Text(printable(thread.text[-inner * lines * 2 :]), style="dim" if thread.ended else "")
    tail = text.wrap(console, inner)[-lines:]
    title = f"{thread.number} {thread.topic}" if thread.number else "main"
    came = f"{thread.tokens} of {10 * thread.tens}" if thread.number else str(thread.tokens)
    mark = " ✓" if thread.ended else " idle" if thread.step < step - 1 else ""
    return Panel(
        Text("\n").join(tail),
        title=Text(short(printable(title), max(inner - 4, 4)), style=f"bold {style}"),
        subtitle=Text(f"{came}{mark}", style=style),
        title_align="left",
        subtitle_align="right",
        height=height,
        border_style=style or "dim",
    )


def finished(trace: Trace, columns: int) -> RenderableType:
    """The answer in reading order, its chunks coloured, and the timeline below."""
    return Group(coloured(trace), Text(), *timeline(trace, columns)) if len(trace.closed) > 1 else coloured(trace)


def coloured(trace: Trace) -> Text:
    """The text in reading order, in the colours of its threads."""
    said = [i for i in trace.order() if not trace.in_topic[i]]
    text = Text()
    for thread, run in itertools.groupby(said, key=lambda i: int(trace.thread[i])):
        text.append(printable("".join(trace.text[i] for i in run)), style=style_of(thread))
    return text


def timeline(trace: Trace, columns: int) -> Iterator[Text]:
    """A line a thread: █ feeds, ▒ feeds tags only, · waits."""
    gutter = 18
    wide = max(10, min(columns - gutter - 1, trace.steps))
    column_of = np.minimum((trace.step - 1) * wide // max(trace.steps, 1), wide - 1)
    silent = trace.in_topic | trace.tags.is_tag(trace.token)
    for thread in trace.threads():
        own = trace.thread == thread.number
        line = np.full(wide, " ")
        if thread.tokens:
            line[column_of[own].min() : column_of[own].max()] = "·"
        line[column_of[own & silent]] = "▒"
        line[column_of[own & ~silent]] = "█"
        name = f"{thread.number} {thread.topic}" if thread.number else "main"
        named = Text(short(printable(name), gutter - 2), style=style_of(thread.number))
        named.align("left", gutter)
        yield named + Text("".join(line).rstrip(), style=style_of(thread.number))
    last = f"{trace.steps} steps"
    yield Text(" " * gutter + "1" + last.rjust(wide - 1), style="dim")
