"""One value against another as SVG, side by side: a dot per answer."""

import dataclasses
from collections.abc import Sequence

from pasta_jax.view import style
from pasta_jax.view.text import printable

WIDTH, HEIGHT = 350, 260  # of a panel
DOT = 4  # diameter
MOST_TITLES = 400  # dots of a panel with a tooltip


@dataclasses.dataclass(frozen=True)
class Dots:
    """One panel."""

    title: str
    across: str  # name of x
    up: str  # name of y
    x: Sequence[float]
    y: Sequence[float]
    line: bool  # draw where both are equal
    names: Sequence[str] = ()  # tooltips


def scatter(panels: Sequence[Dots]) -> str:
    """Draw the panels side by side."""
    titles: dict[str, str] = {}
    with style.plotting(WIDTH * len(panels), HEIGHT) as figure:
        all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for number, (axes, panel) in enumerate(zip(all_axes, panels, strict=True)):
            axes.set_title(printable(panel.title))
            axes.set_xlabel(printable(panel.across))
            axes.set_ylabel(printable(panel.up))
            if panel.line and len(panel.x):
                highest = max(*panel.x, *panel.y)
                axes.plot([0, highest], [0, highest], color=style.LIGHT_PAGE["dim"], linewidth=1)
            named = panel.names[:MOST_TITLES]
            for dot, (x, y, name) in enumerate(zip(panel.x, panel.y, named, strict=False)):
                gid = f"dots{number}.{dot}"
                axes.plot([x], [y], "o", color=style.LIGHT[1 + number], markersize=DOT, alpha=0.6, gid=gid)
                titles[gid] = name
            rest = slice(len(named), None)
            axes.plot(panel.x[rest], panel.y[rest], "o", color=style.LIGHT[1 + number], markersize=DOT, alpha=0.6)
        return style.plot_svg(figure, titles)
