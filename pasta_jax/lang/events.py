"""Surface text as located events: its tags, and the runs of text between them."""

from dataclasses import dataclass
from typing import Literal

from pasta_jax.lang.lexer import SURFACE, lex
from pasta_jax.lang.tags import MAX_TENS, unescape_topic

_KINDS = {"<a": "async", "</": "end_async", "<s": "sync", "<p": "promise"}
_TENS = {str(tens): tens for tens in range(1, MAX_TENS + 1)}


@dataclass(frozen=True)
class Event:
    """A tag or a run of text. `text` is the text, unescaped, or a tag's topic; "annotated" is an `<async topic='…'>`.

    `tens` is a promise's number, 0 if it isn't an integer from 1 to 64. `offset` counts characters of the surface text
    from 0; `line` and `column` count from 1.
    """

    kind: Literal["text", "promise", "async", "end_async", "sync", "annotated"]
    text: str
    tens: int
    offset: int
    line: int
    column: int


def events(text: str, forms: tuple[str, ...] = SURFACE) -> list[Event]:
    """Recognises tags, never raises; the grammar is checked by `Program.parse` and `check`."""
    found, run = [], []
    here = place = (0, 1, 1)
    for form, piece in [*lex(text, forms), (None, "")]:
        is_tag = form and piece[1] != "\\"
        if run and (is_tag or form is None):
            found.append(Event("text", "".join(run), 0, *place))
            run = []
        if not run:
            place = here
        if is_tag:
            found.append(_tag(form, piece, place))
        elif form is not None:
            run.append("<" + piece[2:] if form else piece)
        here = _after(here, piece)
    return found


def _after(place: tuple[int, int, int], piece: str) -> tuple[int, int, int]:
    """The offset, line and column after a piece that begins at a place."""
    offset, line, column = place
    breaks = piece.count("\n")
    column = len(piece) - piece.rfind("\n") if breaks else column + len(piece)
    return offset + len(piece), line + breaks, column


def _tag(form: str, piece: str, place: tuple[int, int, int]) -> Event:
    topic, tens, kind = "", 0, _KINDS[form[:2]]
    if "topic=" in form:
        quote = form[form.index("=") + 1]
        topic = unescape_topic(piece[piece.index(quote) + 1 : piece.rindex(quote)])
        if kind == "promise":
            tens = _TENS.get(piece[piece.rindex("=") + 1 : -len(" />")], 0)
        else:
            kind = "annotated"
    return Event(kind, topic, tens, *place)
