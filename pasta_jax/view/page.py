"""A trace as one self-contained HTML page: text by thread, timeline, fork tree, attention mask. No network access."""

import json
from pathlib import Path

from markupsafe import Markup

from pasta_jax.decode.trace import Thread, Trace
from pasta_jax.view.markdown import Style, runs, token_styles
from pasta_jax.view.perfetto import token_name
from pasta_jax.view.picture import MARKER, edges_in, mask_svg, timeline_svg
from pasta_jax.view.style import DRAWING, css_thread, css_variables
from pasta_jax.view.templates import render
from pasta_jax.view.text import READING_MS, SHORTEST_STEP_MS, markup, short
from pasta_jax.view.trace_file import to_json


def page(trace: Trace, baseline_tokens: int | None) -> str:
    """Render the page. `baseline_tokens`: the length of the sequential answer to the same prompt, if known."""
    timed, threads = bool(trace.rounds), trace.threads()
    units = ("steps", "ms") if timed else ("steps",)
    return render(
        Path(__file__).with_name("page.html"),
        trace=trace,
        timed=timed,
        style=Markup(css_variables() + DRAWING),
        tiles=_tiles(trace, baseline_tokens),
        answer=_answer(trace),
        marker=Markup(MARKER),
        timelines=Markup("".join(timeline_svg(trace, unit, narrow) for unit in units for narrow in (False, True))),
        rows=_fork_tree(trace),
        longest=max([10 * thread.tens for thread in threads] + [thread.length for thread in threads[1:]] + [1]),
        ms=edges_in(trace, "ms").tolist() if timed else [],
        mask=Markup(mask_svg(trace)),
        data=_data(trace),
        shortest_step_ms=SHORTEST_STEP_MS,
        reading_ms=READING_MS,
        css_thread=css_thread,
        short=short,
    )


def _tiles(trace: Trace, baseline_tokens: int | None) -> dict[str, str]:
    """The value of each figure, by its name."""
    tiles = {"tokens of text": str(trace.text_tokens), "steps": str(trace.steps)}
    if trace.kept_drafts:
        tiles["tokens drafted"] = str(trace.kept_drafts)
    of = "" if trace.critical_path == trace.steps else f" of the critical path of {trace.critical_path}"
    tiles[f"tokens per step{of} (parallelism)"] = f"{trace.parallelism:.2f}"
    if baseline_tokens and trace.critical_path:
        tiles[f"speedup over {baseline_tokens} sequential steps"] = f"{trace.speedup(baseline_tokens):.2f}"
    if trace.rounds:
        tiles["ms to the first token"] = f"{trace.prefill_ms:,.0f}"
        tiles["ms from then on"] = f"{trace.decode_ms:,.0f}"
    return tiles


def _answer(trace: Trace) -> Markup:
    """The text in reading order: one element per token, a span around each chunk, and marks for promises and syncs."""
    tags, parts = trace.tags, []
    in_chunk = in_mark = False
    threads = trace.threads()
    shown = token_styles(trace)
    forks = 0

    def token(i: int, text: str) -> str:
        return f'<i data-n="{i}">{text}</i>'

    for i in trace.order():
        number, id = int(trace.thread[i]), int(trace.token[i])
        if in_chunk and not number:
            parts.append("</span>")
            in_chunk = False
        if id == tags.promise:
            colour = css_thread(forks + 1)
            parts.append(f'{markup(trace.text[i])}<span class="mark {colour}" data-n="{i}">{token(i, "promise ")}')
            in_mark = True
        elif tags.is_close(id) and in_mark:
            forks += 1
            parts.append(f"{token(i, f'{markup(trace.text[i])} · {10 * threads[forks].tens}')}</span><wbr>")
            in_mark = False
        elif id == tags.async_:
            parts.append(
                f'<span class="chunk {css_thread(number)}" title="{markup(threads[number].name)}">{token(i, "")}'
            )
            in_chunk = True
        elif id == tags.sync:
            parts.append(f'{markup(trace.text[i])}<span class="mark t0" data-n="{i}">{token(i, "sync")}</span><wbr>')
        else:
            parts.append(token(i, "".join(_styled(*run) for run in runs(trace.text[i], shown[i]))))
    return Markup("".join(parts) + "</span>" * (in_chunk + in_mark))


def _styled(piece: str, style: Style) -> str:
    """A piece of text in elements for its style; whether they show is up to the style sheet."""
    html = markup(piece)
    for flag, element in ((Style.CODE, "code"), (Style.ITALIC, "em"), (Style.BOLD, "b")):
        if flag in style:
            html = f"<{element}>{html}</{element}>"
    if Style.MARK in style or Style.BULLET in style:
        html = f'<span class="{"md" if Style.MARK in style else "bullet"}">{html}</span>'
    return html


def _fork_tree(trace: Trace) -> list[tuple[str, Thread | None]]:
    """(branch, thread) of main, and below it of the chunks in the order of their promises; None: a sync."""
    main, *chunks = trace.threads()
    below: list[Thread | None] = []
    for id in trace.thread_ids(0):
        if trace.tags.is_close(id) and chunks:
            below.append(chunks.pop(0))
        elif id == trace.tags.sync:
            below.append(None)
    return [("", main), *(("├─ ", thread) for thread in below[:-1]), *(("└─ ", thread) for thread in below[-1:])]


def _data(trace: Trace) -> Markup:
    """The trace as JSON, with what the script needs besides; safe inside a script element."""
    names = {int(i): token_name(trace, i) for i in range(len(trace.token)) if trace.tags.is_tag(int(trace.token[i]))}
    extra = {
        "order": trace.order().tolist(),
        "names": names,
        "step_ms": [round(float(ms), 1) for ms in edges_in(trace, "ms")] if trace.rounds else [],
    }
    return Markup(json.dumps(json.loads(to_json(trace)) | extra, ensure_ascii=False).replace("<", "\\u003c"))
