"""The page, the pictures and the terminal display of a trace, from hostile texts to twenty threads."""

import functools
import io
import itertools
import json
import random
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from pasta_jax.decode.trace_file import from_json, to_json
from pasta_jax.decode.transcript import Transcript
from pasta_jax.lang.program import Chunk, Program, Sync, Text
from pasta_jax.view.page import page
from pasta_jax.view.picture import mask_svg, picture, timeline_svg
from pasta_jax.view.style import DARK, LIGHT, css_variables
from pasta_jax.view.terminal import answer_text, frame, timeline
from pasta_jax.view.text import cells, printable, short
from tests.requires import requires_smollm2
from tests.traces import TOKENIZER, random_traces, script_of, traced

DOCS = Path(__file__).parents[1] / "docs"
HOSTILE = "</script><img src=x onerror=alert(1)><!--answer--><!--trace--> & \" ' \x1b[31m \x00 \u2028 ]]> 数学 <sync/> "
VOID = {"meta", "input", "br", "img", "link"}


def program(chunks: int, words: int = 12, syncs: int = 5, topic: str = "topic") -> Program:
    """Chunks with some text of main before each, and a sync after every few."""
    parts = []
    for number in range(1, chunks + 1):
        parts += [Text(f"{number}: "), Chunk(f"{topic} {number}", 1 + number % 3, "abc " * (words + number % 5))]
        parts += [Sync(), Text("So far. ")] if number % syncs == 0 else []
    return Program((Text("Begin. "), *parts, Text("End.")))


@functools.cache
def hostile():
    parts = (Text(HOSTILE), Chunk(HOSTILE, 3, HOSTILE), Chunk("", 1, ""), Sync(), Text(HOSTILE))
    return traced(script_of(Program(parts)), prompt=HOSTILE)[0]


class Page(HTMLParser):
    """The page as a browser parses it: balanced elements, their attributes, the text of each token."""

    def __init__(self, html: str):
        super().__init__()
        self.open: list[tuple[str, dict]] = []
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.tokens: dict[int, str] = {}
        self.data = ""
        self.heading = ""
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, name, attributes):
        self.names.add(name)
        self.attributes |= {key for key, _ in attributes}
        if name not in VOID:
            self.open.append((name, dict(attributes)))
            if name == "i" and "data-n" in self.open[-1][1]:
                self.tokens[int(self.open[-1][1]["data-n"])] = ""

    def handle_startendtag(self, name, attributes):
        self.names.add(name)
        self.attributes |= {key for key, _ in attributes}

    def handle_endtag(self, name):
        assert self.open.pop()[0] == name

    def handle_data(self, data):
        name, attributes = self.open[-1] if self.open else ("", {})
        if name == "i" and "data-n" in attributes:
            self.tokens[int(attributes["data-n"])] += data
        if attributes.get("id") == "trace":
            self.data += data
        if name == "h1":
            self.heading += data


def is_silent(trace, i: int) -> bool:
    return bool(trace.in_topic[i] or trace.tags.is_tag(int(trace.token[i])))


def test_a_page_holds_every_token_once_in_reading_order_and_its_trace():
    for trace in (hostile(), *(trace for trace, *_ in random_traces(30))):
        html = page(trace, None)
        parsed = Page(html)
        assert list(parsed.tokens) == trace.order().tolist()
        for i, text in parsed.tokens.items():
            if not is_silent(trace, i):
                assert text == printable(trace.text[i])
        data = json.loads(parsed.data)
        assert data.pop("order") == trace.order().tolist()
        assert data.pop("names").keys() == {str(i) for i in np.flatnonzero(trace.tags.is_tag(trace.token))}
        assert len(data.pop("step_ms")) == (trace.steps + 1 if trace.rounds else 0)
        assert to_json(from_json(json.dumps(data), "page")) == to_json(trace)


