"""Histograms as SVG, side by side: one panel each."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pasta_jax.view import style
from pasta_jax.view.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 350, 230  # of a panel


@dataclasses.dataclass(frozen=True)
class Panel:
    """One histogram. Values beyond the edges count in the first and the last bar."""

    title: str
    unit: str  # what is counted
    values: Sequence[float]
    edges: Sequence[float]


def histogram(values: Sequence[float], edges: Sequence[float]) -> list[int]:
    """How many values lie in each [edge, next edge); those beyond the ends count in the first and the last."""
    bins = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    return np.bincount(bins, minlength=len(edges) - 1).tolist()


def chart(panels: Sequence[Panel]) -> str:
    """Draw the panels side by side."""
    titles: dict[str, str] = {}
    with style.plotting(WIDTH * len(panels), HEIGHT) as figure:
        all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for number, (axes, panel) in enumerate(zip(all_axes, panels, strict=True)):
            titles |= _bars(axes, panel, f"panel{number}")
        return style.plot_svg(figure, titles)


def _bars(axes: "Axes", panel: Panel, gid: str) -> dict[str, str]:
    """Draw a panel and return the tooltips of its bars."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    counts, edges = histogram(panel.values, panel.edges), [f"{edge:g}" for edge in panel.edges]
    last = len(counts) - 1
    bars = axes.bar(range(len(counts)), counts, width=0.92, align="edge", color=style.LIGHT[1])
    bars[last].set_alpha(0.55)
    titles = {}
    for n, (bar, count) in enumerate(zip(bars, counts, strict=True)):
        bar.set_gid(f"{gid}.bar{n}")
        titles[f"{gid}.bar{n}"] = f"{edges[n]}{' and more' if n == last else f' to {edges[n + 1]}'}: {count:,}"
    axes.set_title(printable(panel.title))
    axes.set_xlabel(printable(f"{len(panel.values):,} {panel.unit}; pale: {edges[last]} and more"))
    axes.xaxis.label.set_color(style.LIGHT_PAGE["dim"])
    axes.set_xticks(range(0, last + 1, 2), edges[: last + 1 : 2])
    axes.set_xlim(0, len(counts))
    axes.set_ylim(0, 1.08 * max(*counts, 1))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True, steps=(1, 2, 5, 10)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.grid(visible=False, axis="x")
    return titles
