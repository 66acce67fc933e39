"""One progress display for all long commands: a bar on a terminal, a line every few seconds elsewhere."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar("Item")

INTERVAL_S = 5.0  # between two lines where there is no terminal


def say(line: str) -> None:
    """Print a line to stderr, above the bar if there is one; results go to stdout."""
    tqdm.write(line, file=sys.stderr)
    sys.stderr.flush()


def clock(seconds: float) -> str:
    """A duration as h:mm:ss, or m:ss below an hour."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


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
            rate = (self.done - self._done_before) / max(now - self._start_time, 1e-9)
            left = clock((self.total - self.done) / rate) if rate else "unknown"
            speed = f"{rate:.1f}/s" if rate >= 1 or not rate else f"{1 / rate:.1f} s each"
            say(f"{self.what}: {self.done} of {self.total}, {speed}, {left} left{self.note and f'; {self.note}'}")

    def close(self) -> None:
        """Remove the bar."""
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
