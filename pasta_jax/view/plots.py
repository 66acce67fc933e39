"""Plots of figures as SVG, drawn by matplotlib: histograms and dots side by side, stacked bars below each other."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from pasta_jax.view import style
from pasta_jax.view.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Panel = TypeVar("Panel")

WIDTH = 350  # of a panel, in pixels
HISTOGRAM_HEIGHT, DOTS_HEIGHT = 230, 260
DOT = 4  # diameter
MOST_TITLES = 400  # dots of a panel with a tooltip
BARS_WIDTH, BAR, BARS_MARGIN = 820, 34, 110  # a bar's height with its gap; title, axis and legend


@dataclasses.dataclass(frozen=True)
class Histogram:
    """One panel. Values beyond the edges count in the first and the last bar."""

    title: str
    unit: str  # what is counted
    values: Sequence[float]
    edges: Sequence[float]


@dataclasses.dataclass(frozen=True)
class Dots:
    """One panel: a value against another."""

    title: str
    across: str  # name of x
    up: str  # name of y
    x: Sequence[float]
    y: Sequence[float]
    line: bool  # draw where both are equal
    names: Sequence[str]  # tooltips


@dataclasses.dataclass(frozen=True)
class Bar:
    """One stacked bar: what a total is made of. Parts that are not positive are left out."""

    name: str
    parts: Mapping[str, float]


def histograms(panels: Sequence[Histogram]) -> str:
    """Draw histograms side by side."""
    return _side_by_side(panels, HISTOGRAM_HEIGHT, _draw_histogram)


def scatter(panels: Sequence[Dots]) -> str:
    """Draw dots side by side."""
    return _side_by_side(panels, DOTS_HEIGHT, _draw_dots)


def stacked(title: str, bars: Sequence[Bar]) -> str:
    """Draw bars of ms below each other; parts of one name have one colour, in the order of their first appearance."""
    names = list(dict.fromkeys(name for bar in bars for name, value in bar.parts.items() if value > 0))
    titles: dict[str, str] = {}
    with style.plotting(BARS_WIDTH, BARS_MARGIN + BAR * len(bars) + 18 * -(-len(names) // 4)) as figure:
        axes = figure.subplots()
        left_N = np.zeros(len(bars))
        for number, name in enumerate(names):
            widths = {row: bar.parts[name] for row, bar in enumerate(bars) if bar.parts.get(name, 0.0) > 0}
            rows, colour = list(widths), style.LIGHT[number % len(style.LIGHT)]
            options = {"height": 0.62, "color": colour, "label": printable(name)}
            drawn = axes.barh(rows, list(widths.values()), left=left_N[rows], **options)
            for row, patch in zip(rows, drawn, strict=True):
                patch.set_gid(f"bar{row}.{number}")
                titles[f"bar{row}.{number}"] = f"{bars[row].name}: {name} {widths[row]:.1f} ms"
                left_N[row] += widths[row]
        axes.set_yticks(range(len(bars)), [printable(bar.name) for bar in bars])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_title(printable(title))
        axes.set_xlabel("ms")
        figure.legend(loc="outside lower left", ncols=4, frameon=False, fontsize=10)
        return style.plot_svg(figure, titles)


def count(values: Sequence[float], edges: Sequence[float]) -> list[int]:
    """How many values lie in each [edge, next edge); those beyond the ends count in the first and the last."""
    bins = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    return np.bincount(bins, minlength=len(edges) - 1).tolist()


def _side_by_side(panels: Sequence[Panel], height: int, draw: Callable[["Axes", Panel, int], dict[str, str]]) -> str:
    """`draw` draws a panel, of a number, and returns tooltips by the gid of an artist."""
    titles: dict[str, str] = {}
    with style.plotting(WIDTH * len(panels), height) as figure:
        all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for number, (axes, panel) in enumerate(zip(all_axes, panels, strict=True)):
            axes.set_title(printable(panel.title))
            titles |= draw(axes, panel, number)
        return style.plot_svg(figure, titles)


def _draw_histogram(axes: "Axes", panel: Histogram, number: int) -> dict[str, str]:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    counts, edges = count(panel.values, panel.edges), [f"{edge:g}" for edge in panel.edges]
    last = len(counts) - 1
    bars = axes.bar(range(len(counts)), counts, width=0.92, align="edge", color=style.LIGHT[1])
    bars[last].set_alpha(0.55)
    titles = {}
    for n, (bar, height) in enumerate(zip(bars, counts, strict=True)):
        bar.set_gid(f"panel{number}.bar{n}")
        upper = "and more" if n == last else f"to {edges[n + 1]}"
        titles[f"panel{number}.bar{n}"] = f"{edges[n]} {upper}: {height:,}"
    axes.set_xlabel(printable(f"{len(panel.values):,} {panel.unit}; pale: {edges[last]} and more"))
    axes.xaxis.label.set_color(style.LIGHT_PAGE["dim"])
    axes.set_xticks(range(0, last + 1, 2), edges[: last + 1 : 2])
    axes.set_xlim(0, len(counts))
    axes.set_ylim(0, 1.08 * max(*counts, 1))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True, steps=(1, 2, 5, 10)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.grid(visible=False, axis="x")
    return titles


def _draw_dots(axes: "Axes", panel: Dots, number: int) -> dict[str, str]:
    axes.set_xlabel(printable(panel.across))
    axes.set_ylabel(printable(panel.up))
    if panel.line and len(panel.x):
        highest = max(*panel.x, *panel.y)
        axes.plot([0, highest], [0, highest], color=style.LIGHT_PAGE["dim"], linewidth=1)
    look = {"color": style.LIGHT[1 + number], "markersize": DOT, "alpha": 0.6}
    titles = {f"dots{number}.{dot}": name for dot, name in enumerate(panel.names[:MOST_TITLES])}
    for gid, x, y in zip(titles, panel.x, panel.y, strict=False):
        axes.plot([x], [y], "o", gid=gid, **look)
    axes.plot(panel.x[len(titles) :], panel.y[len(titles) :], "o", **look)
    return titles
