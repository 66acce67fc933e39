"""Annotated records on a terminal: the question, the answer with its chunks in colour, its figures."""

import random
from pathlib import Path

from rich.console import Console
from rich.text import Text

from pasta_jax.annotate.results import RECORDS
from pasta_jax.data.records import Record, read_records
from pasta_jax.errors import PastaError
from pasta_jax.lang.program import Chunk, Program, Sync
from pasta_jax.view.terminal import style_of
from pasta_jax.view.text import printable


def inspect(folder: Path, count: int, seed: int, only_forks: bool) -> None:
    """Print records of a finished run, drawn by a seed."""
    records = read_records(folder / RECORDS)
    console = Console(highlight=False)
    numbers = [number for number, record in enumerate(records) if record.forks or not only_forks]
    if not numbers:
        raise PastaError(f"{folder / RECORDS}: none of its {len(records)} records has a chunk; drop --forks")
    for number in random.Random(seed).sample(numbers, min(max(count, 0), len(numbers))):
        record = records[number]
        console.rule(Text(printable(f"record {number + 1} of {len(records)}: {record.id}")))
        figures = f"{record.plain_tokens} tokens, {record.forks} chunks, critical path {record.critical_path}"
        question = Text(printable(record.instruction), style="bold")
        console.print(question, "", answer(record), "", sep="\n", soft_wrap=True)
        console.print(Text(f"{figures}, theoretical speedup {record.speedup:.2f}", style="dim"), soft_wrap=True)
        if record.evidence:
            console.print(Text(f"evidence: {record.evidence}", style="dim"), soft_wrap=True)


def answer(record: Record) -> Text:
    """The answer with its chunks in colour, each after its topic and promised length."""
    text, chunks = Text(), 0
    for part in Program.parse(record.program).parts:
        match part:
            case Chunk(topic, tens, body):
                chunks += 1
                text.append(f"[{chunks} {printable(topic)} ~{10 * tens}]", style=f"reverse {style_of(chunks)}")
                text.append(printable(body), style=style_of(chunks))
            case Sync():
                text.append("[sync]", style="reverse")
            case _:
                text.append(printable(part.text))
    return text
