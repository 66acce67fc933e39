"""The outline of a Markdown-like text: headings, list items, paragraphs, tables, fenced code, rules."""

import re
from dataclasses import dataclass
from typing import Literal

from pasta_jax.lang.words import UNSPACED, words

Kind = Literal["heading", "item", "paragraph", "table", "code", "rule"]

_FENCE = re.compile(r"\s*(```|~~~)")
# A marker stands before a blank, or directly before a word of a script without blanks between words.
_HAN_NUMBER = "[一二三四五六七八九十]{1,3}"
_ITEM = re.compile(
    r"([ \t\u3000]*)(?:([-*+•–]|\d{1,3}[.)]|[A-Za-zก-ฮ][.)])(?=[ \t]+\S)"
    rf"|([•・·●○■◆▪]|\d{{1,3}}(?:[.)](?=[{UNSPACED}【「『《“*])|[、．）])"
    rf"|{_HAN_NUMBER}[、．]|（(?:\d{{1,3}}|{_HAN_NUMBER})）|\((?:\d{{1,3}}|{_HAN_NUMBER})\)(?=[ \t]*[{UNSPACED}])"
    r"|[①-⑳])\ufe0f?(?=[ \t\u3000]*[^\s、．\ufe0f]))"  # U+FE0F makes an emoji of the bullet
)
_RULE = re.compile(r"\s*([-*_])(?:\s*\1){2,}\s*$")
_HASHES = re.compile(r"(#{1,6})[ \t]+\S")
_BOLD_LINE = re.compile(r"(\*\*|__)[^*_]+\1[:：]?\s*$")  # the line may end in a carriage return
_MAX_TITLE_WORDS = 8


@dataclass(frozen=True)
class TextBlock:
    """text[start:stop] without surrounding whitespace; headings or items of equal `style` belong together."""

    kind: Kind
    start: int
    stop: int
    indent: int
    style: str
    body: int  # start of the content: after the marker of an item or heading, else `start`
    content: str  # text[body:stop] without surrounding whitespace


@dataclass(frozen=True)
class _Line:
    """One line and where it starts in the text."""

    start: int
    text: str

    @property
    def blank(self) -> bool:
        """Whether it is empty or whitespace."""
        return not self.text.strip()

    @property
    def indent(self) -> int:
        """Leading whitespace characters."""
        return len(self.text) - len(self.text.lstrip())


def outline(text: str) -> list[TextBlock]:
    """The blocks in order. Every character that is not whitespace lies in exactly one."""
    lines: list[_Line] = []
    for line in text.split("\n"):
        lines.append(_Line(lines[-1].start + len(lines[-1].text) + 1 if lines else 0, line))
    blocks: list[TextBlock] = []
    at = 0
    while at < len(lines):
        if lines[at].blank:
            at += 1
            continue
        kind, style, body = _classify(lines, at)
        last = at
        if kind == "code":  # up to the closing fence, or the end
            last = next(
                (n for n in range(at + 1, len(lines)) if lines[n].text.lstrip().startswith(style)), len(lines) - 1
            )
        elif kind not in ("heading", "rule"):
            while last + 1 < len(lines) and _continues(lines, last + 1, kind, lines[at].indent):
                last += 1
        while lines[last].blank:  # an unclosed fence may end in blank lines
            last -= 1
        first = lines[at]
        start, stop = first.start + first.indent, lines[last].start + len(lines[last].text.rstrip())
        body = max(body, start)
        blocks.append(TextBlock(kind, start, stop, first.indent, style, body, text[body:stop].strip()))
        at = last + 1
    return blocks


def _classify(lines: list[_Line], at: int) -> tuple[Kind, str, int]:
    """(kind, style, start of the content) of the block that starts at a line."""
    line = lines[at]
    if fence := _FENCE.match(line.text):
        return "code", fence[1], line.start
    if _RULE.match(line.text) and (at == 0 or lines[at - 1].blank):  # directly below a line, it makes that a heading
        return "rule", "", line.start
    if hashes := _HASHES.match(line.text):
        return "heading", hashes[1], line.start + hashes.end(1)
    if _BOLD_LINE.match(line.text):
        return "heading", "bold", line.start
    if item := _ITEM.match(line.text):
        return "item", _style(item[2] or item[3]), line.start + item.end()
    if line.text.lstrip().startswith("|"):
        return "table", "", line.start
    if style := _title_style(lines, at):
        return "heading", style, line.start
    return "paragraph", "", line.start


def _style(marker: str) -> str:
    """What the markers of one list have in common; that of numbers begins with 1, that of letters with a."""
    shape = re.sub(_HAN_NUMBER, "一", re.sub(r"\d+", "", re.sub("[①-⑳]", "①", marker)))
    if re.search(rf"\d|{_HAN_NUMBER}|[①-⑳]", marker):
        return "1" + shape
    return "a" + shape[-1] if len(shape) > 1 else shape


def _continues(lines: list[_Line], at: int, kind: Kind, indent: int) -> bool:
    """Whether a line continues the block before it; the lines of an item are indented deeper than its marker."""
    if lines[at].blank or (kind == "item" and lines[at].indent <= indent):
        return False
    line_kind = _classify(lines, at)[0]
    return line_kind == kind == "table" or (kind != "table" and line_kind == "paragraph")


def _title_style(lines: list[_Line], at: int) -> str:
    """The style of a short line that is a heading by its form ("colon" or "title"), else an empty string."""
    text = lines[at].text.strip()
    capital = text[0].isdigit() or (text[0].isalpha() and not text[0].islower())  # scripts without case have no other
    if lines[at].indent or len(words(text)) > _MAX_TITLE_WORDS or not capital:
        return ""
    if at and not lines[at - 1].blank:
        return ""
    if text.endswith((":", "：")):
        return "colon"
    stands_alone = at + 2 < len(lines) and lines[at + 1].blank
    return "title" if stands_alone and text[-1] not in ".,;!?。，、；！？" else ""
