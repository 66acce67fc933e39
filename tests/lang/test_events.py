"""The events of a text against an independent regular expression, on 100,000 strings."""

import dataclasses
import random
import re

import pytest
from hypothesis import given

from pasta_jax.lang.events import events
from pasta_jax.lang.lexer import ANNOTATION
from pasta_jax.lang.program import LangError, Program, Text, check
from pasta_jax.lang.tags import escape
from tests.helpers.examples import examples
from tests.helpers.programs import random_text, texts, unescape

TAG = re.compile(
    r'<(\\*)(?:(promise) topic="((?:[^"\\\n<]|\\["\\n]|\\x3c)*)" tokens=([0-9]+) /|(async)|(/async)|(sync)/)>'
)


def expected_events(text: str) -> list[tuple]:
    """(kind, text, tens, offset, line, column), by searching the whole text."""
    events, run, start, done = [], "", 0, 0

    def where(offset):
        before = text[:offset].split("\n")
        return offset, len(before), len(before[-1]) + 1

    for match in TAG.finditer(text):
        run += text[done : match.start()]
        done = match.end()
        if match[1]:
            run += match[0].replace("\\", "", 1)
            continue
        if run:
            events.append(("text", run, 0, *where(start)))
        run, start = "", done
        kind = match[2] or match[5] or match[7] or "end_async"
        topic = (match[3] or "").replace("\\x3c", "<")
        topic = re.sub(r"\\(.)", lambda escape: "\n" if escape[1] == "n" else escape[1], topic)
        tens = int(match[4]) if match[4] and re.fullmatch("[1-9]|[1-5][0-9]|6[0-4]", match[4]) else 0
        events.append((kind, topic, tens, *where(match.start())))
    if run + text[done:]:
        events.append(("text", run + text[done:], 0, *where(start)))
    return events


def parsed(text: str) -> list[tuple]:
    return [dataclasses.astuple(event) for event in events(text)]


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.extended)])
def test_random_strings(count):
    rng = random.Random(count)
    accepted = 0
    for _ in range(count):
        text = random_text(rng)
        assert parsed(text) == expected_events(text), repr(text)
        assert unescape(escape(text)) == text
        try:
            program = Program.parse(text)
        except LangError:
            pass
        else:
            accepted += 1
            assert program.render() == text, repr(text)
    assert 0.1 < accepted / count < 0.9  # both outcomes occur


@examples(1000)
@given(texts)
def test_escaped_text_is_text(text):
    assert Program.parse(escape(text)) == Program((Text(text),))


@examples(500)
@given(texts)
def test_checking_never_crashes(text):
    assert all("\n" not in str(error) for error in check(text))


def test_a_surrogate_is_text():
    assert parsed("\ud800<sync/>") == [("text", "\ud800", 0, 0, 1, 1), ("sync", "", 0, 1, 1, 2)]


def test_places_count_lines_and_columns():
    events = parsed('a\n\nbc<promise topic="x\\ny" tokens=12 /><async>d\n</async>\n<sync/>')
    assert events == [
        ("text", "a\n\nbc", 0, 0, 1, 1),
        ("promise", "x\ny", 12, 5, 3, 3),
        ("async", "", 0, 39, 3, 37),
        ("text", "d\n", 0, 46, 3, 44),
        ("end_async", "", 0, 48, 4, 1),
        ("text", "\n", 0, 56, 4, 9),
        ("sync", "", 0, 57, 5, 1),
    ]


@pytest.mark.parametrize(
    "text",
    [
        *("<b", "< ", "<an", "<sync ", "<sync>", "</async ", "<\\n", "<promise top", '<promise topic="a\n'),
        *('<promise topic="a\\q', '<promise topic="a\\x3d', '<promise topic="a">'),
        *('<promise topic="a" tokens= ', '<promise topic="a" tokens=1/'),
    ],
)
def test_what_is_no_whole_tag_is_text(text):
    assert parsed("a" + text) == [("text", "a" + text, 0, 0, 1, 1)]


def test_a_new_candidate_ends_the_old_one():
    assert parsed("<asyn<sync/>") == [("text", "<asyn", 0, 0, 1, 1), ("sync", "", 0, 5, 1, 6)]


def test_an_annotators_tag():
    tag, text = events("<async topic='it\\'s'><\\async topic=\"it's\">", ANNOTATION)
    assert (tag.kind, tag.text) == ("annotated", "it's")
    assert (text.kind, text.text) == ("text", '<async topic="it\'s">')
