"""Incremental parser of surface text: pieces of any size in, located events out as soon as they are certain."""

from dataclasses import dataclass
from typing import Literal

from pasta_jax.lang.lexer import SURFACE, Lexer
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


class StreamParser:
    """Recognises tags, never raises; the grammar is checked by `Program.parse` and `check`.

    Any split of the input gives the events of the whole, except that text may be split into several events.
    """

    def __init__(self, forms: tuple[str, ...] = SURFACE):
        self._lexer = Lexer(forms)
        self._offset, self._line, self._column = 0, 1, 1

    def feed(self, text: str) -> list[Event]:
        """The events that are certain with this piece of the input."""
        return self._events(self._lexer.feed(text))

    def close(self) -> list[Event]:
        """End the input; what was held back is text."""
        return self._events(self._lexer.close())

    def _events(self, pieces: list[tuple[str, str]]) -> list[Event]:
        events = []
        run, place = [], (self._offset, self._line, self._column)
        for form, piece in [*pieces, (None, "")]:
            is_tag = form and piece[1] != "\\"
            if run and (is_tag or form is None):
                events.append(Event("text", "".join(run), 0, *place))
                run = []
            if not run:
                place = (self._offset, self._line, self._column)
            if is_tag:
                events.append(_tag(form, piece, place))
            elif form is not None:
                run.append("<" + piece[2:] if form else piece)
            self._advance(piece)
        return events

    def _advance(self, piece: str) -> None:
        self._offset += len(piece)
        breaks = piece.count("\n")
        self._line += breaks
        self._column = len(piece) - piece.rfind("\n") if breaks else self._column + len(piece)


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
