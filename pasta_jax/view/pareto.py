"""Quality against speed as SVG: a dot per model, and a line along the quality weight from speed to quality."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pasta_jax.view import style
from pasta_jax.view.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

WIDTH, HEIGHT = 430, 330  # of a panel
DOT = 8  # diameter
DISTANCES = (8, 18, 30, 44, 60)  # from the middle of a dot to its name, nearest first
DIRECTIONS = ((1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1))  # best first


@dataclasses.dataclass(frozen=True)
class Point:
    """A model, or a mean over seeds with the range of its runs."""

    name: str
    family: str  # points of one family share a colour and, in the order given, a line
    x: float
    y: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]


def pareto(panels: Sequence[tuple[str, str, Sequence[Point]]]) -> str:
    """One plot for each (name of x, name of y, points), side by side."""
    with style.plotting(WIDTH * len(panels), HEIGHT) as figure:
        return style.plot_svg(figure, draw(figure, panels))


def draw(figure: "Figure", panels: Sequence[tuple[str, str, Sequence[Point]]]) -> dict[str, str]:
    """Draw the panels and return the tooltips of their dots."""
    families = dict.fromkeys(point.family for _, _, points in panels for point in points)
    colours = {family: style.LIGHT[number % len(style.LIGHT)] for number, family in enumerate(families)}
    titles: dict[str, str] = {}
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for number, (axes, (across, up, points)) in enumerate(zip(all_axes, panels, strict=True)):
        if points:
            axes.set_xlabel(printable(across))
            axes.set_ylabel(printable(up))
            titles |= _draw_points(axes, points, colours, f"panel{number}")
        else:
            axes.set_axis_off()
            axes.text(0.5, 0.5, printable(f"{across}: not measured"), ha="center", color=style.LIGHT_PAGE["dim"])
    figure.draw_without_rendering()  # settles the scales, by which names are placed
    figure.set_layout_engine("none")
    for axes, (_, _, points) in zip(all_axes, panels, strict=True):
        _draw_names(axes, points, colours)
    return titles


def _draw_points(axes: "Axes", points: Sequence[Point], colours: dict[str, str], gid: str) -> dict[str, str]:
    from matplotlib.ticker import MaxNLocator, ScalarFormatter

    titles = {}
    for family, colour in colours.items():
        members = [point for point in points if point.family == family]
        axes.plot([point.x for point in members], [point.y for point in members], color=colour, linewidth=1.5)
    for number, point in enumerate(points):
        colour = colours[point.family]
        axes.hlines(point.y, *point.x_range, colour, alpha=0.5, linewidth=1)
        axes.vlines(point.x, *point.y_range, colour, alpha=0.5, linewidth=1)
        axes.plot([point.x], [point.y], "o", color=colour, markersize=DOT, gid=f"{gid}.dot{number}")
        titles[f"{gid}.dot{number}"] = f"{point.name}: {point.x:.3f}, {point.y:.3f}"
    axes.set_xlim(_limits([value for point in points for value in point.x_range]))
    axes.set_ylim(_limits([value for point in points for value in point.y_range]))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(6, steps=(1, 2, 2.5, 5, 10)))
        axis.set_major_formatter(ScalarFormatter(useOffset=False))
    return titles


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """The range of an axis, never so small that ticks differ in the fourth digit only."""
    low, high = min(values), max(values)
    margin = max(0.08 * (high - low), 0.01 * max(abs(low), abs(high), 1))
    return low - margin, high + margin


def _draw_names(axes: "Axes", points: Sequence[Point], colours: dict[str, str]) -> None:
    """Write each name where it covers least, tied to its dot by a line unless beside it. Equal points share one."""
    from matplotlib.transforms import Bbox

    members: dict[tuple[float, float], list[Point]] = {}
    for point in points:
        members.setdefault((point.x, point.y), []).append(point)
    centres = [axes.transData.transform(place) for place in members]
    ink = [Bbox.from_bounds(x - 1, y - 1, 2, 2) for x, y in _ink(axes, points)]
    boxes = [Bbox.from_bounds(x - DOT / 2, y - DOT / 2, DOT, DOT) for x, y in centres]

    def cost(box: "Bbox") -> int:
        (left, bottom), (right, top) = axes.bbox.get_points()
        outside = box.x0 < left or box.x1 > right or box.y0 < bottom or box.y1 > top
        return 100 * (box.count_overlaps(boxes) + outside) + box.count_overlaps(ink)

    for (place, named), centre in zip(members.items(), centres, strict=True):
        font = {"color": colours[named[0].family], "weight": "bold"}
        name = printable(", ".join(point.name for point in named))
        sample = axes.text(0, 0, name, **font)
        width, height = sample.get_window_extent().size
        sample.remove()

        distance, box = min(_places(centre, width, height), key=lambda place: (cost(place[1]), place[0]))
        boxes.append(box)
        line = {"arrowstyle": "-", "color": font["color"], "linewidth": 0.8, "shrinkA": 0, "shrinkB": DOT / 2}
        axes.annotate(
            name,
            place,
            (box.x0 - centre[0], box.y0 - centre[1]),
            textcoords="offset points",
            va="bottom",
            arrowprops=line if distance > DISTANCES[0] else None,
            **font,
        )


def _places(centre: np.ndarray, width: float, height: float) -> "Iterator[tuple[float, Bbox]]":
    """(distance, box) of every place to try for a name."""
    from matplotlib.transforms import Bbox

    for distance in DISTANCES:
        for across, up in DIRECTIONS:
            reach = distance / max(abs(across) + abs(up), 1) ** 0.5
            x = centre[0] + across * reach + width * (across - 1) / 2
            y = centre[1] + up * reach + height * (up - 1) / 2
            yield distance, Bbox.from_bounds(x, y, width, height)


def _ink(axes: "Axes", points: Sequence[Point]) -> "Iterator[np.ndarray]":
    """Pixels along the lines and ranges."""
    ends = [((left, point.y), (right, point.y)) for point in points for left, right in [point.x_range]]
    ends += [((point.x, low), (point.x, high)) for point in points for low, high in [point.y_range]]
    for family in dict.fromkeys(point.family for point in points):
        ends += itertools.pairwise((point.x, point.y) for point in points if point.family == family)
    for start, end in ends:
        start, end = axes.transData.transform([start, end])
        count = int(np.hypot(*(end - start)) // 3) + 1
        yield from (start + (end - start) * n / count for n in range(count + 1))
