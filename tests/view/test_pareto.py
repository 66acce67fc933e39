"""The plot and the table of a sweep: names that can be read, every point inside its panel, seeds as one row."""

import dataclasses
import itertools
import math
from random import Random
from xml.etree import ElementTree

import pytest
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from pasta_jax.preference.report import Report, Row
from pasta_jax.preference.sweep import Run, Spread, markdown, plot, rows_of
from pasta_jax.view import style
from pasta_jax.view.pareto import DOT, HEIGHT, WIDTH, Point, draw, pareto

SVG = "{http://www.w3.org/2000/svg}"


def row(kind: str, temperature: float, speedup: float, exact: float) -> Row:
    figures = {"win_rate": 0.5, "exact": exact, "speedup": speedup, "speedup_arithmetic": speedup, "parallelism": 1.0}
    figures |= {"chunks": 1.0, "cut_off": 0, "realised": None}
    return Row(**figures, kind=kind, round=int(kind == "round"), temperature=temperature, fingerprint="")


def runs(rounds: int = 1) -> list[Run]:
    """Two weights, each with two seeds."""
    runs = []
    for weight, speedup in ((1.0, 2.0), (math.inf, 1.5)):
        for seed in (0, 1):
            rows = [row("baseline", 0.0, 1.0, 0.9), row("sft", 1.0, 1.6, 0.8), row("sft", 0.0, 1.7, 0.85)]
            rows += [row("round", 1.0, speedup + 0.1 * seed, 0.9), row("round", 0.0, 1.9, 0.91)]
            rows += [dataclasses.replace(one, round=number) for number in range(2, rounds + 1) for one in rows[-2:]]
            values = {"sample.seed+train.seed": seed, "score.quality_weight": weight}
            runs.append(Run(values, Report(weight, "speedup", "toy", None, None, None, rows)))
    return runs


def test_runs_that_differ_in_seeds_alone_are_one_row_with_their_range():
    rows = {(one.model, one.temperature): one for one in rows_of(runs())}
    one = rows["quality_weight=1.0", 1.0]
    assert (one.kind, one.round, one.values, one.runs) == ("round", 1, {"score.quality_weight": 1.0}, 2)
    assert one.speedup == Spread(2.05, 2.0, 2.1)
    assert one.realised is None
    assert rows["Pasta-SFT", 0.0].speedup == Spread(1.7, 1.7, 1.7)
    assert rows["Pasta-SFT", 0.0].runs == 4
    assert "2.050 (2.000 to 2.100)" in markdown(rows_of(runs()))


def test_rows_are_grouped_by_temperature_in_the_order_of_the_report():
    assert [(one.model, one.temperature) for one in rows_of(runs())] == [
        ("Baseline-SFT", 0.0),
        ("Pasta-SFT", 0.0),
        ("quality_weight=1.0", 0.0),
        ("quality_weight=inf", 0.0),
        ("Pasta-SFT", 1.0),
        ("quality_weight=1.0", 1.0),
        ("quality_weight=inf", 1.0),
    ]


def test_rows_name_their_round_where_there_are_several():
    labels = [one.model for one in rows_of(runs(rounds=2)) if one.kind == "round" and one.temperature == 1.0]
    weights = ("quality_weight=1.0", "quality_weight=inf")
    assert labels == [f"{weight} round {number}" for weight in weights for number in (1, 2)]
    assert "λ=1 round 2" in plot(rows_of(runs(rounds=2)))


def dots(root: ElementTree.Element) -> list[ElementTree.Element]:
    return [group for group in root.iter(f"{SVG}g") if ".dot" in group.get("id", "")]


def test_the_plot_is_xml_with_every_model_inside():
    text = plot(rows_of(runs()))
    root = ElementTree.fromstring(text)
    assert (root.get("width"), root.get("height")) == (f"{WIDTH}", f"{HEIGHT}")
    for name in ("Baseline-SFT", "Pasta-SFT", "λ=1, λ=∞"):  # the last two lie at one place
        assert text.count(f">{name}</text>") == 1
    named = [dot.find(f"{SVG}title").text.split(":")[0] for dot in dots(root)]
    assert named == ["Baseline-SFT", "Pasta-SFT", "λ=1", "λ=∞"]
    for dot in dots(root):
        (place,) = dot.iter(f"{SVG}use")
        assert 0 < float(place.get("x")) < WIDTH
        assert 0 < float(place.get("y")) < HEIGHT


