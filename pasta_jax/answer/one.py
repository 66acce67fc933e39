"""Answer one prompt: print the answer while it is decoded, or at reading speed, then what it took."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

from rich.console import Console

from pasta_jax.answer.job import Job
from pasta_jax.answer.record import AnswerRecord, record_of, summary, write_pictures, write_records
from pasta_jax.answer.show import escaped, show_text, show_threads
from pasta_jax.decode.request import Event, Result
from pasta_jax.device import compilation_cache
from pasta_jax.lang.tags import TagIds
from pasta_jax.progress import doing, quiet, say, stdout_can_be_drawn_on
from pasta_jax.view.live import following
from pasta_jax.view.terminal import figures


def answer_one(
    job: Job, items: Iterator[Event | Result], tags: TagIds, sequential: bool, loaded: float
) -> AnswerRecord:
    """Print one answer while it is decoded, then write and summarise it."""
    result, (came, compiling) = print_answer(job, items, tags, sequential)
    record = record_of(job, result, sequential)
    if job.outputs.output is not None:
        write_records(job.outputs.output, [record])
    write_pictures(job, result)
    if job.as_json:
        times = {"load_s": round(loaded - job.started, 3), "compile_s": round(compiling, 3)}
        print(escaped(json.dumps(record.fields() | times, ensure_ascii=False)))
    first_s, load_s = came - job.started, loaded - job.started
    waited = f"first token after {first_s:.1f} s, {load_s:.1f} s of them loading, {compiling:.1f} s compiling"
    if shows_threads(job, sequential):
        console_of(job).print(figures(rows_of(job, record) | {"start": waited}))
    else:
        say(f"[{record.finish_reason}: {summary(record)}; {waited}]")
    return record


def shows_threads(job: Job, sequential: bool) -> bool:
    """Whether the threads are shown side by side, in place of the text as it becomes certain."""
    if job.live == "auto":
        return stdout_can_be_drawn_on() and not job.as_json and (job.slow or not sequential)
    return job.live == "yes"


def console_of(job: Job) -> Console:
    """The terminal that answers are shown on."""
    return following(force_terminal=True if job.live == "yes" else None)


def print_answer(
    job: Job, items: Iterator[Event | Result], tags: TagIds, sequential: bool
) -> tuple[Result, tuple[float, float]]:
    """Print the only answer as it is decoded; its result, and of its first token the time.perf_counter() at which it
    came and the seconds of compiling before it. Files to write get all of it where the reader of stdout has exited."""
    result = first_token = None

    def received() -> Iterator[Event | Result]:
        nonlocal result, first_token
        with ExitStack() as stack:
            stack.enter_context(doing("decoding, to be shown at reading speed" if job.slow else "reading the prompt"))
            for result in items:
                if first_token is None:
                    first_token = time.perf_counter(), compilation_cache.seconds()
                    if not job.slow:
                        stack.enter_context(quiet())  # from now on, the answer itself
                yield result

    with suppress(*[BrokenPipeError] * bool(job.outputs.by_flag())):
        if shows_threads(job, sequential):
            console = console_of(job)
            show_threads(received(), tags, console, replayed=job.slow)
            console.print()
        elif job.as_json:
            list(received())
        else:
            show_text(received(), tags)
    *_, result = result, *items  # there are more only where stdout was closed
    return result, first_token


def rows_of(job: Job, record: AnswerRecord) -> dict[str, str]:
    """The figures of an answer by name: threads, steps, seconds, where its page is."""
    chunks = record.chunks
    rows = {"threads": f"main and {chunks} chunk{'s' * (chunks != 1)}" if chunks else "main alone"}
    rate = f", {record.text_tokens / record.steps:.2f} per step" if record.steps else ""
    rows["steps"] = f"{record.steps} for {record.text_tokens} tokens of text{rate}"
    if record.finish_reason == "length":
        rows["steps"] += "; cut off at the limit"
    if record.theoretical_speedup is not None:
        rows["speedup"] = f"{record.theoretical_speedup:.2f} in theory, over {record.baseline_tokens} sequential tokens"
    if record.decode_ms > 0:
        rows["seconds"] = f"{record.decode_ms / 1000:.2f}, {1000 * record.tokens / record.decode_ms:.0f} tokens/s"
    rows |= {name: str(path) for name, path in job.outputs.by_flag().items() if name != "html"}
    if job.outputs.html is not None:
        rows["page"] = str(job.outputs.html)
    return rows
