"""An annotated record on a terminal: the question, the answer with its chunks in colour, its figures."""

from collections.abc import Iterator

from rich.text import Text

from pasta_jax.data.records import Record
from pasta_jax.lang.program import Chunk, Program, Sync
from pasta_jax.view.terminal import style_of
from pasta_jax.view.text import printable


def record_lines(record: Record) -> Iterator[Text]:
    """The record, one paragraph at a time."""
    yield Text(printable(record.instruction), style="bold")
    yield Text()
    answer, chunks = Text(), 0
    for part in Program.parse(record.program).parts:
        match part:
            case Chunk(topic, tens, text):
                chunks += 1
                answer.append(f"[{chunks} {printable(topic)} ~{10 * tens}]", style=f"reverse {style_of(chunks)}")
                answer.append(printable(text), style=style_of(chunks))
            case Sync():
                answer.append("[sync]", style="reverse")
            case _:
                answer.append(printable(part.text))
    yield answer
    yield Text()
    figures = f"{record.plain_tokens} tokens, {record.forks} chunks, critical path {record.critical_path}"
    yield Text(f"{figures}, theoretical speedup {record.speedup:.2f}", style="dim")
    if record.evidence:
        yield Text(f"evidence: {record.evidence}", style="dim")
