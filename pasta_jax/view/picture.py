"""Pictures of a trace as SVG: threads over time, the attention mask, and an answer above its timeline."""

from collections.abc import Callable, Iterator

import numpy as np

from pasta_jax.decode.trace import Thread, Trace
from pasta_jax.view.style import DRAWING, MONO, css_thread, css_variables
from pasta_jax.view.text import cells, markup, short

WIDTH = 960  # of a timeline
GUTTER = 152  # on its left, for the names of threads
RIGHT = 8
MARGIN = 16  # around a standalone picture
TICKS = 10  # at most


def label(thread: Thread) -> str:
    """The name of a thread in pictures."""
    return f"{thread.number} {thread.topic}" if thread.number else "main"


def edges_in(trace: Trace, unit: str) -> np.ndarray:
    """When each step ends, step 0 first: in steps, or in milliseconds since the first token was sampled."""
    steps = np.arange(trace.steps + 1)
    return steps.astype(float) if unit == "steps" else trace.ms_at(steps) - trace.prefill_ms


def timeline(trace: Trace, unit: str) -> tuple[str, int]:
    """(SVG elements, height): one row per thread, one bar per token, arrows from promise to chunk to sync."""
    threads = trace.threads()
    row = 30 if len(threads) <= 10 else 22
    bar, top = row - 12, 26
    height = top + row * len(threads) + 8
    edge = edges_in(trace, unit)
    scale = (WIDTH - GUTTER - RIGHT) / max(float(edge[-1]), 1e-9)
    x = GUTTER + scale * edge
    gap = 1.0 if trace.steps and (WIDTH - GUTTER) / trace.steps >= 4 else 0.0

    def y(number: int) -> float:
        return top + row * number + (row - bar) / 2

    parts = [*_axis(float(edge[-1]), scale, top, height, unit)]
    parts += _arrows(trace, threads, x, y, bar)
    for thread in threads:
        number, base = thread.number, y(thread.number)
        fed = np.flatnonzero(trace.thread == number)
        parts.append(f'<g class="{css_thread(number)}">')
        name = markup(short(label(thread), 19))
        parts.append(
            f'<text class="name" x="8" y="{base + bar / 2 + 4:g}">{name}<title>{markup(label(thread))}</title></text>'
        )
        if number and len(fed):
            promised = 10 * thread.tens
            first = thread.first_step - 1
            # Beyond the last step a promise is drawn in steps of the mean width.
            beyond = (x[-1] - GUTTER) / max(trace.steps, 1)
            until = x[min(first + promised, trace.steps)] + beyond * max(first + promised - trace.steps, 0)
            until = min(until, WIDTH - 2)
            parts.append(
                f'<rect class="promised" x="{x[first]:.1f}" y="{base - 3:g}" width="{max(until - x[first], 1):.1f}" '
                f'height="{bar + 6:g}" rx="3"><title>{promised} tokens promised, {thread.length} actual</title></rect>'
            )
        for i in fed:
            step = int(trace.step[i])
            tag = ' tag"' if trace.tags.is_tag(int(trace.token[i])) or trace.in_topic[i] else '"'
            width = max(x[step] - x[step - 1] - gap, 0.4)
            parts.append(
                f'<path class="bar{tag} data-n="{i}" d="M{x[step - 1]:.1f} {base:g}h{width:.1f}v{bar}h-{width:.1f}z"/>'
            )
        parts.append("</g>")
    return "".join(parts), height


def _axis(last: float, scale: float, top: int, height: int, unit: str) -> Iterator[str]:
    size = next(
        size for power in range(12) for size in (10**power, 2 * 10**power, 5 * 10**power) if last / size <= TICKS
    )
    yield f'<text class="dim" x="8" y="14">{"step" if unit == "steps" else "ms"}</text>'
    for value in np.arange(0, last + 1e-9, size):
        at = GUTTER + scale * value
        yield f'<path class="grid" d="M{at:.1f} {top - 4}V{height - 4}"/>'
        yield f'<text class="dim mid" x="{at:.1f}" y="14">{value:g}</text>'


def _arrows(trace: Trace, threads: list[Thread], x: np.ndarray, y: Callable[[int], float], bar: int) -> Iterator[str]:
    """Lines like those of a git graph: down at a fork, along while a chunk waits for a row, up at a join."""
    main = trace.thread == 0
    closes = trace.step[main & trace.tags.is_close(trace.token)]
    joins = trace.joins()

    def middle(step: int) -> float:
        return float(x[step - 1] + x[step]) / 2

    for thread in threads:
        fed = np.flatnonzero(trace.thread == thread.number)
        steps = trace.step[fed]
        level = y(thread.number) + bar / 2
        yield f'<g class="{css_thread(thread.number)}">'
        for before in np.flatnonzero(np.diff(steps) > 1):  # it waited in between
            yield f'<path class="wait" d="M{x[steps[before]] + 3:.1f} {level:g}H{x[steps[before + 1] - 1]:.1f}"/>'
        if thread.number and len(steps):
            promised = closes[thread.number - 1]
            below, first = y(0) + bar, middle(steps[0])
            path = f"M{middle(promised):.1f} {below:g}V{level:g}H{first:.1f}"
            yield f'<path class="arrow" data-n="{fed[0]}" d="{path}"/>'
            if thread.number in joins:
                sync = joins[thread.number]
                path = f"M{middle(steps[-1]):.1f} {level:g}H{middle(trace.step[sync]):.1f}V{below + 2:g}"
                yield f'<path class="arrow" data-n="{sync}" marker-end="url(#up)" d="{path}"/>'
        yield "</g>"


