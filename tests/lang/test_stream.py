"""The stream parser against an independent regular expression, on 100,000 strings in any split."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_jax.lang.lexer import ANNOTATION
from pasta_jax.lang.program import LangError, Program, Text, check
from pasta_jax.lang.stream import Event, StreamParser
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


def merged(events: list[Event]) -> list[tuple]:
    result = []
    for event in events:
        if event.kind == "text" and result and result[-1][0] == "text":
            result[-1] = ("text", result[-1][1] + event.text, *result[-1][2:])
        else:
            result.append((event.kind, event.text, event.tens, event.offset, event.line, event.column))
    return result


def parsed(*pieces: str) -> list[tuple]:
    parser = StreamParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return merged(events + parser.close())


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.extended)])
def test_random_strings(count):
    rng = random.Random(count)
    accepted = 0
    for _ in range(count):
        text = random_text(rng)
        cut = rng.randrange(len(text) + 1)
        assert parsed(text[:cut], text[cut:]) == expected_events(text), repr(text)
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


@examples(1000)
@given(st.lists(texts, max_size=6))
def test_any_split_gives_the_events_of_the_whole(pieces):
    whole = "".join(pieces)
    assert parsed(*pieces) == parsed(whole) == parsed(*whole) == expected_events(whole)


def test_surrogates_and_empty_pieces():
    assert parsed("", "\ud800<syn", "", "c/>") == [("text", "\ud800", 0, 0, 1, 1), ("sync", "", 0, 1, 1, 2)]


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


@pytest.mark.parametrize("tag", ['<promise topic="a\\"\\x3c\\\\\\n>" tokens=12 />', "<async>", "</async>", "<sync/>"])
def test_a_tag_is_returned_with_its_last_character_only(tag):
    parser = StreamParser()
    assert [event.text for event in parser.feed("x" + tag[0])] == ["x"]
    for character in tag[1:-1]:
        assert parser.feed(character) == []
    (event,) = parser.feed(tag[-1])
    assert event.kind != "text"
    assert (event.offset, event.line, event.column) == (1, 1, 2)
    assert parser.close() == []


@pytest.mark.parametrize(
    ("held", "last"),
    [
        *(("<", "b"), ("<", " "), ("<a", "n"), ("<sync", " "), ("<sync", ">"), ("</async", " "), ("<\\", "n")),
        *(('<promise topic="a', "\n"), ('<promise topic="a\\', "q"), ('<promise topic="a\\x3', "d")),
        *(('<promise topic="a"', ">"), ('<promise topic="a" tokens=', " "), ('<promise topic="a" tokens=1', "/")),
    ],
)
def test_what_can_no_longer_be_a_tag_is_returned_at_once(held, last):
    parser = StreamParser()
    assert parser.feed(held) == []
    assert [event.text for event in parser.feed(last)] == [held + last]
    assert parser.close() == []


def test_a_new_candidate_ends_the_old_one():
    parser = StreamParser()
    assert parser.feed("<asyn") == []
    assert [event.text for event in parser.feed("<")] == ["<asyn"]
    assert [event.kind for event in parser.feed("sync/>")] == ["sync"]


def test_an_unfinished_tag_is_text():
    parser = StreamParser()
    assert parser.feed("<promise top") == []
    assert parser.close() == [Event("text", "<promise top", 0, 0, 1, 1)]


def test_an_annotators_tag():
    parser = StreamParser(ANNOTATION)
    (event,) = parser.feed("<async topic='it\\'s'>")
    assert (event.kind, event.text) == ("annotated", "it's")
    assert [event.text for event in parser.feed('<\\async topic="it\'s">')] == ['<async topic="it\'s">']
