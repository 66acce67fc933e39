"""The HTML page of a trace: every token once, self-contained, safe whatever a model wrote."""

import dataclasses
import json
import re
from html.parser import HTMLParser

import numpy as np

from pasta_jax.lang.program import Chunk, Program, Text
from pasta_jax.view.page import _tiles, page
from pasta_jax.view.picture import picture, timeline_svg
from pasta_jax.view.text import printable
from pasta_jax.view.trace_file import from_json, to_json
from tests.helpers.traces import (
    HOSTILE,
    TOKENIZER,
    drafted,
    hostile,
    is_silent,
    many_chunks,
    random_traces,
    script_of,
    traced,
)

VOID = {"meta", "input", "br", "img", "link", "wbr"}


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

    def handle_endtag(self, name):
        assert self.open.pop()[0] == name

    def handle_data(self, data):
        name, attributes = self.open[-1] if self.open else ("", {})
        for outer, its in self.open:
            if outer == "i" and "data-n" in its:
                self.tokens[int(its["data-n"])] += data
        if attributes.get("id") == "trace":
            self.data += data
        if name == "h1":
            self.heading += data


def test_a_page_holds_every_token_once_in_reading_order_and_its_trace():
    nothing, plain = [[TOKENIZER.end_of_turn]], script_of(Program((Text("only text " * 20),)))
    for trace, *_ in ((hostile(),), traced(nothing), traced(plain), *random_traces(30)):
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


def test_a_page_needs_no_network_and_runs_no_code_from_a_model():
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
    trace, _ = traced(script_of(many_chunks(4)))
    untimed = page(traced(script_of(many_chunks(4)), round_steps=0)[0], None)
    replayed = dataclasses.replace(trace, replayed=True)
    timed = page(trace, 120)
    assert f"<b>{120 / trace.critical_path:.2f}</b><span>speedup over 120 sequential steps</span>" in timed
    assert timed.count("</b><span>") == 6
    assert 'value="ms"' in timed
    assert 'value="ms"' not in untimed
    assert untimed.count("</b><span>") == 3
    assert "Time was not measured" in untimed
    assert "A replay" not in timed
    assert "A replay" in page(replayed, None)
    assert "a replay of a given answer" in picture(replayed)


def test_emphasis_is_shown_by_elements_around_the_text():
    parts = (Text("Say **no\n- "), Chunk("t", 1, "**bo<b>ld** `x<y`"), Text("\n# Title\nand *more*"))
    trace, _ = traced(script_of(Program(parts)))
    html = re.sub('</?(?:i|wbr)(?: data-n="\\d+")?>', "", page(trace, None))  # one token is one character here
    for element in ("b", "em", "code"):
        html = html.replace(f"</{element}><{element}>", "")
    html = html.replace('</span><span class="md">', "")
    assert "Say **no\n" in html
    assert '<span class="bullet">-</span> ' in html
    assert '<span class="md">**</span><b>bo&lt;b&gt;ld</b><span class="md">**</span> ' in html
    assert '<span class="md">`</span><code>x&lt;y</code><span class="md">`</span>' in html
    assert '<span class="md"># </span><b>Title</b>\n' in html
    assert '<span class="md">*</span><em>more</em><span class="md">*</span>' in html


def test_a_narrow_page_shows_the_join():
    trace, _ = traced(script_of(many_chunks(2, syncs=2)))
    for unit in ("steps", "ms"):
        (joins,) = {
            tuple(re.findall(r'marker-end="url\(#up\)"', svg))
            for svg in (timeline_svg(trace, unit), timeline_svg(trace, unit, narrow=True))
        }
        assert len(joins) == 2
    assert 'viewBox="0 0 380 ' in page(trace, None)
    assert page(trace, None).count('id="up"') == 1  # outside of the timelines, one of which is always hidden


def test_a_page_of_a_large_answer_is_small():
    large, _ = traced(script_of(many_chunks(20, words=5)), rows=6)
    assert len(large.closed) == 21
    assert len(large.token) > 600
    html = page(large, 500)
    Page(html)
    assert len(html) < 400_000


def test_tokens_per_step_are_of_the_steps_beside_them():
    """Chunks that wait take more steps than the critical path, and kept drafts fewer."""
    waiting = traced(script_of(many_chunks(6)), rows=2)[0]
    for trace in (waiting, drafted()):
        assert trace.critical_path != trace.steps
        shown, tiles = picture(trace), _tiles(trace, None)
        rate = f"{trace.text_tokens / trace.steps:.2f}"
        assert f"{trace.text_tokens} tokens of text in {trace.steps} steps, {rate} per step" in shown
        assert tiles["steps"] == str(trace.steps)
        [name] = (name for name in tiles if name.startswith("tokens per step"))
        assert name == f"tokens per step of the critical path of {trace.critical_path} (parallelism)"
    whole = traced(script_of(many_chunks(6)), rows=9)[0]
    assert "tokens per step (parallelism)" in _tiles(whole, None)