MARKER = (
    '<defs><marker id="up" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="5" markerHeight="5" orient="auto">'
    '<path d="M0 0L8 4L0 8z" fill="context-stroke"/></marker></defs>'
)


def timeline_svg(trace: Trace, unit: str) -> str:
    """The timeline as an element of a page."""
    body, height = timeline(trace, unit)
    return (
        f'<svg class="timeline {unit}" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="threads over {unit}">{MARKER}{body}</svg>'
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
    body, body_height = timeline(trace, "steps")
    width, top = WIDTH + 2 * MARGIN, 64 + text_height
    height = top + body_height + 38
    numbers = f"{trace.text_tokens} tokens of text in {trace.steps} steps, {trace.parallelism:.2f} per step"
    legend = "pale: tags and topics; dashed: promised length" + ("; a replay of a given answer" * trace.replayed)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" width="{width}" '
        f'height="{height:g}" role="img" aria-label="An asynchronous answer"><style>{css_variables()}{DRAWING}'
        f".text{{font:13px {MONO};white-space:pre}}.tint{{fill:var(--c);fill-opacity:.16}}"
        f".ask{{font-size:14px;font-weight:600}}</style>{MARKER}"
        f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1:g}" rx="8" fill="var(--paper)" '
        f'stroke="var(--line)"/><text class="ask" x="24" y="32">{markup(short(trace.prompt, 110))}</text>'
        f'<g transform="translate(24 46)">{text}</g><g transform="translate({MARGIN} {top:g})">{body}</g>'
        f'<text class="dim" x="24" y="{height - 16:g}">{legend}</text>'
        f'<text class="dim end" x="{width - 24}" y="{height - 16:g}">{numbers}</text></svg>\n'
    )


def _answer(trace: Trace) -> tuple[str, float]:
    """(SVG elements, height): the text in reading order, wrapped, with chunks tinted."""
    advance, line_height = 7.83, 21.0
    columns = int((WIDTH + 2 * MARGIN - 48) / advance)
    placed: list[tuple[int, int, int, str]] = []  # line, column, thread, piece
    line = column = 0
    for thread, word in _words(trace):
        width = sum(map(cells, word))
        if word == "\n" or column + width > columns:
            if placed and placed[-1][0] == line:
                placed[-1] = (*placed[-1][:3], placed[-1][3].rstrip(" "))
            line, column = line + 1, 0
            if not word.strip():
                continue
        last = placed[-1] if placed else None
        if last and last[0] == line and last[2] == thread:
            placed[-1] = (line, last[1], thread, last[3] + word)
        else:
            placed.append((line, column, thread, word))
        column += width
    parts = []
    for line, column, thread, piece in placed:
        x, y, width = column * advance, line * line_height, sum(map(cells, piece)) * advance
        box = f'x="{x:.1f}" y="{y + 2:g}" width="{width:.1f}" height="{line_height - 3:g}" rx="3"'
        tint = f'<rect class="tint" {box}/>' if thread else ""
        place = f'x="{x:.1f}" y="{y + 16:g}" textLength="{width:.1f}"'
        written = f'<text class="text" {place} xml:space="preserve">{markup(piece)}</text>'
        parts.append(f'<g class="{css_thread(thread)}">{tint}{written}</g>')
    return "".join(parts), (line + 1) * line_height


def _words(trace: Trace) -> Iterator[tuple[int, str]]:
    """(thread, a word and the space after it, or a line break) in reading order."""
    thread_texts: list[tuple[int, str]] = []
    for i in trace.order():
        if trace.in_topic[i]:
            continue
        thread, text = int(trace.thread[i]), trace.text[i]
        if thread_texts and thread_texts[-1][0] == thread:
            text = thread_texts.pop()[1] + text
        thread_texts.append((thread, text))
    for thread, text in thread_texts:
        for at, paragraph in enumerate(text.split("\n")):
            if at:
                yield thread, "\n"
            pieces = paragraph.split(" ")
            for number, piece in enumerate(pieces):
                word = piece + (" " if number < len(pieces) - 1 else "")
                if word:
                    yield thread, word
