"""Plots: every value is counted once, and the SVG shows what was counted, the same on every run."""

import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_jax.view.plots import MOST_TITLES, Bar, Dots, Histogram, count, histograms, scatter, stacked

SVG = "{http://www.w3.org/2000/svg}"
HISTOGRAM = Histogram("a < b\0", "answers", [0.5, 1.5, 1.6, 99], [0, 1, 2, 3])


@given(st.lists(st.floats(-10, 10)))
def test_every_value_is_counted_once(values):
    edges = [-2, 0, 1, 1.5, 7]
    expected, _ = np.histogram(np.clip(values, -2, 6.99), edges)
    assert count(values, edges) == expected.tolist()


def drawn(svg: str, name: str) -> list[ElementTree.Element]:
    """The artists whose gid begins with a name."""
    return [group for group in ElementTree.fromstring(svg).iter(f"{SVG}g") if group.get("id", "").startswith(name)]


def titles(svg: str, name: str) -> list[str]:
    return [group.find(f"{SVG}title").text for group in drawn(svg, name)]


def extent(bar: ElementTree.Element, axis: int) -> float:
    """Of a path `M x y L x y L x y L x y z`: its width, or its height."""
    values = [float(number) for number in bar.find(f"{SVG}path").get("d").split()[1 + axis :: 3]]
    return max(values) - min(values)


def test_histograms_show_the_counts():
    svg = histograms([HISTOGRAM, HISTOGRAM, Histogram("none", "answers", [], [0, 1, 2])])
    for number in range(2):
        assert titles(svg, f"panel{number}.bar") == ["0 to 1: 1", "1 to 2: 2", "2 and more: 1"]
        first, second, last = (extent(bar, 1) for bar in drawn(svg, f"panel{number}.bar"))
        assert first == last == pytest.approx(second / 2, rel=1e-4)
    assert titles(svg, "panel2.bar") == ["0 to 1: 0", "1 and more: 0"]
    texts = ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert texts.count("a < b␀") == texts.count("4 answers; pale: 2 and more") == 2


def test_dots_have_names_until_there_are_too_many():
    places = [*range(MOST_TITLES + 5)]
    svg = scatter([Dots("a", "x", "y", places, places, True, [f"<{n}>" for n in places])])
    assert titles(svg, "dots0.") == [f"<{n}>" for n in places[:MOST_TITLES]]
    assert svg.count("<use ") >= len(places)


def test_stacked_bars_have_the_widths_of_their_parts():
    svg = stacked("a", [Bar("one", {"x": 1.0, "y": 2.0, "absent": 0.0}), Bar("two", {"y": 4.0})])
    assert titles(svg, "bar") == ["one: x 1.0 ms", "one: y 2.0 ms", "two: y 4.0 ms"]
    first, second, third = (extent(bar, 0) for bar in drawn(svg, "bar"))
    assert (second, third) == pytest.approx((2 * first, 4 * first), rel=1e-4)
    assert "absent" not in svg


@pytest.mark.slow
def test_a_plot_is_the_same_in_every_process_follows_the_page_and_alone_loads_matplotlib():
    script = (
        "import sys\n"
        "import pasta_jax.view.picture, pasta_jax.view.page, pasta_jax.view.terminal\n"
        "from pasta_jax.view import pareto, plots\n"
        "assert 'matplotlib' not in sys.modules\n"
        f"print(plots.histograms([plots.{HISTOGRAM!r}]), end='')"
    )
    again = subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, capture_output=True, text=True)
    assert again.stdout == histograms([HISTOGRAM])
    assert "prefers-color-scheme:dark" in again.stdout
    assert "date" not in again.stdout.lower()
