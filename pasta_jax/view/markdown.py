"""Markdown in answers: which characters are bold, italic, code or a bullet, and which only mark that.

Text keeps every character: a view hides marks, or shows them. What is not closed within its paragraph is plain text. Of
Markdown, this is what models write in short answers; links, tables and HTML stay as they are written.
"""

import enum
import itertools
import re
from collections.abc import Iterator

from pasta_jax.decode.trace import Trace

MOST = 500  # characters between two marks, so that no text takes quadratic time


class Style(enum.IntFlag):
    """How a character is shown."""

    PLAIN = 0
    BOLD = enum.auto()
    ITALIC = enum.auto()
    CODE = enum.auto()
    MARK = enum.auto()  # part of the notation: hidden
    BULLET = enum.auto()  # the dash of a list


_FENCED = re.compile(r"^( {0,3}(?P<fence>`{3,}|~{3,})[^`\n]*\n)(.*?)(^ {0,3}(?P=fence)[ \t]*(?:\n|\Z))", re.M | re.S)
_PARAGRAPH = re.compile(r"[^\n]+(?:\n(?![ \t]*\n)[^\n]+)*")
_HEADING = re.compile(r"^( {0,3}#{1,6}[ \t]+)(?=\S)([^\n]*)", re.M)
_BULLET = re.compile(r"^[ \t]*([-*+])[ \t]+(?=\S|\Z)", re.M)
_SPANS = (  # in this order: code holds no other marks
    (re.compile(rf"(?<![`\\])(`+)(?!`)(.{{1,{MOST}}}?)(?<!`)\1(?!`)", re.S), Style.CODE),
    (re.compile(rf"(?<!\\)(\*\*)(?=\S)(?!\*\*)(.{{1,{MOST}}}?)(?<=[^\s\\])\*\*(?!\*)", re.S), Style.BOLD),
    (re.compile(rf"(?<![\\\w])(__)(?=\S)(?!__)(.{{1,{MOST}}}?)(?<=[^\s\\])__(?!\w)", re.S), Style.BOLD),
    (re.compile(rf"(?<![\\\w*])(\*)(?=[^\s*])([^*]{{1,{MOST}}}?)(?<=[^\s\\])\*(?![\w*])", re.S), Style.ITALIC),
    (re.compile(rf"(?<![\\\w_])(_)(?=[^\s_])([^_]{{1,{MOST}}}?)(?<=[^\s\\])_(?![\w_])", re.S), Style.ITALIC),
)


def styles(text: str, at_line_start: bool = True) -> list[Style]:
    """The style of every character of a text that one thread wrote."""
    if not at_line_start:
        return styles("\0" + text)[1:]
    shown = [Style.PLAIN] * len(text)
    rest = text  # characters that were understood become \0

    def put(start: int, stop: int, style: Style) -> None:
        for at in range(start, stop):
            shown[at] |= style

    def done(start: int, stop: int) -> None:
        nonlocal rest
        rest = rest[:start] + "\0" * (stop - start) + rest[stop:]

    for found in list(_FENCED.finditer(rest)):
        put(*found.span(1), Style.MARK)
        put(*found.span(3), Style.CODE)
        put(*found.span(4), Style.MARK)
        done(*found.span())
    for found in list(_BULLET.finditer(rest)):
        put(*found.span(1), Style.BULLET)
        done(*found.span(1))
    for found in list(_HEADING.finditer(rest)):
        put(*found.span(1), Style.MARK)
        put(*found.span(2), Style.BOLD)
        done(*found.span(1))
    for paragraph in list(_PARAGRAPH.finditer(rest)):
        for pattern, style in _SPANS:
            for found in list(pattern.finditer(rest, *paragraph.span())):
                (start, inner), stop = found.span(1), found.end()
                end = found.end(2)
                put(inner, end, style)
                put(start, inner, Style.MARK)
                put(end, stop, Style.MARK)
                done(start, stop if style == Style.CODE else inner)
                done(end, stop)
    return shown


def runs(text: str, shown: list[Style]) -> Iterator[tuple[str, Style]]:
    """(piece, style) of equally styled pieces."""
    for style, group in itertools.groupby(range(len(text)), key=shown.__getitem__):
        at = list(group)
        yield text[at[0] : at[-1] + 1], style


def displayed(text: str, shown: list[Style]) -> Iterator[tuple[str, Style]]:
    """`runs` as a reader sees them: without marks, a list's dashes as bullets."""
    for piece, style in runs(text, shown):
        if Style.MARK not in style:
            yield "•" if Style.BULLET in style else piece, style


def plain(text: str) -> str:
    """The text without its marks."""
    return "".join(piece for piece, _ in displayed(text, styles(text)))


def styled(trace: Trace) -> Iterator[tuple[int, Style, str]]:
    """(thread, style, text) of what is displayed, in reading order, without topics."""
    shown = token_styles(trace)
    for i in trace.order().tolist():
        for text, style in displayed(trace.text[i], shown[i]) if not trace.in_topic[i] else ():
            yield int(trace.thread[i]), style, text


def token_styles(trace: Trace) -> dict[int, list[Style]]:
    """The style of each character of each token's text; what a thread writes between two tags is read as one text.

    Tags and topics are plain.
    """
    shown: dict[int, list[Style]] = {}
    segment: list[int] = []
    at_line_start = True
    for i in [*trace.order().tolist(), None]:
        if i is not None and not (trace.tags.is_tag(int(trace.token[i])) or trace.in_topic[i]):
            segment.append(i)
            continue
        text = "".join(trace.text[n] for n in segment)
        found = iter(styles(text, at_line_start))
        shown |= {n: list(itertools.islice(found, len(trace.text[n]))) for n in segment}
        at_line_start = text.endswith("\n") if text else at_line_start
        segment = []
        if i is not None:
            shown[i] = [Style.PLAIN] * len(trace.text[i])
    return shown
