"""Progress: live where stderr is a terminal, a line every few seconds where it is not, nothing of it on stdout."""

import errno
import io
import re
import sys
import threading
from collections.abc import Callable, Iterator
from unittest.mock import Mock

import pytest
from rich.console import Console

from pasta_jax import progress
from pasta_jax.progress import BRIEF_S, SILENCE_S, Progress, doing, quiet


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """A time.monotonic that tests advance."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def now(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress.time, "monotonic", clock)
    monkeypatch.setattr(progress, "_last_output", clock.now)  # and the real time afterwards
    monkeypatch.setattr(progress, "_running", [])
    return clock


@pytest.fixture
def terminal(now, monkeypatch, capsys) -> io.StringIO:
    console = Console(file=Screen(), force_terminal=True, width=80)
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True)
    monkeypatch.setattr(progress, "_console", console)
    monkeypatch.setattr(progress, "_live", progress._live_on(console))
    return console.file


@pytest.mark.parametrize(("term", "drawn"), [("xterm", True), ("dumb", False)])
def test_a_dumb_terminal_is_not_drawn_on(monkeypatch, term, drawn):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not progress.stdout_can_be_drawn_on()  # a file, which rich then takes for a terminal
    monkeypatch.setattr(sys, "stdout", Screen())
    assert progress.stdout_can_be_drawn_on() == drawn


class Lock:
    """A lock that says when a watcher waits for it."""

    def __init__(self):
        self._lock, self.waits = threading.RLock(), threading.Event()

    def __enter__(self) -> None:
        if threading.current_thread().name == "break_silence":
            self.waits.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.fixture
def lock(monkeypatch) -> Lock:
    monkeypatch.setattr(progress, "_lock", lock := Lock())
    return lock


@pytest.fixture
def watched(monkeypatch) -> Callable[[], threading.Thread]:
    """The thread of the `break_silence` that has begun; it looks all the time."""
    monkeypatch.setattr(progress, "FRAME_S", 0.001)
    before = threading.enumerate()
    return lambda: ({*threading.enumerate()} - {*before}).pop()


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(errno.ENOSPC, "No space left on device")])
def test_a_line_that_cannot_be_written_ends_nothing_and_is_dropped(now, monkeypatch, error):
    file = io.StringIO()
    monkeypatch.setattr(progress, "_console", progress._Stderr(file=file))
    with monkeypatch.context() as patch:
        patch.setattr(file, "write", Mock(side_effect=error))
        progress.say("one")
    progress.say("two")
    assert file.getvalue() == ("" if isinstance(error, BrokenPipeError) else "two\n")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59.4, "0:59"), (59.6, "1:00"), (3599, "59:59"), (3600, "1:00:00"), (90061, "25:01:01")],
)
def test_a_duration(seconds, text):
    assert progress.clock(seconds) == text


def test_without_a_terminal_there_is_a_line_every_few_seconds(now, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as CI sets it
    with Progress("samples", 100, done=20) as samples:
        for _ in range(80):
            now.now += 0.5
            samples.note = "1 request" * (samples.done > 90)
            samples.add()
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert lines[0] == "samples: 30 of 100, 2.0/s, 0:35 left"  # the rate is this run's
    assert lines[-1] == "samples: 100 of 100, 2.0/s, 0:00 left; 1 request"
    assert (out, len(lines)) == ("", 8)


def test_an_item_is_done_when_the_next_is_requested(now, capsys):
    for item in progress.track([1, 2], "items", 2):
        now.now += SILENCE_S
        assert capsys.readouterr().err == ("" if item == 1 else "items: 1 of 2, 5.0 s each, 0:05 left\n")
    assert capsys.readouterr().err == "items: 2 of 2, 5.0 s each, 0:00 left\n"
    tracked = progress.track("abc", "letters", 3)
    assert next(tracked) == "a"
    tracked.close()
    assert progress._running == []


def test_lines_go_to_stderr_as_they_are_and_results_to_stdout(capsys):
    line = f"[bold] :smile: {'/a/long/path' * 20}"
    progress.say(line)
    progress.show("a result")
    assert capsys.readouterr() == ("a result\n", f"{line}\n")


def test_silence_is_broken_by_the_innermost_of_what_goes_on(now, capsys):
    command = Progress("decode: working")
    command.close()

    def said_after(seconds: float) -> str:
        now.now += seconds
        progress._look(command)
        return capsys.readouterr().err

    assert said_after(SILENCE_S - 1) == ""
    assert said_after(2) == "decode: working … 0:06\n"
    assert said_after(1) == ""  # counted from that line
    with doing("loading"):
        assert said_after(SILENCE_S) == "loading … 0:05\n"
        progress.show("")
        assert said_after(SILENCE_S - 1) == ""
    now.now += SILENCE_S
    with quiet(), doing("compiling"):  # while the user types, too
        assert said_after(0) == ""
        assert said_after(100) == ""
    now.now += SILENCE_S
    with doing("tracing"):
        assert said_after(0).startswith("decode: working … ")  # has just begun
    command.what = ""  # a function of the library, which says only what has a name
    assert said_after(100) == ""
    with doing("compiling"):
        assert said_after(2) == "compiling … 0:02\n"
    with Progress("samples", 4) as samples:
        assert said_after(10) == "samples: 0 of 4, 0:10 so far\n"
        samples.done = 1
        assert said_after(10) == "samples: 1 of 4, 20.0 s each, 1:00 left\n"


def test_silence_is_watched_until_the_command_ends(monkeypatch, watched):
    said = threading.Event()
    monkeypatch.setattr(progress, "SILENCE_S", 0.0)
    monkeypatch.setattr(progress, "say", lambda line: said.set())
    with progress.break_silence("sft: working"):
        assert said.wait(10)
        watcher = watched()
    watcher.join(10)
    assert not watcher.is_alive()


def test_nothing_is_displayed_after_the_end(monkeypatch, watched, lock):
    """Not even by a watcher that was about to look."""
    monkeypatch.setattr(progress, "_look", looked := Mock())
    with lock, progress.break_silence(""):
        watcher = watched()
        assert lock.waits.wait(10)
    watcher.join(10)
    assert (watcher.is_alive(), looked.called) == (False, False)


@pytest.mark.parametrize("by_watcher", [True, False])
def test_an_abandoned_stream_may_be_closed_in_any_thread(monkeypatch, watched, lock, by_watcher):
    """As the garbage collector does: in its own watcher, or in a thread that has the lock which that waits for."""
    looked, closed = threading.Event(), threading.Event()

    def abandoned() -> Iterator[None]:
        with progress.break_silence(""):
            yield

    def close() -> None:
        with lock:
            lock.waits.clear()
            assert by_watcher or lock.waits.wait(10)
            stream.close()
            closed.set()

    stream = abandoned()
    monkeypatch.setattr(progress, "_is_terminal", lambda: looked.set() or (by_watcher and close()))  # while it looks
    next(stream)
    watcher = watched()
    assert looked.wait(10)
    if not by_watcher:
        threading.Thread(target=close, daemon=True).start()
    assert closed.wait(10)
    watcher.join(10)
    assert not watcher.is_alive()


def test_a_terminal_shows_all_that_goes_on_below_what_is_printed_and_keeps_the_latter_only(now, terminal, capsys):
    command = Progress("sft: working")
    command.close()
    with Progress("samples", 4) as samples, doing("compiling"):
        progress._look(command)
        assert terminal.getvalue() == ""  # too brief so far
        now.now += BRIEF_S + 1
        samples.note = "1 request"
        samples.add()
        progress._look(command)
        progress.say("one moment")
        progress.show("a result")
        with quiet():
            assert not progress._live.is_started
            print("streamed", end="")
        progress._look(command)
        assert progress._live.is_started
        text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", terminal.getvalue())
    assert (progress._live.is_started, capsys.readouterr()) == (False, ("streamed", ""))
    assert "━ samples: 1 of 4, 2.0 s each, 0:06 left; 1 request" in text
    assert text.index("one moment\n") < text.index("a result\n") < text.rindex("━ compiling … 0:02")
    assert terminal.getvalue().endswith("\r\x1b[2K\x1b[1A\x1b[2K\x1b[?25h\r")  # both lines are erased
