"""The texts of Skeleton-of-Thought (Ning et al. 2023, arXiv 2307.15337): two prompts, a skeleton's points, an answer.

The prompts are our own, after the paper's description: first a list of short points, then each point alone, with
the question and the whole skeleton in view. What tells the points apart comes last, as the beginning of the answer, so
that all points of a question share the rest of their prompt. They are short because the models are small: one of 135M
parameters answers with the examples of a longer prompt, and with the skeleton where that is a numbered list.
"""

import dataclasses
import re
from collections.abc import Sequence

from pasta_jax.lang.words import first_words

OPENING = "1."  # the skeleton's first characters: a small model would else begin with a sentence about it

_SKELETON = """\
{question}

Do not answer yet. List only the 3 to {most} points of the answer, in 3 to 5 words each."""

_POINT = """\
{question}

Write one or two sentences about each of these points: {skeleton}."""

WORDING = _SKELETON + _POINT

_LINE = re.compile(r"^\s*(\d+)\s*[.):]\s*(\S.*)$")
_MARKUP = re.compile(r"[*_`#]+")


@dataclasses.dataclass(frozen=True)
class Point:
    """One point of a skeleton."""

    number: int  # as the skeleton has it
    title: str

    @property
    def heading(self) -> str:
        """How its text begins."""
        return f"{self.number}. {self.title}:"


def ask_skeleton(question: str, most: int) -> str:
    """The prompt for a skeleton of at most so many points."""
    return _SKELETON.format(question=question, most=most)


def ask_point(question: str, points: Sequence[Point]) -> str:
    """The prompt for any one of the points; the answer begins with the heading of the one to write."""
    return _POINT.format(question=question, skeleton="; ".join(point.title for point in points))


def parse_skeleton(text: str, most: int, words: int) -> list[Point]:
    """The first `most` points of a skeleton; a number or title occurs once.

    A title ends at a colon, after which a small model begins to write the point, or after so many words.
    """
    points: list[Point] = []
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        title = first_words(re.split("[:：]", _MARKUP.sub("", match[2]))[0], words).rstrip(" .;,。；，")
        number = int(match[1][:4])
        if title and all(number != point.number and title.casefold() != point.title.casefold() for point in points):
            points.append(Point(number, title))
    return points[:most]


def own_text(text: str) -> str:
    """The text of a point without others that a model went on to write: up to the next line that begins one."""
    lines = text.strip().splitlines()
    stop = next((at for at, line in enumerate(lines[1:], start=1) if _LINE.match(line)), len(lines))
    return "\n".join(lines[:stop]).rstrip()


def assemble(points: Sequence[Point], texts: Sequence[str]) -> str:
    """The answer: every point's heading and text, in the skeleton's order."""
    pairs = zip(points, texts, strict=True)
    return "\n".join(f"{point.heading} {own_text(text)}".rstrip() for point, text in pairs)
