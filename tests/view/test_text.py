"""Text is safe to show, and cut to fit in linear time."""

from hypothesis import given
from hypothesis import strategies as st

from pasta_jax.view import text
from pasta_jax.view.text import cells, fit, printable, sans_width, short


def test_text_cannot_be_shown_in_reverse():
    assert printable("pay \u202e001\u202c \u2066x\u2069") == "pay \ufffd001\ufffd \ufffdx\ufffd"


def test_a_character_that_python_does_not_know_yet_is_shown_and_what_is_no_character_is_not():
    assert printable("\U0001fae8 \U0001fae9 \U0001fbfa") == "\U0001fae8 \U0001fae9 \U0001fbfa"  # of Unicode 15 to 17
    assert printable("\ufdd0\ufdef\ufffe\U0001ffff\ufdcf\ufdf0") == "\ufffd\ufffd\ufffd\ufffd\ufdcf\ufdf0"


def test_tabs_and_line_breaks_of_windows_are_blank():
    assert printable("a\tb\r\nc\rd") == "a\tb\nc␍d"


@given(st.text("abé\u0301\u0e31数 ", max_size=40), st.integers(1, 30))
def test_a_shortened_line_is_a_beginning_that_fits_with_the_accents_of_its_letters(topic, columns):
    line, found = " ".join(topic.split()), short(topic, columns)
    assert sum(map(cells, found)) <= columns
    kept = found.removesuffix("…")
    assert found == line or (line.startswith(kept) and cells(line[len(kept)]) > 0)


@given(st.text(max_size=40), st.integers(20, 300))
def test_fitted_text_is_a_beginning_that_fits(topic, pixels):
    line = " ".join(topic.split())
    fitted = fit(topic, 12.0, pixels)
    assert sans_width(fitted, 12.0) <= pixels or fitted == "…"
    assert fitted == line or line.startswith(fitted.removesuffix("…"))


def test_what_does_not_fit_is_not_measured(monkeypatch):
    measured = []
    width = text._advance
    monkeypatch.setattr(text, "_advance", lambda character: measured.append(1) or width(character))
    assert text.fit("m" * 1000, 12.0, 300.0).endswith("m…")
    assert len(measured) < 3 * 1000  # one by one from the end, it was a million