def test_a_page_needs_no_network_and_runs_nothing_of_a_model():
    html = page(hostile(), None)
    parsed = Page(html)
    assert parsed.heading == printable(HOSTILE).strip()
    assert not parsed.names & {"img", "link", "iframe", "base", "object", "foreignobject"}
    assert not parsed.attributes & {"src", "href", "srcset", "onerror", "onload", "onclick"}
    assert html.count("<script") == html.count("</script>") == 2
    ours = re.sub(r'<script type="application/json".*?</script>', "", html, flags=re.DOTALL)
    assert not re.search(r"https?:|@import|url\((?!#)|fetch\(|XMLHttpRequest", ours)
    assert "\x1b" not in html
    assert "<!--" not in html.replace("<!doctype", "")


def test_a_page_shows_what_was_measured():
    trace, _ = traced(script_of(program(4)))
    timed, untimed = page(trace, 120), page(traced(script_of(program(4)), looks=0)[0], None)
    assert f"<b>{120 / trace.critical_path:.2f}</b><span>speedup over 120 tokens</span>" in timed
    assert 'value="ms"' in timed
    assert 'value="ms"' not in untimed
    assert "speedup" not in untimed
    assert "Time was not measured" in untimed
    assert "A replay" not in timed
    trace = traced(script_of(program(4)))[0]
    object.__setattr__(trace, "replayed", True)
    assert "A replay" in page(trace, None)
    assert "a replay of a given answer" in picture(trace)


def test_a_page_can_show_every_answer():
    nothing, _ = traced([[TOKENIZER.end_of_turn]])
    plain, _ = traced(script_of(Program((Text("only text " * 20),))))
    assert Page(page(nothing, None)).tokens == {}
    assert len(Page(page(plain, None)).tokens) == 200
    large, _ = traced(script_of(program(20, words=5)), rows=6)
    assert len(large.closed) == 21
    assert len(large.token) > 600
    html = page(large, 500)
    Page(html)
    assert len(html) < 400_000


# Pictures


def elements(svg: str, name: str, **classes) -> list[ET.Element]:
    root = ET.fromstring(
        svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) if "xmlns" not in svg else svg
    )
    found = root.iter("{http://www.w3.org/2000/svg}" + name)
    return [element for element in found if classes.get("kind", "") in (element.get("class") or "")]


def edges(bar: ET.Element) -> tuple[float, float]:
    left, width = re.match(r"M([\d.]+) [\d.]+h([\d.]+)", bar.get("d")).groups()
    return float(left), float(left) + float(width)


@pytest.mark.parametrize("unit", ["steps", "ms"])
def test_a_timeline_has_one_bar_per_token_in_order_of_time(unit):
    for trace, *_ in random_traces(20, seed=3):
        if unit == "ms" and not trace.rounds:
            continue
        svg = timeline_svg(trace, unit)
        bars = {int(bar.get("data-n")): bar for bar in elements(svg, "path", kind="bar")}
        assert sorted(bars) == list(range(len(trace.token)))
        for i, bar in bars.items():
            assert ("tag" in bar.get("class")) == is_silent(trace, i)
            assert edges(bar)[1] <= 960
        for number in range(len(trace.closed)):
            own = np.flatnonzero(trace.thread == number).tolist()
            for before, after in itertools.pairwise(own):
                assert edges(bars[before])[1] <= edges(bars[after])[0] + 0.51
        started = sum(thread.tokens > 0 for thread in trace.threads()[1:])
        assert len(elements(svg, "rect", kind="promised")) == started
        joined = [path for path in elements(svg, "path", kind="arrow") if path.get("marker-end")]
        assert sorted(int(path.get("data-n")) for path in joined) == sorted(trace.joins().values())
        assert len(elements(svg, "path", kind="arrow")) == started + len(joined)


def polygon(path: str) -> list[list[tuple[float, float]]]:
    """The closed outlines of a path made of M, h, v, H and z."""
    shapes, x, y = [], 0.0, 0.0
    for command, numbers in re.findall(r"([MhvHz])([-\d. ]*)", path):
        values = [float(number) for number in numbers.split()]
        if command == "M":
            x, y = values
            shapes.append([(x, y)])
            continue
        if command == "z":
            continue
        x, y = {"h": (x + values[0], y), "v": (x, y + values[0]), "H": (values[0], y)}[command]
        shapes[-1].append((x, y))
    return shapes