def test_a_name_cannot_break_the_plot_and_a_panel_may_be_empty():
    point = Point("<b>&\0 $x^2$", "a", 1.0, 1.0, (1.0, 1.0), (1.0, 1.0))
    texts = [
        "".join(text.itertext())
        for text in ElementTree.fromstring(pareto([("x", "y", [point]), ("realised", "y", [])])).iter(f"{SVG}text")
    ]
    assert "<b>&␀ $x^2$" in texts
    assert "realised: not measured" in texts


def test_a_plot_is_the_same_on_every_run():
    panels = [("x", "y", [Point("a", "a", 1.0, 2.0, (0.5, 1.5), (2.0, 2.0))])]
    assert pareto(panels) == pareto(panels)


@pytest.mark.parametrize("values", [(1.0, 1.0), (1.0, 1.0002), (0.97, 1.04), (0.0, 0.0), (0.0, 1.0), (1.5, 4711.0)])
def test_ticks_are_short_and_differ(values):
    points = [Point(f"{value}", "a", value, value, (value, value), (value, value)) for value in values]
    with style.plotting(WIDTH, HEIGHT) as figure:
        draw(figure, [("x", "y", points)])
        figure.draw_without_rendering()
        names = [text.get_window_extent() for text in figure.axes[0].texts]
        for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):
            low, high = axis.get_view_interval()
            labels = [tick.label1.get_text() for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            assert 3 <= len(labels) == len(set(labels)) <= 7
            assert all(len(label) <= 6 for label in labels)
            assert low <= min(values) <= max(values) <= high
            shown = [
                tick.label1.get_window_extent() for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high
            ]
            assert not any(box.overlaps(tick) for box in (*names, axis.label.get_window_extent()) for tick in shown)


def overlapping_names(panels: list) -> list[str]:
    """Names that cover another name or a dot, and names beyond their panel. The lines to their dots may cross."""
    with style.plotting(WIDTH * len(panels), HEIGHT) as figure:
        draw(figure, panels)
        figure.draw_without_rendering()
        bad = []
        for axes, (_, _, points) in zip(figure.axes, panels, strict=True):
            places = dict.fromkeys((point.x, point.y) for point in points)
            boxes = {text.get_text(): Text.get_window_extent(text).padded(-0.5) for text in axes.texts}
            assert len(boxes) == len(places)
            for name, box in boxes.items():
                bad += [name] * (not all(axes.bbox.padded(1).contains(*corner) for corner in box.corners()))
            for place in places:
                x, y = axes.transData.transform(place)
                boxes[f"dot at {place}"] = Bbox.from_bounds(x - DOT / 2, y - DOT / 2, DOT, DOT)
            for (name, box), (other, beside) in itertools.combinations(boxes.items(), 2):
                if box.overlaps(beside) and not (name.startswith("dot") and other.startswith("dot")):
                    bad.append(f"{name} over {other}")
        return bad


def test_names_cover_neither_dots_nor_each_other():
    places = [(1.0, 0.9), (1.7, 0.94), (1.71, 0.935), (1.72, 0.915), (1.95, 0.94), (1.9, 0.92)]
    points = [Point(f"λ={n}, λ={n}", "a", x, y, (x - 0.1, x + 0.1), (y, y)) for n, (x, y) in enumerate(places)]
    assert overlapping_names([("x", "y", points), ("x", "y", points)]) == []


def test_names_of_a_few_points_are_always_free():
    random = Random(0)
    panels = []
    for count in range(1, 9):
        places = random.sample(list(itertools.product(range(9), range(9))), count)
        points = [Point(f"λ={n}", "a", x, y, (x, x), (y, y)) for n, (x, y) in enumerate(places)]
        panels.append(("x", "y", points))
    assert overlapping_names(panels) == []
