"""Quality against speed as SVG: where models lie, and the line along the dial from speed to quality."""

import dataclasses
import itertools
import math
from collections.abc import Sequence

from pasta_jax.view.picture import STYLE, colours, shown

PANEL = 420  # of one plot, its axes' labels included
HEIGHT = 330
LEFT, RIGHT, TOP, BOTTOM = 62, 24, 34, 46
NEAR = 7  # from a dot to its name

Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclasses.dataclass(frozen=True)
class Point:
    """A model, or a mean over seeds with the range of its runs."""

    name: str
    family: str  # points of one family have a colour and, in the order given, a line
    x: float
    y: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]


def pareto(panels: Sequence[tuple[str, str, Sequence[Point]]]) -> str:
    """One plot for each (name of x, name of y, points), side by side."""
    families = list(dict.fromkeys(point.family for _, _, points in panels for point in points))
    parts = [
        f'<g transform="translate({number * PANEL} 0)">{_panel(across, up, points, families)}</g>'
        for number, (across, up, points) in enumerate(panels)
    ]
    width = PANEL * len(panels)
    style = (
        f"{colours()}{STYLE}.paper{{fill:var(--paper)}}.dot{{fill:var(--c)}}.range{{stroke:var(--c);stroke-opacity:.5}}"
        ".line{stroke:var(--c);fill:none;stroke-width:1.5}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}">'
        f'<style>{style}</style><rect class="paper" width="{width}" height="{HEIGHT}"/>{"".join(parts)}</svg>\n'
    )


def ticks(low: float, high: float) -> list[float]:
    """Round numbers that cover a range: at most eight, and two at least."""
    span = max(high - low, 1e-3)
    unit = 10.0 ** math.floor(math.log10(span))
    step = next(s * unit for s in (0.1, 0.2, 0.5, 1, 2, 5) if span / (s * unit) <= 6)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(n * step, 10) for n in range(first, max(last, first + 1) + 1)]


def _panel(across: str, up: str, points: Sequence[Point], families: list[str]) -> str:
    if not points:
        return f'<text class="dim" x="{LEFT}" y="{HEIGHT / 2}">{shown(across)}: not measured</text>'
    xs = ticks(min(p.x_range[0] for p in points), max(p.x_range[1] for p in points))
    ys = ticks(min(p.y_range[0] for p in points), max(p.y_range[1] for p in points))
    bottom = HEIGHT - BOTTOM

    def x(value: float) -> float:
        return round(LEFT + (value - xs[0]) / (xs[-1] - xs[0]) * (PANEL - LEFT - RIGHT), 2)

    def y(value: float) -> float:
        return round(bottom - (value - ys[0]) / (ys[-1] - ys[0]) * (bottom - TOP), 2)

    parts = []
    for value in xs:
        parts.append(f'<path class="grid" d="M{x(value)} {TOP}V{bottom}"/>')
        parts.append(f'<text class="dim mid" x="{x(value)}" y="{bottom + 16}">{value:g}</text>')
    for value in ys:
        parts.append(f'<path class="grid" d="M{LEFT} {y(value)}H{PANEL - RIGHT}"/>')
        parts.append(f'<text class="dim end" x="{LEFT - 6}" y="{y(value) + 4}">{value:g}</text>')
    parts.append(f'<text class="mid" x="{(LEFT + PANEL - RIGHT) / 2}" y="{HEIGHT - 10}">{shown(across)}</text>')
    parts.append(f'<text x="8" y="18">{shown(up)}</text>')
    taken = [(x(point.x) - 4, y(point.y) - 4, x(point.x) + 4, y(point.y) + 4) for point in points]
    for number, family in enumerate(families):
        own = [point for point in points if point.family == family]
        if not own:
            continue
        line = "L".join(f"{x(point.x)} {y(point.y)}" for point in own)
        drawn = [f'<path class="line" d="M{line}"/>'] if len(own) > 1 else []
        names: dict[tuple[float, float], list[str]] = {}  # of points at one place
        for point in own:
            names.setdefault((x(point.x), y(point.y)), []).append(point.name)
            (left, right), (low, high) = point.x_range, point.y_range
            drawn.append(
                f'<path class="range" d="M{x(left)} {y(point.y)}H{x(right)}M{x(point.x)} {y(low)}V{y(high)}"/>'
            )
            title = f"<title>{shown(point.name)}: {point.x:.3f}, {point.y:.3f}</title>"
            drawn.append(f'<circle class="dot" cx="{x(point.x)}" cy="{y(point.y)}" r="4">{title}</circle>')
        for (across, down), several in names.items():
            said = ", ".join(several)
            end, down, box = _room(across, down, 7.5 * len(said), taken)
            taken.append(box)
            anchor, shift = (' class="name end"', -NEAR) if end else (' class="name"', NEAR)
            drawn.append(f'<text{anchor} x="{across + shift}" y="{down}">{shown(said)}</text>')
        parts.append(f'<g class="t{number % 10}">{"".join(drawn)}</g>')
    return "".join(parts)


def _room(across: float, down: float, width: float, taken: list[Box]) -> tuple[bool, float, Box]:
    """(whether a name ends at its dot rather than begins there, its baseline, its box): where it covers least."""
    places = []
    for end, below in itertools.product((False, True), (-6, 14)):
        left = across - NEAR - width if end else across + NEAR
        box = left, down + below - 10, left + width, down + below + 3
        covered = sum(box[0] < t[2] and t[0] < box[2] and box[1] < t[3] and t[1] < box[3] for t in taken)
        outside = left < LEFT or left + width > PANEL
        places.append((covered + outside, end, down + below, box))
    _, *found = min(places, key=lambda place: place[0])
    return tuple(found)
