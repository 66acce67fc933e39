"""The plot and the table of a sweep: whole XML, every point inside its panel, seeds as one row with their range."""

import itertools
import re
import xml.etree.ElementTree as ElementTree

import pytest

from launch.sweep import markdown, plot, rows_of
from pasta_jax.view.pareto import HEIGHT, PANEL, Point, pareto, ticks


@pytest.mark.parametrize(("low", "high"), [(0.97, 1.04), (1.0, 2.45), (0.0, 1.0), (1.5, 1.5), (3.0, 4711.0)])
def test_ticks_are_round_and_cover_the_range(low, high):
    found = ticks(low, high)
    assert 2 <= len(found) <= 9
    assert found[0] <= low + 1e-9
    assert found[-1] >= high - 1e-9


def figures(speedup: float, exact: float) -> dict:
    return {"win_rate": 0.5, "exact": exact, "speedup": speedup, "realised": None, "parallelism": 1.0}


def found() -> list[dict]:
    """Two weights, each with two seeds."""
    runs = []
    for weight, speedup in (("1.0", 2.0), ("inf", 1.5)):
        for seed in (0, 1):
            models = [
                {"name": "Baseline-SFT", "temperature 0": figures(1.0, 0.9)},
                {"name": "Pasta-SFT", "temperature 1": figures(1.6, 0.8), "temperature 0": figures(1.7, 0.85)},
                {
                    "name": "round 1",
                    "temperature 1": figures(speedup + 0.1 * seed, 0.9),
                    "temperature 0": figures(1.9, 0.91),
                },
            ]
            runs.append({"values": {"sample.seed+train.seed": str(seed), "score.quality_weight": weight}})
            runs[-1]["report"] = {"models": models}
    return runs


def test_runs_that_differ_in_seeds_alone_are_one_row_with_their_range():
    rows = {(row["model"], row["answers"]): row for row in rows_of(found())}
    one = rows["quality_weight=1.0", "temperature 1"]
    assert one["runs"] == 2
    assert one["speedup"] == [2.05, 2.0, 2.1]
    assert rows["Pasta-SFT", "temperature 0"]["speedup"] == [1.7, 1.7, 1.7]
    assert "2.050 (2.000 to 2.100)" in markdown(rows_of(found()))


def test_the_plot_is_xml_with_every_model_inside():
    text = plot(rows_of(found()))
    root = ElementTree.fromstring(text)
    for name in ("Baseline-SFT", "Pasta-SFT", "λ=1, λ=∞"):  # the last two lie at one place
        assert text.count(f">{name}</text>") == 1
    circles = root.findall(".//{http://www.w3.org/2000/svg}circle")
    assert len(circles) == 4
    assert all(0 < float(c.get("cx")) < PANEL and 0 < float(c.get("cy")) < HEIGHT for c in circles)


def test_a_name_cannot_break_the_plot_and_a_panel_may_be_empty():
    text = pareto([("x", "y", [Point("<b>&\0", "a", 1.0, 1.0, (1.0, 1.0), (1.0, 1.0))]), ("realised", "y", [])])
    ElementTree.fromstring(text)
    assert re.search("realised: not measured", text)


def test_names_cover_neither_dots_nor_each_other():
    places = [(1.0, 0.9), (1.7, 0.94), (1.71, 0.935), (1.72, 0.915), (1.95, 0.94), (1.9, 0.92)]
    points = [Point(f"λ={n}, λ={n}", "a", x, y, (x, x), (y, y)) for n, (x, y) in enumerate(places)]
    root = ElementTree.fromstring(pareto([("x", "y", points)]))
    boxes = [
        (float(c.get("cx")) - 4, float(c.get("cy")) - 4, 8, 8) for c in root.iter("{http://www.w3.org/2000/svg}circle")
    ]
    names = [text for text in root.iter("{http://www.w3.org/2000/svg}text") if "name" in text.get("class", "")]
    assert len(names) == len(boxes) == 6
    for name in names:
        width = 7 * len(name.text)
        left = float(name.get("x")) - width * ("end" in name.get("class"))
        boxes.append((left, float(name.get("y")) - 9, width, 11))
    for (x, y, w, h), (x1, y1, w1, h1) in itertools.combinations(boxes, 2):
        assert x + w <= x1 or x1 + w1 <= x or y + h <= y1 or y1 + h1 <= y
