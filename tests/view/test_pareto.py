"""The plot of quality against speed: ticks and names can be read, and nothing covers anything else."""

import itertools
from random import Random
from xml.etree import ElementTree

import pytest
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from pasta_jax.view import style
from pasta_jax.view.pareto import DOT, HEIGHT, WIDTH, Point, draw, pareto

SVG = "{http://www.w3.org/2000/svg}"


def test_a_name_cannot_break_the_plot_a_panel_may_be_empty_and_every_run_draws_the_same():
    point = Point("<b>&\0 $x^2$", "a", 1.0, 1.0, (0.5, 1.5), (1.0, 1.0))
    panels = [("x", "y", [point]), ("realised", "y", [])]
    svg = pareto(panels)
    texts = ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert {"<b>&␀ $x^2$", "realised: not measured"} <= set(texts)
    assert pareto(panels) == svg


def test_a_name_may_look_like_a_colour():
    assert "#abcdef" in pareto([("a", "b", [Point("#abcdef", "family", 1, 1, (1, 1), (1, 1))])])


@pytest.mark.parametrize("values", [(1.0, 1.0), (1.0, 1.0002), (0.97, 1.04), (0.0, 0.0), (0.0, 1.0), (1.5, 4711.0)])
def test_ticks_are_short_and_differ(values):
    points = [Point(f"{value}", "a", value, value, (value, value), (value, value)) for value in values]
    with style.plotting(WIDTH, HEIGHT) as figure:
        draw(figure, [("x", "y", points)])
        figure.draw_without_rendering()
        [axes] = figure.axes
        names = [text.get_window_extent() for text in axes.texts]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = axis.get_view_interval()
            ticks = [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            labels = [tick.get_text() for tick in ticks]
            assert 3 <= len(labels) == len(set(labels)) <= 7
            assert all(len(label) <= 6 for label in labels)
            assert low <= min(values) <= max(values) <= high
            others = [*names, axis.label.get_window_extent()]
            assert not any(box.overlaps(tick.get_window_extent()) for box in others for tick in ticks)


def crowded() -> list[list[Point]]:
    """Points close together with ranges, twice; and one to eight points anywhere."""
    places = [(1.0, 0.9), (1.7, 0.94), (1.71, 0.935), (1.72, 0.915), (1.95, 0.94), (1.9, 0.92)]
    close = [Point(f"λ={n}, λ={n}", "a", x, y, (x - 0.1, x + 0.1), (y, y)) for n, (x, y) in enumerate(places)]
    random, grid = Random(0), list(itertools.product(range(9), range(9)))
    several = (random.sample(grid, count) for count in range(1, 9))
    anywhere = [[Point(f"λ={n}", "a", x, y, (x, x), (y, y)) for n, (x, y) in enumerate(one)] for one in several]
    return [close, close, *anywhere]


def test_names_stay_in_their_panel_and_cover_neither_dots_nor_each_other():
    panels = [("x", "y", points) for points in crowded()]
    with style.plotting(WIDTH * len(panels), HEIGHT) as figure:
        draw(figure, panels)
        figure.draw_without_rendering()
        for axes, (*_, points) in zip(figure.axes, panels, strict=True):
            places = axes.transData.transform([(point.x, point.y) for point in points])
            dots = [Bbox.from_bounds(x - DOT / 2, y - DOT / 2, DOT, DOT) for x, y in places]
            names = [Text.get_window_extent(text).padded(-0.5) for text in axes.texts]  # without the line to its dot
            assert len(names) == len(points)
            for number, name in enumerate(names):
                assert all(axes.bbox.padded(1).contains(*corner) for corner in name.corners())
                assert not any(name.overlaps(other) for other in [*dots, *names[number + 1 :]])
