"""Pictures of a trace: a timeline of its steps, the attention mask, the standalone picture of an answer."""

import itertools
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.path import Path as Outline

from pasta_jax.lang.program import Chunk, Program, Text
from pasta_jax.view import picture as module
from pasta_jax.view.picture import Layout, _beside, mask_svg, picture, timeline_svg
from pasta_jax.view.style import DARK, DARK_PAGE, LIGHT, LIGHT_PAGE, css_variables
from pasta_jax.view.text import printable
from tests import ROOT
from tests.helpers.requires import requires_smollm2
from tests.helpers.traces import drafted, hostile, is_silent, random_traces, script_of, traced

DOCS = ROOT / "docs"


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


def test_tokens_that_a_thread_feeds_in_one_step_share_its_width():
    bars = [edges(bar) for bar in elements(timeline_svg(drafted(), "steps"), "path", kind="bar")]
    assert len(bars) == 11
    for (left, right), (following, _) in itertools.pairwise(bars):
        assert left < right <= following


LONG = {
    "Chinese": "数学是研究数量、结构、变化以及空间等概念的一门学科。" * 12,
    "Thai": "ความเข้มข้นของน้ำที่มีเกลือ" * 20,
    "a URL": f"See https://example.org/{'a' * 300} now.",
    "accents": "e\u0301" * 300,
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_text_without_blanks_stays_within_a_standalone_picture(text):
    svg = picture(traced(script_of(Program((Text(text),))))[0])
    lines = elements(svg, "text", kind="text")
    right = float(ET.fromstring(svg).get("width")) - 24
    assert all(24 + float(line.get("x")) + float(line.get("textLength")) <= right for line in lines)
    shown = ["".join(line.itertext()) for line in lines]
    assert "".join(shown) == text.replace(" ", "") or text.startswith("See")
    assert not any(line[0] in "、。\u0e31\u0e48\u0301" for line in shown)


def painted(path: str, left: float, top: float, count: int) -> np.ndarray:
    """bool [count, count]: the unit cells whose centres lie inside an outline of a path made of M, h, v, H and z."""
    shapes, x, y = [], 0.0, 0.0
    for command, numbers in re.findall(r"([MhvH])([-\d. ]*)", path):
        first, *rest = map(float, numbers.split())
        x, y = {"M": (first, *rest), "h": (x + first, y), "v": (x, y + first), "H": (first, y)}[command]
        shapes += [[]] * (command == "M")
        shapes[-1] = [*shapes[-1], (x, y)]
    row, column = np.mgrid[:count, :count] + 0.5
    centres = np.stack([left + column.ravel(), top + row.ravel()], axis=1)
    return np.any([Outline(shape).contains_points(centres) for shape in shapes], axis=0).reshape(count, count)


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


def without_marks(text: str) -> str:
    """The text without blanks and what Markdown may hide; tests/view/test_markdown.py is about those."""
    return "".join(re.sub(r"[\s*_`#~+•-]", "", text))


def test_a_standalone_picture_is_well_formed_whatever_a_model_wrote():
    for trace in (hostile(), *(trace for trace, *_ in random_traces(10, seed=5))):
        root = ET.fromstring(picture(trace))
        assert root.get("viewBox")
        written = "".join("".join(text.itertext()) for text in elements(picture(trace), "text", kind="text"))
        expected = printable(trace.program().strip() if trace.finish == 1 else written)
        assert without_marks(written) == without_marks(expected)


@requires_smollm2
def test_the_documented_picture_shows_the_documented_example():
    from pasta_jax.files import packages
    from pasta_jax.lang.program import check
    from pasta_jax.tokenizers.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(packages.path("smollm2_135m"))
    source = (DOCS / "example.txt").read_text().removesuffix("\n")
    assert check(source, tokenizer) == []
    committed = (DOCS / "async_answer.svg").read_text()
    prompt = "".join(elements(committed, "text", kind="ask")[0].itertext())
    trace, _ = traced(script_of(Program.parse(source), tokenizer), prompt=prompt, tokenizer=tokenizer)
    object.__setattr__(trace, "replayed", True)
    command = "python -m launch.decode --program=docs/example.txt --svg=docs/async_answer.svg --prompt=…"
    assert committed == picture(trace), f"the picture has changed; run: {command}"
    assert len(committed) < 60_000


def test_a_timeline_names_threads_in_full_if_there_is_room():
    topic = "a balanced diet of fruit, vegetables"
    trace, _ = traced(script_of(Program((Text("a"), Chunk(topic, 1, "b"), Chunk("many words " * 20, 1, "c")))))
    for narrow in (False, True):
        names = [name.text for name in elements(timeline_svg(trace, "steps", narrow), "text", kind="name")]
        assert names[:2] == ["main", f"1 {topic}"]
        assert names[2].startswith("2 many words many words")
        assert names[2].endswith("…")
    short = traced(script_of(Program((Text("a"), Chunk("b", 1, "b")))))[0]
    assert Layout.of(short, narrow=False).gutter < Layout.of(trace, narrow=False).gutter <= 320


def test_names_above_the_bars_stand_beside_the_lines_that_pass():
    """A line to a later chunk passes the row of an earlier one."""
    parts = [Chunk(f"t{number}", 1, "word " * 40) for number in range(4)]
    trace, _ = traced(script_of(Program((Text("a" * 40), *parts, Text("b" * 300)))))
    svg = timeline_svg(trace, "steps", narrow=True)
    lines = [float(re.match(r"M([\d.]+)", path.get("d"))[1]) for path in elements(svg, "path", kind="arrow")]
    for number, name in enumerate(elements(svg, "text", kind="name")[1:]):
        left = float(name.get("x"))
        assert not [line for line in lines[number:] if left < line < left + 20]


def test_what_is_drawn_for_a_control_character_has_a_column_and_a_tab_several():
    svg = picture(traced(script_of(Program((Text("a\x1bb\tc\r\n" + "\x07" * 300),))))[0])
    lines = elements(svg, "text", kind="text")
    assert lines[0].text == "a␛b c"
    assert all(float(line.get("textLength")) == pytest.approx(7.83 * len(line.text), abs=0.1) for line in lines)
    right = float(ET.fromstring(svg).get("width")) - 24
    assert all(24 + float(line.get("x")) + float(line.get("textLength")) <= right for line in lines)


def test_names_are_placed_in_little_time_however_many_lines_pass(monkeypatch):
    """Each place was compared with each line, for each name: 6 s for 400 chunks."""
    rounded = []
    monkeypatch.setattr(module, "round", lambda x: rounded.append(x) or round(x), raising=False)
    lines = [float(x) / 3 for x in range(900)]
    assert _beside(lines, 6.0, 372.0, 50.0) == 304.0  # behind the last lines
    assert len(rounded) <= len(lines)


def luminance(colour: str) -> float:
    channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(("palette", "page"), [(LIGHT, LIGHT_PAGE), (DARK, DARK_PAGE)])
def test_each_colour_is_legible_as_small_text(palette, page):
    paper = luminance(page["paper"]) + 0.05
    for colour in (*palette, page["ink"], page["dim"]):
        own = luminance(colour) + 0.05
        assert max(own, paper) / min(own, paper) >= 4.5, colour


def test_colours_follow_the_reader_and_every_thread_has_one():
    css = css_variables()
    assert "prefers-color-scheme:dark" in css
    assert all(colour in css for colour in (*LIGHT, *DARK))
    assert len(LIGHT) == len(DARK) == len(set(LIGHT)) == len(set(DARK))
