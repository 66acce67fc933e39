"""Stacked horizontal bars as SVG: what a total is made of."""

import dataclasses
from collections.abc import Mapping, Sequence

from pasta_jax.view import style
from pasta_jax.view.text import printable

WIDTH, BAR, MARGIN = 820, 34, 110  # pixels; a bar's height with its gap; title, axis and legend


@dataclasses.dataclass(frozen=True)
class Bar:
    """One bar. Parts that are not positive are left out."""

    name: str
    parts: Mapping[str, float]


def stacked(title: str, unit: str, bars: Sequence[Bar]) -> str:
    """Draw the bars below each other; parts of one name have one colour, in the order of their first appearance."""
    names = list(dict.fromkeys(name for bar in bars for name, value in bar.parts.items() if value > 0))
    colours = {name: style.LIGHT[number % len(style.LIGHT)] for number, name in enumerate(names)}
    titles: dict[str, str] = {}
    with style.plotting(WIDTH, MARGIN + BAR * len(bars) + 18 * -(-len(names) // 4)) as figure:
        axes = figure.subplots()
        labelled: set[str] = set()
        for number, bar in enumerate(bars):
            left = 0.0
            for name in names:
                value = bar.parts.get(name, 0.0)
                if value <= 0:
                    continue
                gid = f"bar{number}.{names.index(name)}"
                label = None if name in labelled else printable(name)
                labelled.add(name)
                axes.barh(number, value, left=left, height=0.62, color=colours[name], label=label, gid=gid)
                axes.patches[-1].set_gid(gid)
                titles[gid] = f"{bar.name}: {name} {value:.1f} {unit}"
                left += value
        axes.set_yticks(range(len(bars)), [printable(bar.name) for bar in bars])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_title(printable(title))
        axes.set_xlabel(unit)
        figure.legend(loc="outside lower left", ncols=4, frameon=False, fontsize=10)
        return style.plot_svg(figure, titles)
