"""One progress display for all long commands: a bar on a terminal, lines elsewhere, and no long silence."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar("Item")

INTERVAL_S = 5.0  # between two lines where there is no terminal
SILENCE_S = 7.0  # after which `break_silence` says what is going on
POLL_S = 1.0  # between two of its looks at the clock

_activities: list[Callable[[], str]] = []  # what is going on, innermost last: each returns its line, empty for none
_last_output = time.monotonic()


def say(line: str) -> None:
    """Print a line to stderr, above the bar if there is one; results go to stdout."""
    tqdm.write(line, file=sys.stderr)
    sys.stderr.flush()
    heard()


def heard() -> None:
    """Something was printed, here or elsewhere: the silence that `break_silence` measures begins again."""
    global _last_output
    _last_output = time.monotonic()


def show(text: str) -> None:
    """Print a result to stdout, above the bar if there is one, which would else run into it."""
    tqdm.write(text, file=sys.stdout)
    sys.stdout.flush()
    heard()


def clock(seconds: float) -> str:
    """A duration as h:mm:ss, or m:ss below an hour."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def begin(activity: Callable[[], str]) -> None:
    """From now until `end`, `break_silence` says what this function returns."""
    _activities.append(activity)


def end(activity: Callable[[], str]) -> None:
    """End what `begin` began; without effect if it has ended."""
    with contextlib.suppress(ValueError):
        _activities.remove(activity)


@contextlib.contextmanager
def doing(what: str) -> Iterator[None]:
    """Name what goes on meanwhile. Empty: results are printed, and lines would disturb them."""
    started = time.monotonic()

    def line() -> str:
        return what and f"{what} … {clock(time.monotonic() - started)}"

    begin(line)
    try:
        yield
    finally:
        end(line)


@contextlib.contextmanager
def break_silence(what: str) -> Iterator[None]:
    """After each SILENCE_S in which nothing was said, say what goes on: the innermost activity, or `what`."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(POLL_S):
            _say_if_silent()

    thread = threading.Thread(target=watch, name="break_silence", daemon=True)
    with doing(what):
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _say_if_silent() -> None:
    if time.monotonic() - _last_output < SILENCE_S:
        return
    if line := _activities[-1]():
        say(line)
    else:
        heard()


class Progress:
    """Shows what fraction is done, the rate and the time left. `done` counts items from an earlier run.

    A caller may set `note`, which ends each line.
    """

    def __init__(self, what: str, total: int, done: int = 0):
        self.what, self.total, self.done = what, total, done
        self.note = ""
        self._done_before, self._start_time = done, time.monotonic()
        self._last_line_time = self._start_time
        self._bar = None
        if sys.stderr.isatty():
            self._bar = tqdm(total=total, initial=done, desc=what, file=sys.stderr, leave=False, dynamic_ncols=True)
        begin(self._line_in_silence)

    def add(self, count: int = 1) -> None:
        """Count items as done."""
        self.done += count
        if self._bar is not None:
            self._bar.set_postfix_str(self.note, refresh=False)
            self._bar.update(count)
            return
        now = time.monotonic()
        if now - self._last_line_time >= INTERVAL_S or self.done == self.total:
            self._last_line_time = now
            say(self.line())

    def line(self) -> str:
        """What is done, the rate and the time left; before the first item, the time so far."""
        elapsed = time.monotonic() - self._start_time
        rate = (self.done - self._done_before) / max(elapsed, 1e-9)
        done, note = f"{self.what}: {self.done} of {self.total}", self.note and f"; {self.note}"
        if not rate:
            return f"{done}, {clock(elapsed)} so far{note}"
        speed = f"{rate:.1f}/s" if rate >= 1 else f"{1 / rate:.1f} s each"
        return f"{done}, {speed}, {clock((self.total - self.done) / rate)} left{note}"

    def _line_in_silence(self) -> str:
        if self._bar is not None:
            self._bar.refresh()
            return ""
        return self.line() if self.done < self.total else f"{self.what}: all {self.total} done, finishing …"

    def close(self) -> None:
        """Remove the bar."""
        end(self._line_in_silence)
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def track(items: Iterable[Item], what: str, total: int) -> Iterator[Item]:
    """Yield the items while showing progress. An item is done when the next one is requested."""
    with Progress(what, total) as progress:
        for item in items:
            yield item
            progress.add()
