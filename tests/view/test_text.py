"""Text is safe to show, and cut to fit in linear time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_jax.view.text import fit, printable, sans_width


def test_text_cannot_be_shown_in_reverse():
    assert printable("pay \u202e001\u202c \u2066x\u2069") == "pay \ufffd001\ufffd \ufffdx\ufffd"


@given(st.text(max_size=40), st.integers(20, 300))
def test_fitted_text_is_a_beginning_that_fits(text, pixels):
    line = " ".join(text.split())
    fitted = fit(text, 12.0, pixels)
    assert sans_width(fitted, 12.0) <= pixels or fitted == "…"
    assert fitted == line or line.startswith(fitted.removesuffix("…"))


@pytest.mark.parametrize("length", [100_000])
def test_a_long_topic_is_cut_as_quickly_as_it_is_read(length):
    assert len(fit("m" * length, 12.0, 300.0)) < 40  # quadratic before: 8,000 characters took 12 s
