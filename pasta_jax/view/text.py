"""Text that is safe to show: control characters made printable, widths in columns, one-line summaries."""

import unicodedata
from xml.sax.saxutils import escape


def printable(text: str) -> str:
    """Replace control characters by their pictures, and what has none by U+FFFD; line breaks stay."""

    def picture(character: str) -> str:
        if character == "\n" or unicodedata.category(character) not in ("Cc", "Cs", "Cn"):
            return character
        return chr(0x2400 + ord(character)) if character < " " else "\ufffd"

    return "".join(map(picture, text))


def markup(text: str) -> str:
    """Printable text escaped for XML and HTML, attributes included."""
    return escape(printable(text), {'"': "&quot;"})


def cells(character: str) -> int:
    """Columns that a character takes in a fixed-width font."""
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def short(text: str, columns: int) -> str:
    """Text on one line, cut to fit some columns."""
    text, width = " ".join(text.split()), 0
    for at, character in enumerate(text):
        width += cells(character)
        if width > columns:
            return text[: at - 1] + "…"
    return text
