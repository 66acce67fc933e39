"""The HTML page of a trace: every token once, self-contained, safe whatever a model wrote."""

import json
import re
from html.parser import HTMLParser

import numpy as np

from pasta_jax.decode.trace_file import from_json, to_json
from pasta_jax.lang.program import Program, Text
from pasta_jax.view.page import page
from pasta_jax.view.picture import picture
from pasta_jax.view.text import printable
from tests.traces import HOSTILE, TOKENIZER, hostile, is_silent, many_chunks, random_traces, script_of, traced

VOID = {"meta", "input", "br", "img", "link"}


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
    timed, untimed = page(trace, 120), page(traced(script_of(many_chunks(4)), round_steps=0)[0], None)
    assert f"<b>{120 / trace.critical_path:.2f}</b><span>speedup over 120 tokens</span>" in timed
    assert 'value="ms"' in timed
    assert 'value="ms"' not in untimed
    assert "speedup" not in untimed
    assert "Time was not measured" in untimed
    assert "A replay" not in timed
    trace = traced(script_of(many_chunks(4)))[0]
    object.__setattr__(trace, "replayed", True)
    assert "A replay" in page(trace, None)
    assert "a replay of a given answer" in picture(trace)


def test_a_page_can_show_any_answer():
    nothing, _ = traced([[TOKENIZER.end_of_turn]])
    plain, _ = traced(script_of(Program((Text("only text " * 20),))))
    assert Page(page(nothing, None)).tokens == {}
    assert len(Page(page(plain, None)).tokens) == 200
    large, _ = traced(script_of(many_chunks(20, words=5)), rows=6)
    assert len(large.closed) == 21
    assert len(large.token) > 600
    html = page(large, 500)
    Page(html)
    assert len(html) < 400_000
