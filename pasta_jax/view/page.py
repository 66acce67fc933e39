"""A trace as one self-contained HTML page: text by thread, timeline, fork tree, attention mask. No network access."""

import json
from pathlib import Path

import numpy as np

from pasta_jax.decode.trace import Thread, Trace
from pasta_jax.decode.trace_file import to_json
from pasta_jax.view.perfetto import token_name
from pasta_jax.view.picture import edges_in, label, mask_svg, timeline_svg
from pasta_jax.view.style import DRAWING, css_thread, css_variables
from pasta_jax.view.text import markup, short

TEMPLATE = Path(__file__).with_name("page.html")

_CLOSED = {"own": "itself", "budget": "its budget", "request": "the request's end"}


def page(trace: Trace, baseline_tokens: int | None) -> str:
    """Render the page. `baseline_tokens`: the length of the sequential answer to the same prompt, if known."""
    units = "".join(
        f'<label><input type="radio" name="unit" value="{unit}"{" checked" * (unit == "steps")}> {unit}</label>'
        for unit in ("steps", "ms")
    )
    timed = bool(trace.rounds)
    contents = {
        "title": markup(short(trace.prompt, 60)),
        "style": css_variables() + DRAWING,
        "prompt": markup(trace.prompt.strip()),
        "long": ' class="long"' * (len(trace.prompt) > 160),
        "about": markup(
            f"{trace.model} · {trace.rows} rows · positions {trace.policy} · {len(trace.prompt_ids)} prompt tokens"
        ),
        "replay": _REPLAY if trace.replayed else "",
        "tiles": _tiles(trace, baseline_tokens),
        "answer": _answer(trace),
        "units": units if timed else "",
        "timelines": timeline_svg(trace, "steps") + (timeline_svg(trace, "ms") if timed else ""),
        "timenote": _time_note(trace),
        "threads": _table(trace),
        "mask": mask_svg(trace),
        "footer": "Made by pasta_jax; the trace is part of this page.",
        "trace": _data(trace),
    }
    html = TEMPLATE.read_text(encoding="utf-8")
    for name, content in contents.items():  # no content holds a raw "<!--", so none is mistaken for a placeholder
        html = html.replace(f"<!--{name}-->", content)
    return html


_REPLAY = (
    '<p class="replay">A replay: this answer was given to the interpreter token by token; '
    "the model did not write it.</p>"
)


def _tiles(trace: Trace, baseline_tokens: int | None) -> str:
    """The metrics, one tile each."""
    tiles = {
        "tokens": len(trace.token),
        "text tokens": trace.text_tokens,
        "steps": trace.steps,
        "critical path": trace.critical_path,
        "parallelism": f"{trace.parallelism:.2f}",
        "peak threads": trace.widest,
    }
    if baseline_tokens and trace.critical_path:
        tiles[f"speedup over {baseline_tokens} tokens"] = f"{trace.speedup(baseline_tokens):.2f}"
    if trace.rounds:
        tiles["ms to first token"] = f"{trace.prefill_ms:,.0f}"
        tiles["ms decoding"] = f"{trace.decode_ms:,.0f}"
    tiles["finish"] = trace.finish_reason
    return "".join(f"<div><b>{value}</b><span>{name}</span></div>" for name, value in tiles.items())


def _answer(trace: Trace) -> str:
    """The text in reading order: one element per token, a span around each chunk, and marks for promises and syncs."""
    tags, parts = trace.tags, []
    in_chunk = in_mark = False
    threads = trace.threads()
    forks = 0

    def token(i: int, text: str) -> str:
        return f'<i data-n="{i}">{markup(text)}</i>'

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
            parts.append(f"{token(i, f'{trace.text[i]} · {10 * threads[forks].tens}')}</span>")
            in_mark = False
        elif id == tags.async_:
            parts.append(
                f'<span class="chunk {css_thread(number)}" title="{markup(label(threads[number]))}">{token(i, "")}'
            )
            in_chunk = True
        elif id == tags.sync:
            parts.append(f'{markup(trace.text[i])}<span class="mark t0" data-n="{i}">{token(i, "sync")}</span>')
        else:
            parts.append(token(i, trace.text[i]))
    return "".join(parts) + "</span>" * (in_chunk + in_mark)


def _time_note(trace: Trace) -> str:
    note = (
        "Each bar is a token; tags and topics are pale. Lines lead from a promise to its chunk, and from the chunk to "
        "the sync that joins it. Dashed boxes show promised lengths, dotted lines waiting."
    )
    if not trace.rounds:
        return note + " Time was not measured."
    return (
        f"{note} Milliseconds count from the first token. The host read the device {len(trace.rounds)} times; times "
        "in between are interpolated."
    )


def _table(trace: Trace) -> str:
    """The fork tree: main, and below it the chunks in the order of their promises, with a line for each sync."""
    threads = trace.threads()
    longest = max([10 * thread.tens for thread in threads] + [thread.length for thread in threads[1:]] + [1])
    edge = edges_in(trace, "ms") if trace.rounds else None
    heads = ["thread", "promised", "actual", "", "steps", *(["ms"] if edge is not None else []), "closed by"]
    head = "".join(f"<th{' class=left' if not name else ''}>{name}</th>" for name in heads)
    rows, forks = [f"<tr>{head}</tr>", _row(threads[0], "", longest, edge)], 0
    for id in trace.thread_ids(0):
        if trace.tags.is_close(id) and forks < len(threads) - 1:
            forks += 1
            rows.append(_row(threads[forks], "├─ ", longest, edge))
        elif id == trace.tags.sync:
            sync = '<td class="name t0"><span class="tree">├─ </span>sync</td>'
            rows.append(f'<tr>{sync}<td colspan="{len(heads) - 1}"></td></tr>')
    rows[-1] = rows[-1].replace("├─ ", "└─ ")
    return "".join(rows)


def _row(thread: Thread, tree: str, longest: int, edge: np.ndarray | None) -> str:
    steps, ms = ("–", "–")
    if thread.tokens:
        steps = f"{thread.first_step}–{thread.last_step}"
        ms = f"{edge[thread.first_step - 1]:.0f}–{edge[thread.last_step]:.0f}" if edge is not None else ""
    meter = promised = ""
    if thread.number:
        promised = str(10 * thread.tens)
        meter = (
            f'<span class="meter"><b style="width:{1000 * thread.tens / longest:.1f}%"></b>'
            f'<i style="width:{100 * thread.length / longest:.1f}%"></i></span>'
        )
    cells = [promised, str(thread.length), None, steps, *([ms] if edge is not None else []), _CLOSED[thread.closed]]
    columns = "".join(f'<td class="bars">{meter}</td>' if cell is None else f"<td>{cell}</td>" for cell in cells)
    name = f'<td class="name"><span class="tree">{tree}</span>{markup(short(label(thread), 40))}</td>'
    return f'<tr class="{css_thread(thread.number)}">{name}{columns}</tr>'


def _data(trace: Trace) -> str:
    """The trace as JSON, with what the script needs besides; safe inside a script element."""
    names = {int(i): token_name(trace, i) for i in range(len(trace.token)) if trace.tags.is_tag(int(trace.token[i]))}
    extra = {
        "order": trace.order().tolist(),
        "names": names,
        "step_ms": [round(float(ms), 1) for ms in edges_in(trace, "ms")] if trace.rounds else [],
    }
    return json.dumps(json.loads(to_json(trace)) | extra, ensure_ascii=False).replace("<", "\\u003c")
