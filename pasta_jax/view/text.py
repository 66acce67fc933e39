"""Text that is safe to show: control characters made printable, widths in columns, one-line summaries."""

import unicodedata
from xml.sax.saxutils import escape

from rich.cells import get_character_cell_size as cells  # by which rich lays out the terminal

# An answer that is shown at reading speed: 20 characters a second, some 240 words a minute, and a tag for a moment.
READING_MS = 50  # per character
SHORTEST_STEP_MS = 50


BIDI = {*"\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"}  # embeddings, overrides and isolates


def printable(text: str) -> str:
    """Replace control characters by their pictures, and what has none by U+FFFD; tabs and line breaks stay.

    So are the controls of bidirectional text, which could show the rest of a line in reverse. What is unassigned may be
    a character that is newer than Python's table.
    """

    def picture(character: str) -> str:
        code = ord(character)
        if character in BIDI or 0xFDD0 <= code <= 0xFDEF or code & 0xFFFE == 0xFFFE:  # the latter are no characters
            return "\ufffd"
        if character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cs"):
            return character
        return chr(0x2400 + code) if character < " " else "\ufffd"

    return "".join(map(picture, text.replace("\r\n", "\n")))


def markup(text: str) -> str:
    """Printable text escaped for XML and HTML, attributes included."""
    return escape(printable(text), {'"': "&quot;"})


def short(text: str, columns: int) -> str:
    """Text on one line, cut to fit some columns."""
    text, width, kept = " ".join(text.split()), 0, 0
    for at, character in enumerate(text, start=1):
        width += cells(character)
        if width > columns:
            return text[:kept] + "…"
        if width < columns:  # an accent takes no column and stays with its letter
            kept = at
    return text


def sans_width(text: str, size: float) -> float:
    """Pixels that text takes in a bold sans-serif font, estimated for a wide one (DejaVu Sans)."""
    return size * sum(map(_advance, text))


def fit(text: str, size: float, pixels: float) -> str:
    """Text on one line, cut to fit some pixels."""
    text = " ".join(text.split())
    if sans_width(text, size) <= pixels:
        return text
    width = sans_width("…", size)
    for at, character in enumerate(text):
        width += sans_width(character, size)
        if width > pixels:
            return text[:at].rstrip() + "…"
    return text


def _advance(character: str) -> float:
    """The width of a character in a bold sans-serif font, in ems."""
    if character in " ijlI.,:;'|!()[]{}fjrt-":
        return 0.42
    if character in "mwMW@%—…":
        return 1.02
    return {0: 0.0, 1: 0.76 if character.isupper() else 0.69, 2: 1.0}[cells(character)]
