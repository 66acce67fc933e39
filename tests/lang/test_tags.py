"""Tag ids of ints and arrays; escaping is a bijection and leaves ordinary text alone."""

import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from pasta_jax.lang.lexer import ANNOTATION, SURFACE
from pasta_jax.lang.tags import (
    MAX_TENS,
    NUM_TAGS,
    TagIds,
    escape,
    escape_topic,
    promise_tag,
    tens_for,
    unescape_topic,
)
from tests.helpers.examples import examples
from tests.helpers.programs import texts, unescape

TAGS = TagIds(1000)


def test_the_language_needs_no_jax():
    modules = ["clock", "error", "events", "lexer", "linear", "program", "structure", "tags"]
    code = f"import sys; from pasta_jax.lang import {', '.join(modules)}; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_ids_are_consecutive_and_have_names():
    ids = [TAGS.promise, *(TAGS.close(n) for n in range(1, MAX_TENS + 1)), TAGS.async_, TAGS.end_async, TAGS.sync]
    assert ids == list(range(1000, 1068))
    assert (TAGS.end, NUM_TAGS, MAX_TENS) == (1068, 68, 64)
    names = ["[PROMISE]", "[/PROMISE:7]", "[ASYNC]", "[/ASYNC]", "[SYNC]", "5"]
    assert [TAGS.name(id) for id in (1000, 1007, 1065, 1066, 1067, 5)] == names
    assert [tens_for(length) for length in (1, 10, 11, 640, 641)] == [1, 1, 2, 64, 65]  # rounded up


@pytest.mark.parametrize("array", [np.array, jnp.array, list])
def test_predicates_accept_ints_and_arrays(array):
    def each(predicate, ids):
        return list(map(predicate, ids)) if array is list else predicate(array(ids))

    ids = [0, 999, 1000, 1001, 1032, 1064, 1065, 1066, 1067, 1068]
    np.testing.assert_array_equal(each(TAGS.is_tag, ids), [False] * 2 + [True] * 7 + [False])
    np.testing.assert_array_equal(each(TAGS.is_close, ids), [False] * 3 + [True] * 3 + [False] * 4)
    np.testing.assert_array_equal(each(TAGS.tens, [1001, 1064]), [1, 64])


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("<sync/>", r"<\sync/>"),
        (r"<\sync/>", r"<\\sync/>"),
        (r"<\\/async>", r"<\\\/async>"),
        ("<<async>>", r"<<\async>>"),
        ('<promise topic="a" tokens=2 />', r'<\promise topic="a" tokens=2 />'),
        ('<promise topic="a" tokens=99 />', r'<\promise topic="a" tokens=99 />'),
        (r'<promise topic="say \"hi\"" tokens=2 />', r'<\promise topic="say \"hi\"" tokens=2 />'),
        (r'<promise topic="<\sync/>" tokens=2 />', r'<promise topic="<\\sync/>" tokens=2 />'),
    ],
)
def test_look_alikes_get_a_backslash(text, escaped):
    assert escape(text) == escaped
    assert unescape(escaped) == text


@pytest.mark.parametrize(
    "text",
    [
        *("<p>HTML</p>", "if a<b and b>c:", "<async foo>", "<sync>", "<sync />"),
        *("</sync>", "<ASYNC>", "async>", "< async>"),
        *(r"\<x", r"<\b>", "<promise>", "<promise topic='a' tokens=2 />", '<promise topic="a" tokens=2/>'),
        *('<promise topic="a" tokens= />', '<promise topic="a" tokens=-1 />', '<promise topic="a\n" tokens=1 />'),
        *('<promise topic="a\\q" tokens=1 />', '<promise topic="a<b" tokens=1 />', '<promise topic="a" tokens=٣ />'),
        *("<async topic='a'>", '<promise topic="a'),
    ],
)
def test_other_text_is_unchanged(text):
    assert escape(text) == unescape(text) == text


def test_the_annotators_tag_is_escaped_for_annotation():
    assert escape("<async topic='a'> <sync/>", ANNOTATION) == r"<\async topic='a'> <\sync/>"
    assert unescape(r"<\async topic='a'> <\sync/>", ANNOTATION) == "<async topic='a'> <sync/>"


@pytest.mark.parametrize("forms", [SURFACE, ANNOTATION])
def test_escape_is_a_bijection(forms):
    @examples(1000)
    @given(texts)
    def check(text):
        assert unescape(escape(text, forms), forms) == text
        escaped = escape(text, forms)
        assert escape(unescape(escaped, forms), forms) == escaped

    check()


@examples(1000)
@given(texts)
def test_any_topic_is_restored(topic):
    escaped = escape_topic(topic)
    assert unescape_topic(escaped) == topic
    assert "<" not in escaped
    assert "\n" not in escaped
    assert unescape(escape(promise_tag(topic, 5))) == promise_tag(topic, 5) != escape(promise_tag(topic, 5))
