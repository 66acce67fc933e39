"""Colours and fonts of everything drawn, light or dark like the reader's page, and the style sheet of plots."""

import contextlib
import io
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from pasta_jax.view.text import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Main first; chunks share the rest. Each colour is legible on its own background, also as small text (WCAG AA).
LIGHT = ("#475569", "#2563eb", "#c94c0a", "#04845c", "#c026d3", "#b45309", "#077e9b", "#dc2626", "#7c3aed", "#4d7c0f")
DARK = ("#a3b1c6", "#60a5fa", "#fb923c", "#34d399", "#e879f9", "#facc15", "#22d3ee", "#f87171", "#a78bfa", "#a3e635")
LIGHT_PAGE = {"ink": "#1e293b", "dim": "#64748b", "line": "#e2e8f0", "paper": "#ffffff"}
DARK_PAGE = {"ink": "#e2e8f0", "dim": "#94a3b8", "line": "#2b3648", "paper": "#0f1623"}
SANS = "ui-sans-serif,system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif"
MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'Liberation Mono',monospace"

# Rules for drawings of traces, on the page and on their own.
DRAWING = (
    f"svg{{font-family:{SANS};font-size:12px;fill:var(--ink)}}.bar{{fill:var(--c)}}.tag{{fill-opacity:.4}}"
    ".name{fill:var(--c);font-weight:600}.dim{fill:var(--dim)}.grid{stroke:var(--line);fill:none}"
    ".arrow{stroke:var(--c);stroke-width:1.5;fill:none}.wait{stroke:var(--c);stroke-dasharray:1 4;stroke-width:2}"
    ".promised{stroke:var(--c);fill:none;stroke-dasharray:3 2}.end{text-anchor:end}.mid{text-anchor:middle}"
    ".seen{fill:var(--c);fill-opacity:.75}.past{fill:var(--line)}"
)

# matplotlib's font is its own DejaVu Sans, the same on every machine and wider than the fonts it is shown in.
FONT = "DejaVu Sans"
PLOT = {
    "svg.fonttype": "none",
    "svg.hashsalt": "pasta_jax",
    "text.parse_math": False,
    "font.family": [FONT],
    "font.size": 11,
    "text.color": LIGHT_PAGE["ink"],
    "figure.facecolor": LIGHT_PAGE["paper"],
    "figure.dpi": 72,  # as in SVG: a point is a pixel
    "figure.constrained_layout.w_pad": 0.16,
    "figure.constrained_layout.h_pad": 0.1,
    "axes.facecolor": LIGHT_PAGE["paper"],
    "axes.edgecolor": LIGHT_PAGE["line"],
    "axes.labelcolor": LIGHT_PAGE["ink"],
    "axes.labelsize": 11,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LIGHT_PAGE["line"],
    "grid.linewidth": 1,
    "xtick.color": LIGHT_PAGE["dim"],
    "ytick.color": LIGHT_PAGE["dim"],
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.major.pad": 6,
    "ytick.major.pad": 6,
}


def css_variables() -> str:
    """CSS variables --c0, --c1, … and the rules that use them: .t3 draws in the colour of thread 3."""

    def declarations(palette: tuple[str, ...], page: Mapping[str, str]) -> str:
        named = {f"c{number}": colour for number, colour in enumerate(palette)} | page
        return "".join(f"--{name}:{value};" for name, value in named.items())

    light, dark = declarations(LIGHT, LIGHT_PAGE), declarations(DARK, DARK_PAGE)
    threads = "".join(f".t{number}{{--c:var(--c{number})}}" for number in range(len(LIGHT)))
    return f":root{{color-scheme:light dark;{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}{threads}"


def css_thread(number: int) -> str:
    """The class of a thread: t0 is main's, chunks share nine."""
    return f"t{1 + (number - 1) % (len(LIGHT) - 1) if number else 0}"


@contextlib.contextmanager
def plotting(width: float, height: float) -> "Iterator[Figure]":
    """An empty figure of a size in pixels, under our style sheet; draw on it and call `plot_svg` inside the block."""
    import matplotlib.style  # half a second of imports that only commands with plots should pay
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.style.context(["default", PLOT]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the reader's font may have it
        figure = Figure(figsize=(width / PLOT["figure.dpi"], height / PLOT["figure.dpi"]), layout="constrained")
        FigureCanvasAgg(figure)  # which can measure text
        yield figure


def plot_svg(figure: "Figure", titles: Mapping[str, str]) -> str:
    """A figure as deterministic SVG in the reader's colours; `titles` are tooltips by the gid of an artist."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    names = {value: name for name, value in LIGHT_PAGE.items()} | {value: f"c{n}" for n, value in enumerate(LIGHT)}
    named = {value: f"var(--{name})" for value, name in names.items()}
    svg = re.sub("#[0-9a-f]{6}", lambda colour: named.get(colour[0], colour[0]), svg)  # a text may hold others
    svg = re.sub(r'width="([\d.]+)pt" height="([\d.]+)pt"', r'width="\1" height="\2"', svg, count=1)
    svg = svg.replace(f"'{FONT}'", SANS)
    svg = svg.replace('<style type="text/css">', f'<style type="text/css">{css_variables()}', 1)
    for gid, title in titles.items():
        svg = svg.replace(f'<g id="{gid}">', f'<g id="{gid}"><title>{escape(printable(title))}</title>', 1)
    return svg
