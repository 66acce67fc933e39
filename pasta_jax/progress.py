"""One progress display for all long commands: live on a terminal, a line every few seconds elsewhere, never silent."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

Item = TypeVar("Item")

SILENCE_S = 5.0  # after which a line says what is going on
FRAME_S = 0.25  # between two frames on a terminal
BRIEF_S = 1.0  # what takes less is neither displayed nor said


class _Stderr(Console):
    """Where progress is written; it ends no run that nobody can read it any more."""

    def on_broken_pipe(self) -> None:
        self.quiet = True  # rich would exit


_console = _Stderr(stderr=True, markup=False, emoji=False, highlight=False, force_jupyter=False)
_lock = threading.RLock()
_running: list["Progress"] = []  # innermost last
_last_output = time.monotonic()


def say(line: str) -> None:
    """Print a line to stderr, above the live display if there is one; results go to stdout."""
    try:
        _console.print(line, soft_wrap=True)
    except OSError:  # a full disk; without this, rich would keep the line and write it with the next one
        _console.quiet = True
        _console.print()
        _console.quiet = False
    _heard()


def show(text: str) -> None:
    """Print a result to stdout. The live display redirects stdout on a terminal, and prints the text above itself."""
    print(text, flush=True)
    _heard()


def _heard() -> None:
    """Start measuring the silence again."""
    global _last_output
    _last_output = time.monotonic()


def clock(seconds: float) -> str:
    """A duration as h:mm:ss, or m:ss below an hour."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class Progress:
    """What goes on until `close`. With a `total`: the fraction done, the rate and the time left.

    `done` counts items of an earlier run. A caller may set `note`, which ends each line, and `done`.
    """

    def __init__(self, what: str, total: int | None = None, done: int = 0):
        self.what, self.total, self.done = what, total, done
        self.note = ""
        self._done_before, self._start_time = done, time.monotonic()
        with _lock:
            _running.append(self)
            if not _displayed():
                _live.stop()

    def add(self, count: int = 1) -> None:
        """Count items as done; without a terminal, a line says so from time to time and at the end."""
        self.done += count
        if not _is_terminal() and (self.done == self.total or time.monotonic() - _last_output >= SILENCE_S):
            say(self.line())

    def line(self) -> str:
        """What is done, the rate and the time left; before the first item, the time so far."""
        elapsed, note = self.elapsed, self.note and f"; {self.note}"
        if self.total is None:
            return f"{self.what} … {clock(elapsed)}"
        done = f"{self.what}: {self.done} of {self.total}"
        rate = (self.done - self._done_before) / max(elapsed, 1e-9)
        if not rate:
            return f"{done}, {clock(elapsed)} so far{note}"
        speed = f"{rate:.1f}/s" if rate >= 1 else f"{1 / rate:.1f} s each"
        return f"{done}, {speed}, {clock((self.total - self.done) / rate)} left{note}"

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._start_time

    def close(self) -> None:
        """End what goes on; without effect if it has ended."""
        with _lock, contextlib.suppress(ValueError):
            _running.remove(self)
            if not _displayed():
                _live.stop()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def doing(what: str) -> Progress:
    """Name what goes on within a `with` block."""
    return Progress(what)


def quiet() -> Progress:
    """Display and say nothing within a `with` block, which prints results or waits for the user."""
    return Progress("")


def track(items: Iterable[Item], what: str, total: int) -> Iterator[Item]:
    """Yield the items while showing progress. An item is done when the next one is requested."""
    with Progress(what, total) as progress:
        for item in items:
            yield item
            progress.add()


@contextlib.contextmanager
def break_silence(what: str) -> Iterator[None]:
    """Display what goes on, or after each SILENCE_S in which nothing was said, say it: the innermost, or `what`.

    An empty `what` is not said. An abandoned stream may be closed by the garbage collector, in any thread, which may
    hold any lock: its end then takes none and waits for nothing.
    """
    fallback = Progress(what)
    fallback.close()  # it is never displayed, and never hides a display
    going_on = threading.Lock()  # held until the end; it can be released within its own `acquire`, unlike an Event
    going_on.acquire()

    def watch() -> None:
        while not going_on.acquire(timeout=FRAME_S):
            with _lock:
                if going_on.locked():
                    _look(fallback)

    threading.Thread(target=watch, name="break_silence", daemon=True).start()
    try:
        yield
    finally:
        going_on.release()
        if not isinstance(sys.exception(), GeneratorExit):
            with _lock:  # after a frame that is being drawn, the last
                _live.stop()


def _look(fallback: Progress) -> None:
    """Draw the next frame, or say a line after silence."""
    with _lock:
        if _is_terminal() and _displayed():
            _live.start()
            _live.refresh()
            _heard()
        elif not all(one.what for one in _running):
            _heard()
        elif time.monotonic() - _last_output >= SILENCE_S and (one := (_lasting() or [fallback])[-1]).what:
            say(one.line())


def _is_terminal() -> bool:
    """Whether stderr can be drawn on. FORCE_COLOR, for which rich takes a file for a terminal, does not count."""
    return _console.file.isatty() and not _console.is_dumb_terminal


def _lasting() -> list[Progress]:
    """What goes on, without what has just begun."""
    return [one for one in _running if one.elapsed > BRIEF_S]


def _displayed() -> list[Progress]:
    """What the display shows: nothing where it would disturb what is printed."""
    return _lasting() if all(one.what for one in _running) else []


def _frame() -> Table:
    """A bar and a line for each."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=20)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for one in _displayed():
        grid.add_row(ProgressBar(one.total, one.done), one.line())
    return grid


def stdout_is_terminal() -> bool:
    """Whether stdout is one; there may be none, or an object in its place."""
    return bool(getattr(sys.stdout, "isatty", bool)())


def stdout_can_be_drawn_on() -> bool:
    """Whether what grows can be shown on stdout: on a dumb terminal, rich would show nothing until its end."""
    console = Console()
    return stdout_is_terminal() and console.is_terminal and not console.is_dumb_terminal


def _live_on(console: Console) -> Live:
    """The display; while it is there, what is printed appears above it. A stdout that is no terminal is left alone."""
    redirected = {"redirect_stdout": stdout_is_terminal(), "redirect_stderr": True}
    return Live(get_renderable=_frame, console=console, transient=True, auto_refresh=False, **redirected)


_live = _live_on(_console)
