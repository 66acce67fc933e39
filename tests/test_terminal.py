"""The terminal display of an answer: it fits the screen, shows every thread, and lets no escape code through."""

import io
import itertools
import random
import re

import pytest
from rich.console import Console

from pasta_jax.decode.transcript import Transcript
from pasta_jax.lang.program import Chunk, Program, Sync, Text
from pasta_jax.view.terminal import answer_text, frame, timeline
from pasta_jax.view.text import cells, printable, short
from tests.traces import hostile, many_chunks, random_traces, script_of, traced


def test_control_characters_are_printable_and_wide_ones_count_twice():
    assert printable("a\x1b[2J\x00\nb\ud800\x9b") == "a␛[2J␀\nb\ufffd\ufffd"
    assert [cells(character) for character in "a数é\u0301"] == [1, 2, 1, 0]
    assert short("one  two\nthree", 9) == "one two …"
    assert short("数学数学", 8) == "数学数学"
    assert sum(map(cells, short("数学数学数学", 7))) <= 7


def rendered(renderable, width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system="256")
    console.print(renderable)
    return console.file.getvalue().splitlines()


def plain(lines: list[str]) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", "\n".join(lines))


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (40, 12), (20, 6)])
def test_a_frame_fits_the_screen_and_main_is_always_on_it(width, height):
    trace, _ = traced(script_of(many_chunks(20, words=8, syncs=50)), rows=30)
    transcript = Transcript(trace.tags)
    console = Console(file=io.StringIO(), width=width, height=height)
    columns = (trace.token.tolist(), trace.thread.tolist(), trace.step.tolist(), trace.text)
    for count, event in enumerate(zip(*columns, strict=True)):
        token, thread, step, text = event
        transcript.push(thread, token, step, text)
        if count % 40 == 0:
            lines = rendered(frame(transcript, console), width, height)
            assert len(lines) <= height
            assert all(sum(map(cells, line)) <= width for line in plain(lines).splitlines())
            assert "main" in plain(lines)
            assert f"step {step}," in plain(lines)
    shown = plain(lines)
    if width == 200:
        assert all(f"{number} topic {number}" in shown for number in range(1, 21))


def test_a_frame_shows_the_latest_text_and_the_promised_length_of_each_thread():
    trace, _ = traced(script_of(many_chunks(2, words=3, syncs=50)))
    transcript = Transcript(trace.tags)
    columns = (trace.token.tolist(), trace.thread.tolist(), trace.step.tolist(), trace.text)
    for token, thread, step, text in zip(*columns, strict=True):
        transcript.push(thread, token, step, text)
    lines = plain(rendered(frame(transcript, Console(file=io.StringIO(), width=120, height=30)), 120, 30))
    assert "1 topic 1" in lines
    assert "18 of 20 ✓" in lines
    assert "abc abc abc abc" in lines


def test_a_panel_shows_the_end_of_a_long_text():
    trace, _ = traced(script_of(Program((Text("once " * 300), Text("the very end")))))
    transcript = Transcript(trace.tags)
    columns = (trace.token.tolist(), trace.thread.tolist(), trace.step.tolist(), trace.text)
    for token, thread, step, text in zip(*columns, strict=True):
        transcript.push(thread, token, step, text)
    assert "the very end" in plain(
        rendered(frame(transcript, Console(file=io.StringIO(), width=60, height=20)), 60, 20)
    )


def test_a_frame_marks_idle_threads():
    trace, _ = traced(script_of(Program((Text("a"), Chunk("t", 9, "long " * 9), Sync(), Text("b")))))
    transcript = Transcript(trace.tags)
    columns = (trace.token.tolist(), trace.thread.tolist(), trace.step.tolist(), trace.text)
    for token, thread, step, text in itertools.islice(zip(*columns, strict=True), 30):
        transcript.push(thread, token, step, text)
    lines = plain(rendered(frame(transcript, Console(file=io.StringIO(), width=120, height=30)), 120, 30))
    assert "4 idle" in lines
    assert lines.count("idle") == 1


def test_a_models_escape_codes_do_not_reach_the_terminal():
    transcript = Transcript(hostile().tags)
    columns = (hostile().token.tolist(), hostile().thread.tolist(), hostile().step.tolist(), hostile().text)
    for token, thread, step, text in zip(*columns, strict=True):
        transcript.push(thread, token, step, text)
    console = Console(file=io.StringIO(), width=150, height=50)
    for shown in (frame(transcript, console), answer_text(hostile()), *timeline(hostile(), 100)):
        lines = "\n".join(rendered(shown, 150, 50))
        assert "\x1b[31m" not in lines
        assert "\x00" not in lines


def test_a_timeline_in_text_shows_the_steps():
    trace, _ = traced(script_of(Program((Text("ab"), Chunk("t", 1, "cdefgh"), Text("ij"), Sync(), Text("k")))))
    lines = [line.plain for line in timeline(trace, 100)]
    assert lines[0] == "main              ██▒▒▒██····▒█"
    assert lines[1] == "1 t                   ▒██████▒"
    assert lines[2].split() == ["1", f"{trace.steps}", "steps"]
    rng = random.Random(0)
    for trace, *_ in random_traces(20, seed=6):
        width = rng.randrange(30, 120)
        assert all(len(line.plain) <= width or width < 40 for line in timeline(trace, width))
