"""The terminal display of an answer: it fits the screen, shows every thread, and lets no escape code through."""

import io
import os
import random
import re

import pytest
import rich.console
from rich.console import Console

from pasta_jax.decode.request import Event
from pasta_jax.decode.trace import Trace
from pasta_jax.decode.transcript import Transcript
from pasta_jax.lang.program import Chunk, Program, Sync, Text
from pasta_jax.view import live
from pasta_jax.view.live import LiveView, frame
from pasta_jax.view.terminal import answer_text, answer_view, figures, timeline
from pasta_jax.view.text import cells, printable, short
from tests.helpers.traces import hostile, many_chunks, random_traces, script_of, traced


def test_control_characters_are_printable_and_wide_ones_count_twice():
    assert printable("a\x1b[2J\x00\nb\ud800\x9b") == "a␛[2J␀\nb\ufffd\ufffd"
    assert [cells(character) for character in "a数é\u0301"] == [1, 2, 1, 0]
    assert short("one  two\nthree", 9) == "one two …"
    assert short("数学数学", 8) == "数学数学"
    assert sum(map(cells, short("数学数学数学", 7))) <= 7


def columns_of(trace: Trace) -> list[tuple]:
    """Thread, token, step and text of each token."""
    columns = (trace.thread.tolist(), trace.token.tolist(), trace.step.tolist(), trace.text)
    return list(zip(*columns, strict=True))


def transcript_of(trace: Trace, tokens: int | None = None) -> Transcript:
    """The transcript of an answer's first tokens, or of all."""
    transcript = Transcript(trace.tags)
    for event in columns_of(trace)[:tokens]:
        transcript.push(*event)
    return transcript


def rendered(renderable, width: int, height: int) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system="256")
    console.print(renderable)
    return console.file.getvalue()


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text)


def of_parts(*parts) -> Trace:
    return traced(script_of(Program(parts)))[0]


def framed(trace: Trace, width: int, height: int, tokens: int | None = None) -> str:
    """The frame after some tokens, as text."""
    console = Console(file=io.StringIO(), width=width, height=height)
    return plain(rendered(frame(transcript_of(trace, tokens), console), width, height))


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (40, 12), (20, 6)])
def test_a_frame_fits_the_screen_and_main_is_always_on_it(width, height):
    trace, _ = traced(script_of(many_chunks(20, words=8, syncs=50)), rows=30)
    for tokens in range(1, len(trace.token) + 1, 40):
        shown = framed(trace, width, height, tokens)
        assert len(shown.splitlines()) <= height
        assert all(sum(map(cells, line)) <= width for line in shown.splitlines())
        assert "main" in shown
        assert f"step {trace.step[tokens - 1]}," in shown
    assert shown.count("╭") > 1 or height == 6
    assert width < 200 or all(f"{number} topic {number}" in shown for number in range(1, 21))


TOPIC = "a balanced diet of fruit and vegetables"


@pytest.mark.parametrize(
    ("parts", "tokens", "width", "expected"),
    [
        (many_chunks(2, words=3, syncs=50).parts, None, 120, ["1 topic 1", "18 of 20 tokens ✓", "abc abc abc abc"]),
        ([Text("once " * 300), Text("the very end")], None, 60, ["the very end"]),
        ([Text("a"), Chunk("t", 9, "long " * 9), Sync(), Text("b")], 30, 120, ["4 tokens, waits"]),
        # A panel is never blank while there is text.
        ([Text("Words." + "\n" * 30), Chunk("t", 1, "more" + "\n \n" * 9), Chunk("e", 1, "")], None, 40,
         ["[1 t]", "more", "(empty)"]),
        ([Text("ab"), Chunk(TOPIC, 1, "c"), Sync()], None, 100, [f"1 {TOPIC} ─"]),
        ([Text("ab"), Chunk(TOPIC, 1, "c"), Sync()], None, 30, ["1 a balanced diet of fr… ─"]),
        # Main names its chunks where they will be read.
        ([Text("**Tips**\n- "), Chunk("eat well", 1, "**Eat** w"), Text("\n- "), Chunk("sleep", 1, "*S*")], None, 60,
         [" Tips ", "• [1 eat well]", "• [2 sleep]▌", " Eat w "]),
    ],
)  # fmt: skip
def test_a_frame_shows_the_latest_of_each_thread(parts, tokens, width, expected):
    shown = framed(of_parts(*parts), width, 30 if width > 40 else 12, tokens)
    assert [text for text in expected if text not in shown] == []
    assert tokens is None or shown.count("waits") == 1


def test_bold_that_is_still_open_is_shown():
    console = Console(file=io.StringIO(), width=60, height=30)
    assert "\x1b[1mthis is bo" in rendered(frame(transcript_of(of_parts(Text("Now **this is bo"))), console), 60, 30)


def test_a_models_escape_codes_do_not_reach_the_terminal():
    console = Console(file=io.StringIO(), width=150, height=50)
    for shown in (frame(transcript_of(hostile()), console), answer_text(hostile()), *timeline(hostile(), 100)):
        assert not re.search("\x1b\\[31m|\x00", rendered(shown, 150, 50))