def painted(path: str, left: float, top: float, count: int) -> np.ndarray:
    """bool [count, count]: the unit cells whose centres lie inside an outline of the path."""
    filled = np.zeros((count, count), bool)
    x, y = left + np.arange(count) + 0.5, top + np.arange(count) + 0.5
    for shape in polygon(path):
        inside = np.zeros((count, count), bool)
        for (x0, y0), (x1, y1) in zip(shape, [*shape[1:], shape[0]], strict=True):
            crosses = (min(y0, y1) <= y) & (y < max(y0, y1))
            inside ^= crosses[:, None] & (x < x0 + (y - y0)[:, None] * (x1 - x0) / ((y1 - y0) or 1))
        filled |= inside
    return filled


def test_the_mask_picture_is_the_mask():
    for trace, *_ in random_traces(25, seed=4):
        count = len(trace.token)
        if not count:
            assert mask_svg(trace) == ""
            continue
        svg = mask_svg(trace)
        root = ET.fromstring(svg)
        left, top = float(root.get("data-left")), float(root.get("data-top"))
        order, sees = trace.order(), trace.sees()[:, len(trace.prompt_ids) :]
        seen = np.zeros((count, count), bool)
        for group in root.iter("g"):
            number = int(group.get("class")[1:])
            for path in group.iter("path"):
                cells_of = painted(path.get("d"), left, top, count)
                seen |= cells_of
                threads = trace.thread[order][cells_of.any(axis=0)]
                assert {1 + (t - 1) % (len(LIGHT) - 1) if t else 0 for t in threads.tolist()} <= {number}
        assert np.array_equal(seen, sees)


def test_a_standalone_picture_is_well_formed_whatever_a_model_wrote():
    for trace in (hostile(), *(trace for trace, *_ in random_traces(10, seed=5))):
        root = ET.fromstring(picture(trace))
        assert root.get("viewBox")
        written = "".join("".join(text.itertext()) for text in elements(picture(trace), "text", kind="text"))
        expected = printable(trace.program().strip() if trace.finish == 1 else written)
        assert "".join(written.split()) == "".join(expected.split())


@requires_smollm2
def test_the_documented_picture_shows_the_documented_example():
    from pasta_jax import assets
    from pasta_jax.lang.program import check
    from pasta_jax.models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(assets.smollm2_gguf())
    source = (DOCS / "example.txt").read_text().removesuffix("\n")
    assert check(source, tokenizer) == []
    committed = (DOCS / "async_answer.svg").read_text()
    prompt = "".join(elements(committed, "text", kind="ask")[0].itertext())
    trace, _ = traced(script_of(Program.parse(source), tokenizer), prompt=prompt, tokenizer=tokenizer)
    object.__setattr__(trace, "replayed", True)
    command = "python -m launch.decode --program=docs/example.txt --svg=docs/async_answer.svg --prompt=…"
    assert committed == picture(trace), f"the picture has changed; run: {command}"
    assert len(committed) < 60_000


def test_colours_follow_the_reader_and_every_thread_has_one():
    css = css_variables()
    assert "prefers-color-scheme:dark" in css
    assert all(colour in css for colour in (*LIGHT, *DARK))
    assert len(LIGHT) == len(DARK) == len(set(LIGHT)) == len(set(DARK))


def test_control_characters_are_printable_and_wide_ones_count_twice():
    assert printable("a\x1b[2J\x00\nb\ud800\x9b") == "a␛[2J␀\nb\ufffd\ufffd"
    assert [cells(character) for character in "a数é\u0301"] == [1, 2, 1, 0]
    assert short("one  two\nthree", 9) == "one two …"
    assert short("数学数学", 8) == "数学数学"
    assert sum(map(cells, short("数学数学数学", 7))) <= 7


# The terminal


def rendered(renderable, width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system="256")
    console.print(renderable)
    return console.file.getvalue().splitlines()


def plain(lines: list[str]) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", "\n".join(lines))


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (40, 12), (20, 6)])
def test_a_frame_fits_the_screen_and_main_is_always_on_it(width, height):
    trace, _ = traced(script_of(program(20, words=8, syncs=50)), rows=30)
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
    trace, _ = traced(script_of(program(2, words=3, syncs=50)))
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
