"""Pictures of a trace as SVG: threads over time, the attention mask, and an answer above its timeline."""

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Iterator

import numpy as np

from pasta_jax.decode.trace import Thread, Trace
from pasta_jax.lang.words import unspaced
from pasta_jax.view.markdown import Style, styled
from pasta_jax.view.spans import spans
from pasta_jax.view.style import DRAWING, MONO, css_thread, css_variables
from pasta_jax.view.text import cells, fit, markup, printable, sans_width, short

WIDTH = 960  # of a timeline
NARROW = 380  # of a timeline on a telephone
RIGHT = 8
MARGIN = 16  # around a standalone picture
FONT_SIZE = 12
TAB = 4  # columns


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where a timeline has its parts, in pixels: names are in a gutter on the left, or above the bars."""

    width: int
    gutter: float  # left of the bars
    row: int  # height of a thread
    bar: int  # height of a bar
    above: int  # of the row, for its name; 0: the name is in the gutter

    @staticmethod
    def of(trace: Trace, narrow: bool) -> "Layout":
        """The gutter is as wide as the longest name needs, up to a third."""
        bar = 18 if len(trace.closed) <= 10 else 10
        if narrow:
            return Layout(NARROW, 6, bar + 28, bar, 16)
        longest = max(sans_width(thread.name, FONT_SIZE) for thread in trace.threads())
        return Layout(WIDTH, min(max(longest + 24, 60), WIDTH / 3), bar + 12, bar, 0)


def edges_in(trace: Trace, unit: str) -> np.ndarray:
    """When each step ends, step 0 first: in steps, or in milliseconds since the first token was sampled."""
    steps = np.arange(trace.steps + 1)
    return steps.astype(float) if unit == "steps" else trace.ms_at(steps) - trace.prefill_ms


def timeline(trace: Trace, unit: str, layout: Layout) -> tuple[str, int]:
    """(SVG elements, height): one row per thread, one bar per token, arrows from promise to chunk to sync."""
    threads, gutter, bar, top = trace.threads(), layout.gutter, layout.bar, 26
    height = top + layout.row * len(threads) + 8
    edge = edges_in(trace, unit)
    scale = (layout.width - gutter - RIGHT) / max(float(edge[-1]), 1e-9)
    x = gutter + scale * edge
    begins, ends = spans(trace, x)
    middles = (begins + ends) / 2
    gap = 1.0 if trace.steps and (layout.width - gutter) / trace.steps >= 4 else 0.0

    def y(number: int) -> float:
        return top + layout.row * number + layout.above + (layout.row - layout.above - bar) / 2

    parts = [*_axis(float(edge[-1]), scale, top, height, unit, layout)]
    upright = _upright(trace, middles)
    parts += _arrows(trace, threads, x, middles, upright, y, bar)
    for thread in threads:
        number, base = thread.number, y(thread.number)
        fed = np.flatnonzero(trace.thread == number)
        parts.append(f'<g class="{css_thread(number)}">')
        name = fit(thread.name, FONT_SIZE, layout.width - gutter - RIGHT if layout.above else gutter - 20)
        left, middle = 8.0, base + bar / 2 + 4
        if layout.above:
            passing = [at for n in upright if n >= number > 0 for at in upright[n]]
            left, middle = _beside(passing, gutter, layout.width - RIGHT, sans_width(name, FONT_SIZE)), base - 7
        title = f"<title>{markup(thread.name)}</title>"
        parts.append(f'<text class="name" x="{left:.4g}" y="{middle:g}">{markup(name)}{title}</text>')
        if number and len(fed):
            promised = 10 * thread.tens
            first = thread.first_step - 1
            # Beyond the last step a promise is drawn in steps of the mean width.
            beyond = (x[-1] - gutter) / max(trace.steps, 1)
            until = x[min(first + promised, trace.steps)] + beyond * max(first + promised - trace.steps, 0)
            until = min(until, layout.width - 2)
            parts.append(
                f'<rect class="promised" x="{x[first]:.1f}" y="{base - 3:g}" width="{max(until - x[first], 1):.1f}" '
                f'height="{bar + 6:g}" rx="3"><title>{promised} tokens promised, {thread.length} actual</title></rect>'
            )
        for i in fed:
            tag = ' tag"' if trace.tags.is_tag(int(trace.token[i])) or trace.in_topic[i] else '"'
            broad = max(ends[i] - begins[i] - gap, 0.4)
            parts.append(
                f'<path class="bar{tag} data-n="{i}" d="M{begins[i]:.1f} {base:g}h{broad:.1f}v{bar}h-{broad:.1f}z"/>'
            )
        parts.append("</g>")
    return "".join(parts), height


def _axis(last: float, scale: float, top: int, height: int, unit: str, layout: Layout) -> Iterator[str]:
    ticks = max(int(layout.width - layout.gutter) // 75, 1)  # at most
    size = next(
        size for power in range(12) for size in (10**power, 2 * 10**power, 5 * 10**power) if last / size <= ticks
    )
    if not layout.above:
        yield f'<text class="dim" x="8" y="14">{"step" if unit == "steps" else "ms"}</text>'
    for number, value in enumerate(np.arange(0, last + 1e-9, size)):
        at = layout.gutter + scale * value
        name = f"{'step' if unit == 'steps' else 'ms'} 0" if layout.above and not number else f"{value:g}"
        side = "" if layout.above and not number else " mid"
        yield f'<path class="grid" d="M{at:.1f} {top - 4}V{height - 4}"/>'
        yield f'<text class="dim{side}" x="{at:.1f}" y="14">{name}</text>'


def _upright(trace: Trace, middles: np.ndarray) -> dict[int, list[float]]:
    """Where lines run down to each chunk, at its promise, and up from it, at the sync that joins it."""
    main = trace.thread == 0
    closes, joins = np.flatnonzero(main & trace.tags.is_close(trace.token)), trace.joins()
    ends = {number: [close, *([joins[number]] if number in joins else [])] for number, close in enumerate(closes, 1)}
    return {number: [float(middles[i]) for i in its] for number, its in ends.items()}


def _beside(lines: list[float], left: float, right: float, width: float) -> float:
    """Where fewest upright lines cross so wide a name: at the left, or behind one of the lines."""
    pixels = sorted({round(line) for line in lines})
    places = [at for at in (left, *(pixel + 6 for pixel in pixels)) if at + width <= right] or [left]

    def crossing(at: float) -> int:
        return bisect.bisect_left(pixels, at + width + 4) - bisect.bisect_right(pixels, at - 4)

    return min(places, key=lambda at: (crossing(at), at))


def _arrows(
    trace: Trace,
    threads: list[Thread],
    x: np.ndarray,
    middles: np.ndarray,
    upright: dict[int, list[float]],
    y: Callable[[int], float],
    bar: int,
) -> Iterator[str]:
    """Lines as in a git graph: down at a fork, along while a chunk waits for a row, up at a join."""
    joins = trace.joins()
    for thread in threads:
        fed = np.flatnonzero(trace.thread == thread.number)
        steps = trace.step[fed]
        level = y(thread.number) + bar / 2
        yield f'<g class="{css_thread(thread.number)}">'
        for before in np.flatnonzero(np.diff(steps) > 1):  # it waited in between
            yield f'<path class="wait" d="M{x[steps[before]] + 3:.1f} {level:g}H{x[steps[before + 1] - 1]:.1f}"/>'
        if thread.number and len(steps):
            below, first = y(0) + bar, middles[fed[0]]
            down, *up = upright[thread.number]
            path = f"M{down:.1f} {below:g}V{level:g}H{first:.1f}"
            yield f'<path class="arrow" data-n="{fed[0]}" d="{path}"/>'
            for sync_at in up:
                path = f"M{middles[fed[-1]]:.1f} {level:g}H{sync_at:.1f}V{below + 2:g}"
                yield f'<path class="arrow" data-n="{joins[thread.number]}" marker-end="url(#up)" d="{path}"/>'
        yield "</g>"


MARKER = (
    '<defs><marker id="up" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="5" markerHeight="5" orient="auto">'
    '<path d="M0 0L8 4L0 8z" fill="context-stroke"/></marker></defs>'
)


def timeline_svg(trace: Trace, unit: str, narrow: bool = False) -> str:
    """The timeline as an element of a page, which holds MARKER once."""
    layout = Layout.of(trace, narrow)
    body, height = timeline(trace, unit, layout)
    return (
        f'<svg class="timeline {unit} {"narrow" if narrow else "wide"}" viewBox="0 0 {layout.width} {height}" '
        f'role="img" aria-label="threads over {unit}">{body}</svg>'
    )


def mask_svg(trace: Trace) -> str:
    """The attention mask: one row per query token, one column per key token, both in linear order.

    Colours show the thread of a key that is seen; grey keys precede the query but are hidden from it. The prompt,
    which every token sees, is one band.
    """
    order, sees = trace.order(), trace.sees()[:, len(trace.prompt_ids) :]
    count = len(order)
    if not count:
        return ""
    thread = trace.thread[order]
    starts = np.flatnonzero(np.diff(thread, prepend=-1) | (trace.token[order] == trace.tags.sync))
    runs = list(zip(starts.tolist(), [*starts[1:].tolist(), count], strict=True))
    strip, band = count / 40, count / 16
    left = strip + band
    parts = [f'<path class="past" d="M{left:.1f} {strip:.1f}{"h1v1" * count}H{left:.1f}z"/>']
    prompt = f'x="{strip:.1f}" y="{strip:.1f}" width="{band:.1f}" height="{count}"'
    parts.append(f'<g class="t0"><rect class="seen" {prompt}><title>the prompt: every token sees it</title></rect></g>')
    for start, stop in runs:
        number, length = int(thread[start]), stop - start
        seen = "".join(_seen_blocks(sees, runs, start, stop, left, strip))
        parts.append(
            f'<g class="{css_thread(number)}"><rect class="bar" x="{left + start:.1f}" width="{length}" '
            f'height="{strip * 0.8:.1f}"/><rect class="bar" y="{strip + start:.1f}" width="{strip * 0.8:.1f}" '
            f'height="{length}"/><path class="seen" d="{seen}"/></g>'
        )
    width, height = left + count, strip + count
    return (
        f'<svg class="mask" viewBox="0 0 {width:.1f} {height:.1f}" data-left="{left:.4f}" data-top="{strip:.4f}" '
        f'shape-rendering="crispEdges" role="img" aria-label="attention mask">{"".join(parts)}</svg>'
    )


def _seen_blocks(
    sees: np.ndarray, runs: list[tuple[int, int]], start: int, stop: int, left: float, top: float
) -> Iterator[str]:
    """Path pieces for the queries that see the keys from start to stop: whole blocks, stairs on the diagonal."""
    for first, last in runs:
        block = sees[first:last, start:stop]
        if not block.any():
            continue
        x, y = f"{left + start:.1f}", f"{top + first:.1f}"
        if block.all():
            yield f"M{x} {y}h{stop - start}v{last - first}h-{stop - start}z"
        else:  # a run sees only itself in part
            yield f"M{x} {y}{'h1v1' * (last - first)}H{x}z"


def picture(trace: Trace) -> str:
    """A standalone SVG, light or dark like the reader's page: the answer with coloured chunks above its timeline."""
    text, text_height = _answer(trace)
    body, body_height = timeline(trace, "steps", Layout.of(trace, narrow=False))
    width, top = WIDTH + 2 * MARGIN, 64 + text_height
    height = top + body_height + 38
    numbers = f"{trace.text_tokens} tokens of text in {trace.steps} steps, "
    numbers += f"{trace.text_tokens / max(trace.steps, 1):.2f} per step"
    legend = "pale: tags and topics; dashed: promised length" + ("; a replay of a given answer" * trace.replayed)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" width="{width}" '
        f'height="{height:g}" role="img" aria-label="An asynchronous answer"><style>{css_variables()}{DRAWING}'
        f".text{{font:13px {MONO};white-space:pre}}.tint{{fill:var(--c);fill-opacity:.16}}"
        f".bold{{font-weight:700}}.italic{{font-style:italic}}.ask{{font-size:14px;font-weight:600}}</style>{MARKER}"
        f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1:g}" rx="8" fill="var(--paper)" '
        f'stroke="var(--line)"/><text class="ask" x="24" y="32">{markup(short(trace.prompt, 110))}</text>'
        f'<g transform="translate(24 46)">{text}</g><g transform="translate({MARGIN} {top:g})">{body}</g>'
        f'<text class="dim" x="24" y="{height - 16:g}">{legend}</text>'
        f'<text class="dim end" x="{width - 24}" y="{height - 16:g}">{numbers}</text></svg>\n'
    )


