"""The threads of a running answer on a terminal: main on top, the chunks that it forked side by side below."""

import dataclasses
import itertools
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.control import Control
from rich.live import Live
from rich.panel import Panel
from rich.segment import ControlType, Segment
from rich.table import Table
from rich.text import Text

from pasta_jax.decode.transcript import ThreadText, Transcript
from pasta_jax.lang.tags import TagIds
from pasta_jax.view.terminal import formatted, style_of, wrapped
from pasta_jax.view.text import READING_MS, SHORTEST_STEP_MS, printable, short

if TYPE_CHECKING:
    from pasta_jax.decode.request import Event  # which loads JAX

NARROWEST = 24  # columns of a panel
MOST_LINES = 10  # of text in a panel
FRAMES = 15  # per second, at most
ERASE, UP = (ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)
SHARE = 0.1  # of the time may be spent on drawing, which delays the decoding


class LiveView:
    """Shows a request's threads while it runs: `push` its events. The display is erased at the end."""

    def __init__(self, tags: TagIds, console: Console):
        self.transcript = Transcript(tags)
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._next_frame_time = 0.0
        self._fields: dict[str, int] = {}  # their threads
        self._drawn: RenderableType = ""
        self._width = console.width  # of the terminal when that was drawn

    def __enter__(self) -> "LiveView":
        return self  # it starts with the first frame, as something else may be shown until then

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def push(self, event: "Event") -> None:
        """Add an event; the screen is drawn again if the last time was long enough ago."""
        self._add(event)
        if time.perf_counter() > self._next_frame_time:
            self._draw()

    def write(self, field: str, event: "Event") -> None:
        """Add an event of a field's thread."""
        if field not in self._fields:
            self._fields[field] = self.transcript.open(field)
        thread = self._fields[field]
        self.transcript.push(thread, event.token, event.step, event.text)
        self.transcript.threads[thread].ended = event.ended
        if time.perf_counter() > self._next_frame_time:
            self._draw()

    def replay(self, events: Sequence["Event"], wait: Callable[[float], None] = time.sleep) -> None:
        """Add all events of an answer at the speed at which one reads what a thread writes."""
        for _, group in itertools.groupby(events, key=lambda event: event.step):
            longest = 0
            for event in group:
                self._add(event)
                longest = max(longest, len(event.text))
            self._draw()
            wait(max(SHORTEST_STEP_MS, READING_MS * longest) / 1000)

    def _add(self, event: "Event") -> None:
        self.transcript.push(event.thread, event.token, event.step, event.text)

    def _draw(self) -> None:
        began = time.perf_counter()
        self._live.start()
        self._erase_broken_lines()
        self._drawn = frame(self.transcript, self._console)
        self._live.update(self._drawn, refresh=True)
        ended = time.perf_counter()
        self._next_frame_time = ended + max(1 / FRAMES, (ended - began) * (1 / SHARE - 1))

    def _erase_broken_lines(self) -> None:
        """Erase what the last frame takes beyond its own lines: a terminal that gets narrower breaks them."""
        before, self._width = self._width, self._console.width
        if self._width >= before:
            return
        options = self._console.options.update(width=before)
        lines = self._console.render_lines(self._drawn, options, pad=False)
        more = sum(max(Segment.get_line_length(line) - 1, 0) // self._width for line in lines)
        self._console.control(Control(ControlType.CARRIAGE_RETURN, *((ERASE, UP) * more)))


class _Results(Console):
    """Where results are written. That their reader has exited, as `| head` does, is for the command to answer."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would exit


def following(force_terminal: bool | None = None) -> Console:
    """A console that follows the terminal's size, also if a shell exported what it was when it began."""
    console = _Results(highlight=False, force_terminal=force_terminal)
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    free = _Results(highlight=False, force_terminal=force_terminal, _environ=environment)
    return free if free.size == console.size else console


@dataclasses.dataclass(frozen=True)
class Block:
    """The text of a thread, broken into the lines of its panel."""

    thread: ThreadText
    lines: list[Text]
    columns: int  # of the panel


def frame(transcript: Transcript, console: Console) -> RenderableType:
    """All threads within the screen, each in a panel with the end of its text.

    If there are too many, the oldest finished chunks are hidden first, then the oldest running ones.
    """
    width, height = console.width, max(console.height - 2, 4)
    main, *chunks = transcript.threads
    across = max(1, min(width // NARROWEST, len(chunks)))
    limit = across * max((height - 4) // 3, 0)
    while len(chunks) > limit:
        chunks.remove(next((chunk for chunk in chunks if chunk.ended), chunks[0]))
    across = max(1, min(across, len(chunks)))
    texts = [formatted(printable(chunk.text.strip("\n"))) for chunk in chunks]
    blocks = [_block(chunk, text, width // across, console) for chunk, text in zip(chunks, texts, strict=True)]
    rows = [blocks[at : at + across] for at in range(0, len(blocks), across)]
    top = _block(main, _text_of_main(transcript.threads), width, console)
    wanted = [max(len(block.lines) for block in row) for row in ([top], *rows)]
    parts: list[RenderableType] = []
    for row, lines in zip(([top], *rows), _shares(wanted, height - 2 * len(wanted) - 1), strict=True):
        grid = Table.grid(expand=True)
        for _ in range(across if row[0] is not top else 1):
            grid.add_column(ratio=1)
        grid.add_row(*(_panel(block, lines, transcript.step) for block in row))
        parts.append(grid)
    running = sum(not thread.ended for thread in transcript.threads)
    hidden = len(transcript.threads) - 1 - len(chunks)
    status = f"step {transcript.step}, {running} of {len(transcript.threads)} threads open"
    status += f", {hidden} hidden" if hidden else ""
    return Group(*parts, Text(status, style="dim", no_wrap=True, overflow="crop"))


def _shares(wanted: Sequence[int], lines: int) -> list[int]:
    """Lines for each row of panels: what it wants, and if the screen is too small, those that want most get less."""
    shares = [min(max(count, 1), MOST_LINES) for count in wanted]
    while sum(shares) > lines and max(shares) > 1:
        shares[shares.index(max(shares))] -= 1
    return shares


def _text_of_main(threads: Sequence[ThreadText]) -> Text:
    """Main's text, with each chunk's name where the chunk will be read."""
    main, *chunks = threads
    text, start = Text(), 0
    for chunk in chunks:
        before = printable(main.text[start : chunk.place])
        text.append(formatted(before, at_line_start=not start or main.text[start - 1] == "\n"))
        text.append(f"[{name_of(chunk)}]", style=style_of(chunk.number))
        start = chunk.place
    text.append(formatted(printable(main.text[start:]), at_line_start=not start))
    return text


def _block(thread: ThreadText, text: Text, columns: int, console: Console) -> Block:
    """A panel's lines, with a cursor where they grow; blank ones at the end would push the text out of the panel."""
    text.rstrip()
    if not thread.ended:
        text.append("▌", style=style_of(thread.number) or "dim")
    elif not text:
        text = Text("(empty)", style="dim")
    return Block(thread, wrapped(text, columns - 4, console), columns)


def name_of(thread: ThreadText) -> str:
    """The name of a thread on the screen."""
    return printable(" ".join(f"{thread.number} {thread.topic}".split())) if thread.number else "main"


def _panel(block: Block, lines: int, step: int) -> Panel:
    thread, style = block.thread, style_of(block.thread.number)
    waits = not thread.ended and thread.step < step - 1
    room = max(block.columns - 6, 4)
    length = f"{thread.tokens} of {10 * thread.tens}" if thread.tens else str(thread.tokens)
    unit = " token" if thread.tokens == 1 and not thread.tens else " tokens"
    mark = " ✓" if thread.ended else ", waits" if waits else ""
    return Panel(
        Text("\n").join(block.lines[-lines:]),
        title=Text(short(name_of(thread), room), style=f"bold not dim {style}"),
        subtitle=Text(short(f"{length}{unit}{mark}" if room >= 24 else f"{length}{mark}", room), style=style or "dim"),
        title_align="left",
        subtitle_align="right",
        height=lines + 2,
        border_style=f"dim {style}" if thread.ended or waits or not style else style,
    )
