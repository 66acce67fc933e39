"""Progress: a bar where stderr is a terminal, a line every few seconds where it is not, nothing on stdout."""

import io
import re
import threading
import types

import pytest

from pasta_jax import progress


class Terminal(io.StringIO):
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
    return clock


@pytest.fixture
def terminal(monkeypatch) -> Terminal:
    stderr = Terminal()
    monkeypatch.setattr(
        progress, "sys", types.SimpleNamespace(stderr=stderr)
    )  # pytest sets the real one between phases
    return stderr


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59.4, "0:59"), (59.6, "1:00"), (3599, "59:59"), (3600, "1:00:00"), (90061, "25:01:01")],
)
def test_a_duration(seconds, text):
    assert progress.clock(seconds) == text


def test_without_a_terminal_there_is_a_line_every_few_seconds(now, capsys):
    with progress.Progress("samples", 100) as bar:
        for _ in range(100):
            now.now += 0.5
            bar.add()
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0] == "samples: 10 of 100, 2.0/s, 0:45 left"
    assert lines[-1] == "samples: 100 of 100, 2.0/s, 0:00 left"
    assert len(lines) == 10
    assert "\r" not in err


def test_a_short_command_prints_only_its_last_line(now, capsys):
    with progress.Progress("pairs", 3) as bar:
        bar.add(2)
        bar.add()
    assert re.fullmatch(r"pairs: 3 of 3, .*/s, 0:00 left\n", capsys.readouterr().err)


def test_a_note_ends_each_line(now, capsys):
    bar = progress.Progress("answers", 2)
    bar.add()
    now.now += 5
    bar.note = "1 request"
    bar.add()
    assert capsys.readouterr().err == "answers: 2 of 2, 2.5 s each, 0:00 left; 1 request\n"


def test_items_of_an_earlier_run_do_not_count_towards_the_rate(now, capsys):
    with progress.Progress("samples", 100, done=80) as bar:
        now.now += 10
        bar.add(5)
    assert capsys.readouterr().err == "samples: 85 of 100, 2.0 s each, 0:30 left\n"


def test_a_note_is_shown_beside_the_bar(terminal):
    with progress.Progress("answers", 2) as bar:
        bar.note = "1 request"
        bar.add(2)
        assert "1 request" in bar._bar.postfix


def test_on_a_terminal_there_is_a_bar_that_leaves_nothing(terminal, capsys):
    with progress.Progress("samples", 4, done=1) as bar:
        bar.add()
        progress.say("one moment")
        bar.add()
        before = terminal.getvalue()
    assert re.search(r"\rsamples: +25%", before)
    assert "1/4" in before
    assert "one moment\n" in before
    assert "samples: 3 of 4" not in before
    last = terminal.getvalue().split("\n")[-1].split("\r")
    assert last[-1].strip() == ""
    assert capsys.readouterr().out == ""


def test_track_yields_the_items_and_closes_the_bar_when_left_early(terminal):
    assert list(progress.track("abc", "letters", 3)) == ["a", "b", "c"]
    tracked = progress.track("abc", "letters", 3)
    assert next(tracked) == "a"
    tracked.close()
    assert terminal.getvalue().split("\r")[-1].strip() == ""


def test_track_counts_an_item_when_the_next_is_requested(now, capsys):
    for item in progress.track([1, 2], "items", 2):
        now.now += progress.INTERVAL_S
        assert capsys.readouterr().err == ("" if item == 1 else "items: 1 of 2, 5.0 s each, 0:05 left\n")
    assert capsys.readouterr().err == "items: 2 of 2, 5.0 s each, 0:00 left\n"


def test_say_goes_to_stderr(capsys):
    progress.say("a line")
    assert capsys.readouterr() == ("", "a line\n")


@pytest.fixture
def silence(now, monkeypatch, capsys):
    """What is said after seconds of silence."""
    monkeypatch.setattr(progress, "_activities", [])
    progress.heard()

    def after(seconds: float) -> str:
        now.now += seconds
        progress._say_if_silent()
        return capsys.readouterr().err

    return after


def test_silence_is_broken_by_what_goes_on(silence):
    with progress.doing("decode: working"):
        assert silence(progress.SILENCE_S - 1) == ""
        assert silence(2) == "decode: working … 0:08\n"
        assert silence(1) == ""  # counted from that line
        with progress.doing("loading"):
            assert silence(progress.SILENCE_S) == "loading … 0:07\n"
            progress.heard()  # a result was printed
            assert silence(progress.SILENCE_S - 1) == ""
        with progress.doing(""):
            assert silence(100) == ""
        assert silence(progress.SILENCE_S).startswith("decode: working … ")


def test_a_slow_item_does_not_silence_a_progress(silence):
    with progress.Progress("samples", 4) as bar:
        assert silence(10) == "samples: 0 of 4, 0:10 so far\n"
        bar.add()
        assert silence(10).endswith("samples: 1 of 4, 20.0 s each, 1:00 left\n")
        bar.add(3)
        silence(0)
        assert silence(10) == "samples: all 4 done, finishing …\n"
    assert progress._activities == []


def test_silence_is_watched_until_the_command_ends(monkeypatch):
    said = threading.Event()
    monkeypatch.setattr(progress, "POLL_S", 0.001)
    monkeypatch.setattr(progress, "SILENCE_S", 0.0)
    monkeypatch.setattr(progress, "say", lambda line: said.set())
    before = threading.active_count()
    with progress.break_silence("sft: working"):
        assert said.wait(10)
    assert threading.active_count() == before


def test_a_result_starts_on_a_line_of_its_own_above_the_bar(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(progress, "sys", types.SimpleNamespace(stdout=screen, stderr=screen))
    with progress.Progress("answers", 2) as bar:
        bar.add()
        progress.show("=== 1: one")
    before, after = screen.getvalue().split("=== 1: one\n")
    assert "answers:" in before
    assert before.rpartition("\r")[2].strip() == ""  # the bar was cleared
    assert "answers:" in after