def _answer(trace: Trace) -> tuple[str, float]:
    """(SVG elements, height): the text in reading order, wrapped, with chunks tinted and Markdown shown."""
    advance, line_height = 7.83, 21.0
    columns = int((WIDTH + 2 * MARGIN - 48) / advance)
    lines: list[list[Character]] = [[]]
    for word in _words(trace, columns):
        if word[0].text == "\n" or sum(cells(character.text) for character in (*lines[-1], *word)) > columns:
            while lines[-1] and lines[-1][-1].text == " ":
                lines[-1].pop()
            lines.append([])
            if word[0].text.isspace():
                continue
        lines[-1] += word
    parts = []
    for number, line in enumerate(lines):
        y, column = number * line_height, 0
        for thread, characters in itertools.groupby(line, key=lambda character: character.thread):
            start, pieces, own = column, [], list(characters)
            blank = len(own) - len("".join(character.text for character in own).lstrip())
            for style, group in itertools.groupby(own, key=lambda character: character.style):
                piece = list(group)
                wide = sum(cells(character.text) for character in piece)
                place = f'x="{column * advance:.1f}" y="{y + 16:g}" textLength="{wide * advance:.1f}"'
                text = markup("".join(character.text for character in piece))
                pieces.append(f'<text class="{_text_class(style)}" {place} xml:space="preserve">{text}</text>')
                column += wide
            start += blank  # the space before a chunk's first word has no colour
            box = f'x="{start * advance:.1f}" y="{y + 2:g}" width="{(column - start) * advance:.1f}"'
            tint = f'<rect class="tint" {box} height="{line_height - 3:g}" rx="3"/>' if thread else ""
            parts.append(f'<g class="{css_thread(thread)}">{tint}{"".join(pieces)}</g>')
    return "".join(parts), len(lines) * line_height


