"""Histograms: every value is counted once, and the SVG shows the counts, the same on every run."""

import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_jax.view.histograms import Panel, chart, histogram

SVG = "{http://www.w3.org/2000/svg}"
PANEL = Panel("a < b\0", "answers", [0.5, 1.5, 1.6, 99], [0, 1, 2, 3])


@given(st.lists(st.floats(-10, 10)))
def test_a_histogram_counts_every_value_once(values):
    edges = [-2, 0, 1, 1.5, 7]
    expected, _ = np.histogram(np.clip(values, -2, 6.99), edges)
    assert histogram(values, edges) == expected.tolist()


def bars(root: ElementTree.Element, panel: int) -> list[ElementTree.Element]:
    return [group for group in root.iter(f"{SVG}g") if group.get("id", "").startswith(f"panel{panel}.bar")]


def height(bar: ElementTree.Element) -> float:
    """Of a path `M x y L x y L x y L x y z`."""
    ys = [float(number) for number in bar.find(f"{SVG}path").get("d").split()[2::3]]
    return max(ys) - min(ys)


def test_a_chart_shows_the_counts():
    root = ElementTree.fromstring(chart([PANEL, PANEL]))
    for number in range(2):
        panel = bars(root, number)
        assert [bar.find(f"{SVG}title").text for bar in panel] == ["0 to 1: 1", "1 to 2: 2", "2 and more: 1"]
        first, second, last = map(height, panel)
        assert first == last == pytest.approx(second / 2, rel=1e-4)
    texts = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    assert texts.count("a < b␀") == 2
    assert texts.count("4 answers; pale: 2 and more") == 2


def test_a_chart_may_have_nothing_to_count():
    root = ElementTree.fromstring(chart([Panel("none", "answers", [], [0, 1, 2])]))
    assert [bar.find(f"{SVG}title").text for bar in bars(root, 0)] == ["0 to 1: 0", "1 and more: 0"]


@pytest.mark.slow
def test_a_chart_is_the_same_in_every_process_and_follows_the_page():
    script = (
        "from pasta_jax.view.histograms import Panel, chart\n"
        "print(chart([Panel('a < b\\0', 'answers', [0.5, 1.5, 1.6, 99], [0, 1, 2, 3])]), end='')"
    )
    again = subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, capture_output=True, text=True)
    assert again.stdout == chart([PANEL])
    assert "prefers-color-scheme:dark" in again.stdout
    assert "date" not in again.stdout.lower()


@pytest.mark.slow
def test_pictures_do_not_load_matplotlib():
    script = (
        "import sys\n"
        "import pasta_jax.view.picture, pasta_jax.view.page, pasta_jax.view.terminal\n"
        "import pasta_jax.view.histograms, pasta_jax.view.pareto\n"
        "assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
