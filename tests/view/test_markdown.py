"""Markdown in answers: marks are found, what is no mark stays, and every character keeps its place."""

import random
import time

import pytest

from pasta_jax.view.markdown import Style, plain, runs, styles, token_styles
from tests.helpers.traces import hostile, random_traces

SHOWN = {Style.BOLD: "B", Style.ITALIC: "I", Style.CODE: "C", Style.BULLET: "-", Style.BOLD | Style.ITALIC: "X"}


def drawn(text: str, at_line_start: bool = True) -> str:
    """The style of each character as a letter; `.` is a hidden mark, a blank plain."""
    return "".join("." if Style.MARK in style else SHOWN.get(style, " ") for style in styles(text, at_line_start))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a **b c** d", "  ..BBB..  "),
        ("__b__ *i* _i_", "..B.. .I. .I."),
        ("***x***", "...X..."),
        ("**a *b* c**", "..BB.X.BB.."),
        ("`a **b**` ``x`y``", ".CCCCCCC. ..CCC.."),
        ("# T *i*\n#no", "..BB.X.    "),
        ("- a\n  * b\n+c -", "-     -       "),
        ("```py\n- *x*\n```\n*y*", "......CCCCCC.....I."),
        # None of these is a mark.
        ("2 * 3 * 4, a*b*c, ** x **", ""),
        ("snake_case_name, \\*no\\*", ""),
        ("**open\n\nnext** `open", ""),
        ("*a", ""),
        ("*" * 9, ""),
    ],
)
def test_marks_are_found(text, expected):
    assert drawn(text) == (expected or " " * len(text))


def test_a_dash_within_a_line_is_no_bullet():
    assert drawn("- a") == "-  "
    assert drawn("- a", at_line_start=False) == "   "
    assert drawn("**a** b", at_line_start=False) == "..B..  "
    assert plain("- **a** `b`") == "• a b"


def test_every_character_has_one_style_whatever_the_text():
    rng = random.Random(0)
    for _ in range(300):
        text = "".join(rng.choice("*_`#- \n~ab\\\0") for _ in range(rng.randrange(60)))
        shown = styles(text)
        assert len(shown) == len(text)
        assert "".join(piece for piece, _ in runs(text, shown)) == text


def test_no_text_takes_long():
    began = time.perf_counter()
    for piece in ("**", "*a ", "`", "a `b ", "**a ", "```\n", "_a ", "# *\n"):
        styles(piece * (20_000 // len(piece)))
    assert time.perf_counter() - began < 5


def test_each_token_of_a_trace_has_the_styles_of_its_characters():
    for trace in (hostile(), *(trace for trace, *_ in random_traces(20))):
        shown = token_styles(trace)
        assert sorted(shown) == list(range(len(trace.token)))
        assert all(len(shown[i]) == len(text) for i, text in enumerate(trace.text))