@dataclasses.dataclass(frozen=True)
class Character:
    """A character of the answer and how it is drawn."""

    thread: int
    text: str
    style: Style


def _text_class(style: Style) -> str:
    """The CSS classes of a piece of text."""
    names = {Style.BOLD: "bold", Style.ITALIC: "italic"}
    return " ".join(["text", *(name for flag, name in names.items() if flag in style)])


def _words(trace: Trace, columns: int) -> Iterator[list[Character]]:
    """A word and the space after it, or a line break, in reading order, without the marks of Markdown.

    A word that is wider than the columns is cut. In a script without blanks, each letter is a word with what follows.
    """
    word: list[Character] = []
    width, letter = 0, False  # of the word; whether it has a letter of such a script
    for (thread, style), pieces in itertools.groupby(styled(trace), key=lambda piece: piece[:2]):
        for text in printable("".join(piece for *_, piece in pieces)).expandtabs(TAB):
            character = Character(thread, text, style)
            ends = word and (word[-1].text == " " or word[-1].thread != thread or (letter and text.isalnum()))
            if word and (ends or text == "\n" or width + cells(text) > columns):
                yield word
                word, width, letter = [], 0, False
            if text == "\n":
                yield [character]
            else:
                word.append(character)
                width, letter = width + cells(text), letter or unspaced(text)
    if word:
        yield word