def test_a_timeline_in_text_shows_the_steps():
    trace = of_parts(Text("ab"), Chunk("t", 1, "cdefgh"), Text("ij"), Sync(), Text("k"))
    lines = [line.plain for line in timeline(trace, 100)]
    assert lines[:2] == ["main  ██▒▒▒██····▒█", "1 t       ▒██████▒"]
    assert lines[2].split() == ["1", f"{trace.steps}", "steps"]
    rng = random.Random(0)
    for trace, *_ in random_traces(20, seed=6):
        width = rng.randrange(30, 120)
        assert all(len(line.plain) <= width or width < 40 for line in timeline(trace, width))
    trace = of_parts(Text("ab"), Chunk(TOPIC, 1, "cdefgh"), Sync(), Text("k"))
    for width, name in ((120, TOPIC), (50, "a balanced diet…")):
        assert [line.plain for line in timeline(trace, width)][1].startswith(f"1 {name}  ")


def test_after_a_resize_the_next_frame_has_the_new_width_and_nothing_of_the_last_one_is_left(monkeypatch):
    """On a terminal that breaks what is too long when it gets narrower, as most do."""
    size = [80, 24]
    monkeypatch.setattr(rich.console.os, "get_terminal_size", lambda _: os.terminal_size(size))
    monkeypatch.setenv("COLUMNS", "80")  # as a shell exported it
    monkeypatch.setattr(live, "FRAMES", 1e9)
    monkeypatch.setattr(live, "SHARE", 1.0)
    console = live.following(force_terminal=True)
    console.file = io.StringIO()
    trace = of_parts(Text("ab"), Chunk("t", 1, "cdefgh"), Sync(), Text("k"))
    events = [Event(0, *event, text) for *event, text in columns_of(trace)]
    with LiveView(trace.tags, console) as view:
        for event in events[:-1]:
            view.push(event)
        shown = on_screen(console.file.getvalue(), 80)
        for width in (50, 30, 70):
            size[0] = width
            console.file.truncate(0), console.file.seek(0)
            view.push(events[-1])
            shown = on_screen("\n".join(shown) + console.file.getvalue(), width)
            assert max(map(len, shown)) == width
            assert sum("─ main ─" in line for line in shown) == 1
    monkeypatch.setenv("COLUMNS", "60")  # as a person set it
    assert live.following(force_terminal=True).width == 60


def on_screen(output: str, width: int) -> list[str]:
    """The lines that a terminal of this width shows."""
    lines, row, column = [""], 0, 0
    for count, command, text in re.findall(r"\x1b\[\??([\d;]*)([A-Za-z])|([^\x1b])", output):
        if command == "A":
            row -= int(count or 1)
            assert row >= 0, "above what the view drew"
        elif command == "K":
            lines[row] = ""
        elif text == "\r":
            column = 0
        elif text == "\n" or (text and column == width):
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        if text and text not in "\r\n":
            lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + 1 :]
            column += 1
    assert not any(lines[row + 1 :]), "something is left below the cursor"
    return lines[: row + 1]


def test_an_answer_is_wrapped_between_words_with_lists_indented():
    trace = of_parts(Text("- "), Chunk("t", 1, "**one** two three four five"), Text("\n\nand so on, and so on"))
    shown = plain(rendered(answer_view(trace, Console(file=io.StringIO(), width=16)), 16, 30))
    lines = [line.rstrip() for line in shown.splitlines()]
    assert lines[:6] == ["• one two three", "  four five", "", "and so on, and", "so on", ""]


def test_a_tab_takes_its_columns_before_lines_are_broken():
    view = answer_view(of_parts(Text("-\tone two\r\n\tx")), Console(file=io.StringIO(), width=14))
    lines = [line.rstrip() for line in plain(rendered(view, 14, 9)).splitlines()]
    assert lines == ["•       one", "    two", "        x"]


def test_a_replay_waits_as_long_as_one_reads():
    trace = of_parts(Text("ab"), Chunk("t", 1, "cdefgh"), Sync(), Text("k"))
    console = Console(file=io.StringIO(), width=80, height=20, force_terminal=True)
    for times, longest in ((1, 0.05), (9, 0.45)):  # a byte, or a tag; nine bytes
        waits = []
        with LiveView(trace.tags, console) as view:
            view.replay([Event(0, *event, text * times) for *event, text in columns_of(trace)], waits.append)
        assert len(waits) == trace.steps
        assert max(waits) == pytest.approx(longest)
        assert min(waits) == 0.05
    assert "cdefgh" in plain(console.file.getvalue())


def test_figures_are_never_cut():
    shown = plain(rendered(figures({"threads": "main", "page": "a/long/path/to/some/answer.html"}), 20, 30))
    assert "".join(shown.split()) == "threadsmainpagea/long/path/to/some/answer.html"


def test_brackets_in_a_path_are_no_markup():
    assert "runs/out[v2].html" in plain(rendered(figures({"page": "runs/out[v2].html"}), 60, 30))


def test_fields_grow_side_by_side_in_panels_with_their_names():
    console = Console(file=io.StringIO(), width=80, height=20, force_terminal=True)
    with LiveView(traced(script_of(Program((Text("x"),))))[0].tags, console) as view:
        for step, (field, text, ended) in enumerate([("name", "Ada", False), ("city", '"Oslo"', True)], start=1):
            view.write(field, Event(0, 7, 5, step, text, ended))
        view.write("name", Event(0, 7, 5, 3, " L", False))
        shown = plain(rendered(frame(view.transcript, console), 80, 20))
    assert "1 name" in shown
    assert "Ada L" in shown
    assert "2 tokens" in shown
    assert re.search(r"1 token ✓", shown)
    assert "2 of 3 threads open" in shown
