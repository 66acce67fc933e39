"""An answer on the terminal while it is decoded: its text as it becomes certain, or its threads side by side."""

import re
from collections.abc import Callable, Iterable

from rich.console import Console

from pasta_jax.decode.engine import Item
from pasta_jax.decode.request import Event, Result
from pasta_jax.decode.transcript import Transcript
from pasta_jax.lang.tags import TagIds
from pasta_jax.progress import quiet, stdout_is_terminal
from pasta_jax.view.live import LiveView
from pasta_jax.view.terminal import answer_view
from pasta_jax.view.text import BIDI, printable

OBEYED = re.compile(f"[\x7f-\x9f{''.join(BIDI)}]")


def show_text(items: Iterable[Item], tags: TagIds) -> None:
    """Print the text; on a terminal, control characters are made visible."""
    safe: Callable[[str], str] = printable if stdout_is_terminal() else str
    transcript = Transcript(tags)
    for item in items:
        if isinstance(item, Event):
            print(safe(transcript.push(item.thread, item.token, item.step, item.text)), end="", flush=True)
        else:
            print(safe(transcript.rest(item.text)) if isinstance(item, Result) else "", flush=True)


def escaped(line: str) -> str:
    """A line of JSON as stdout gets it: a terminal would obey the controls that JSON's own escapes leave."""
    return OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", line) if stdout_is_terminal() else line


def show_threads(items: Iterable[Item], tags: TagIds, console: Console, replayed: bool = False) -> None:
    """Show the threads growing, then the answer in reading order above a timeline.

    `replayed`: once the answer has ended, at reading speed.
    """
    with LiveView(tags, console) as view:
        if replayed:
            *events, last = items
            with quiet():
                view.replay(events)
        else:
            for last in items:
                if isinstance(last, Event):
                    view.push(last)
    if isinstance(last, Result):
        console.print(answer_view(last.trace, console))
