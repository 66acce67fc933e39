"""The terminal display of an answer: it fits the screen, shows every thread, and lets no escape code through."""

import dataclasses
import io
import itertools
import random
import re

import pytest
from rich.console import Console

from pasta_jax.decode.generate import Event
from pasta_jax.decode.trace import Trace
from pasta_jax.decode.transcript import Transcript
from pasta_jax.lang.program import Chunk, Program, Sync, Text
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


def columns_of(trace: Trace) -> tuple:
    """Thread, token, step and text of each token."""
    return trace.thread.tolist(), trace.token.tolist(), trace.step.tolist(), trace.text


def transcript_of(trace: Trace) -> Transcript:
    """The transcript of a whole answer."""
    transcript = Transcript(trace.tags)
    for event in zip(*columns_of(trace), strict=True):
        transcript.push(*event)
    return transcript


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
    for count, (thread, token, step, text) in enumerate(zip(*columns_of(trace), strict=True)):
        transcript.push(thread, token, step, text)
        if count % 40 == 0:
            lines = rendered(frame(transcript, console), width, height)
            assert len(lines) <= height
            assert all(sum(map(cells, line)) <= width for line in plain(lines).splitlines())
            assert "main" in plain(lines)
            assert f"step {step}," in plain(lines)
    shown = plain(lines)
    assert shown.count("╭") > 1 or height == 6
    if width == 200:
        assert all(f"{number} topic {number}" in shown for number in range(1, 21))


def test_a_frame_shows_the_latest_text_and_the_promised_length_of_each_thread():
    trace, _ = traced(script_of(many_chunks(2, words=3, syncs=50)))
    transcript = transcript_of(trace)
    lines = plain(rendered(frame(transcript, Console(file=io.StringIO(), width=120, height=30)), 120, 30))
    assert "1 topic 1" in lines
    assert "18 of 20 tokens ✓" in lines
    assert "abc abc abc abc" in lines


def test_a_panel_shows_the_end_of_a_long_text():
    trace, _ = traced(script_of(Program((Text("once " * 300), Text("the very end")))))
    transcript = transcript_of(trace)
    assert "the very end" in plain(
        rendered(frame(transcript, Console(file=io.StringIO(), width=60, height=20)), 60, 20)
    )


def test_a_frame_marks_idle_threads():
    trace, _ = traced(script_of(Program((Text("a"), Chunk("t", 9, "long " * 9), Sync(), Text("b")))))
    transcript = Transcript(trace.tags)
    for event in itertools.islice(zip(*columns_of(trace), strict=True), 30):
        transcript.push(*event)
    lines = plain(rendered(frame(transcript, Console(file=io.StringIO(), width=120, height=30)), 120, 30))
    assert "4 tokens, waits" in lines
    assert lines.count("waits") == 1


def test_a_models_escape_codes_do_not_reach_the_terminal():
    transcript = transcript_of(hostile())
    console = Console(file=io.StringIO(), width=150, height=50)
    for shown in (frame(transcript, console), answer_text(hostile()), *timeline(hostile(), 100)):
        lines = "\n".join(rendered(shown, 150, 50))
        assert "\x1b[31m" not in lines
        assert "\x00" not in lines


def test_a_timeline_in_text_shows_the_steps():
    trace, _ = traced(script_of(Program((Text("ab"), Chunk("t", 1, "cdefgh"), Text("ij"), Sync(), Text("k")))))
    lines = [line.plain for line in timeline(trace, 100)]
    assert lines[0] == "main  ██▒▒▒██····▒█"
    assert lines[1] == "1 t       ▒██████▒"
    assert lines[2].split() == ["1", f"{trace.steps}", "steps"]
    rng = random.Random(0)
    for trace, *_ in random_traces(20, seed=6):
        width = rng.randrange(30, 120)
        assert all(len(line.plain) <= width or width < 40 for line in timeline(trace, width))


def test_names_are_cut_by_the_width_of_the_screen():
    topic = "a balanced diet of fruit and vegetables"
    trace, _ = traced(script_of(Program((Text("ab"), Chunk(topic, 1, "cdefgh"), Sync(), Text("k")))))
    assert [line.plain for line in timeline(trace, 120)][1].startswith(f"1 {topic}  ")
    assert [line.plain for line in timeline(trace, 50)][1].startswith("1 a balanced diet…  ")
    for width, shown in ((100, f"1 {topic} ─"), (30, "1 a balanced diet of fr… ─")):
        lines = plain(rendered(frame(transcript_of(trace), Console(width=width, height=30)), width, 30))
        assert shown in lines


def test_a_panel_is_never_blank_while_its_thread_has_text():
    program = Program((Text("Some words." + "\n" * 30), Chunk("t", 1, "more words" + "\n \n" * 9), Chunk("e", 1, "")))
    shown = plain(rendered(frame(transcript_of(traced(script_of(program))[0]), Console(width=40, height=12)), 40, 12))
    for text in ("[1 t]", "more words", "(empty)"):
        assert text in shown


def test_main_names_its_chunks_where_they_will_be_read():
    program = Program((Text("**Tips**\n- "), Chunk("eat well", 1, "**Eat** w"), Text("\n- "), Chunk("sleep", 1, "*S*")))
    shown = plain(rendered(frame(transcript_of(traced(script_of(program))[0]), Console(width=60, height=30)), 60, 30))
    lines = [line.strip("│ ") for line in shown.splitlines()]
    assert lines[1:4] == ["Tips", "• [1 eat well]", "• [2 sleep]▌"]
    assert any("Eat w" in line and "S" in line for line in lines)


def test_bold_that_is_still_open_is_shown():
    program = Program((Text("Now **this is bo"),))
    lines = rendered(frame(transcript_of(traced(script_of(program))[0]), Console(width=60, height=30)), 60, 30)
    assert "\x1b[1mthis is bo" in lines[1]


def test_an_answer_is_wrapped_between_words_with_lists_indented():
    program = Program((Text("- "), Chunk("t", 1, "**one** two three four five"), Text("\n\nand so on, and so on")))
    console = Console(file=io.StringIO(), width=16)
    console.print(answer_view(traced(script_of(program))[0], console))
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert lines[:6] == ["• one two three", "  four five", "", "and so on, and", "so on", ""]


def test_a_replay_waits_as_long_as_one_reads():
    trace, _ = traced(script_of(Program((Text("ab"), Chunk("t", 1, "cdefgh"), Sync(), Text("k")))))
    console = Console(file=io.StringIO(), width=80, height=20, force_terminal=True)
    events = [Event(0, *event) for event in zip(*columns_of(trace), strict=True)]
    waits = []
    with LiveView(trace.tags, console) as view:
        view.replay(events, waits.append)
    assert len(waits) == trace.steps
    assert set(waits) == {0.05}  # one byte, or a tag
    longer = [dataclasses.replace(event, text=event.text * 9) for event in events]
    with LiveView(trace.tags, console) as view:
        view.replay(longer, waits.append)
    assert max(waits) == pytest.approx(9 * 0.05)
    assert "cdefgh" in plain(console.file.getvalue().splitlines())


def test_figures_are_never_cut():
    shown = plain(rendered(figures({"threads": "main", "page": "a/long/path/to/some/answer.html"}), 20, 30))
    assert "".join(shown.split()) == "threadsmainpagea/long/path/to/some/answer.html"
