"""Histograms as SVG, drawn by hand: a panel each, side by side, light or dark as their reader's page."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from xml.sax.saxutils import escape

import numpy as np

WIDE, TALL, GAP = 300, 150, 44  # of a panel's bars; between panels
STYLE = (
    ":root{color-scheme:light dark;--ink:#1e293b;--dim:#64748b;--line:#cbd5e1;--paper:#ffffff;--bar:#2563eb}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e2e8f0;--dim:#94a3b8;--line:#334155;--paper:#0f1623;--bar:#60a5fa}}"
    "text{font:12px ui-sans-serif,system-ui,'Segoe UI',Helvetica,Arial,sans-serif;fill:var(--dim)}"
    ".name{fill:var(--ink);font-weight:600}.bar{fill:var(--bar)}.axis{stroke:var(--line)}.mid{text-anchor:middle}"
)


@dataclasses.dataclass(frozen=True)
class Panel:
    """One histogram. The last bar also counts what lies beyond."""

    title: str
    unit: str  # what is counted
    values: Sequence[float]
    edges: Sequence[float]


def histogram(values: Sequence[float], edges: Sequence[float]) -> list[int]:
    """How many values lie in each [edge, next edge); those beyond the ends count in the first and the last."""
    bins = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    counted = Counter(bins.tolist())
    return [counted[n] for n in range(len(edges) - 1)]


def chart(panels: Sequence[Panel]) -> str:
    """The panels as one SVG on its own."""
    width, height = GAP + len(panels) * (WIDE + GAP), TALL + 96
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(", ".join(panel.title for panel in panels))}"><style>{STYLE}</style>'
        f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8" fill="var(--paper)" '
        'stroke="var(--line)"/>'
    ]
    for number, panel in enumerate(panels):
        parts.append(f'<g transform="translate({GAP + number * (WIDE + GAP)} 48)">{_bars(panel)}</g>')
    return "".join([*parts, "</svg>\n"])


def _bars(panel: Panel) -> str:
    counts = histogram(panel.values, panel.edges)
    most, step = max(*counts, 1), WIDE / len(counts)
    parts = [f'<text class="name" y="-20">{escape(panel.title)}</text>']
    for n, count in enumerate(counts):
        high = TALL * count / most
        where = f'x="{n * step + 1:.1f}" y="{TALL - high:.1f}" width="{step - 2:.1f}" height="{high:.1f}"'
        beyond = " and more" if n == len(counts) - 1 else f" to {panel.edges[n + 1]:g}"
        parts.append(f'<rect class="bar" {where}><title>{panel.edges[n]:g}{beyond}: {count:,}</title></rect>')
        if n % 2 == 0:
            parts.append(f'<text class="mid" x="{n * step:.1f}" y="{TALL + 18}">{panel.edges[n]:g}</text>')
    top = counts.index(max(counts))
    parts.append(f'<text class="mid" x="{(top + 0.5) * step:.1f}" y="-4">{max(counts):,}</text>')
    parts.append(f'<path class="axis" d="M0 {TALL + 0.5}H{WIDE}"/>')
    parts.append(f'<text x="0" y="{TALL + 36}">{len(panel.values):,} {escape(panel.unit)}</text>')
    return "".join(parts)
