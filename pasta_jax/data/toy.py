"""The toy task: walks around fixed rings of words, exactly checkable; parts that fork, and an end that needs them all.

An instruction names a few rings, each with a word to begin from and how many words to say, and perhaps asks for the
ends:

    amber owl 7
    jade fox 6
    then name the ends

The answer counts down along each ring, whose order is to be learnt, says where the walk ended, and then gathers that:

    amber owl 7 elk 6 hen 5 bat 4 cow 3 jay 2 ant 1 so amber ant
    jade fox 6 cat 5 owl 4 hen 3 ant 2 bee 1 so jade bee
    ends amber ant jade bee

Each token follows from a few others, so a small model learns the walks; where a walk ends is a matter of all its steps,
so the last line can be copied from finished walks but hardly be guessed ahead of them. Hence parts lose nothing by
running side by side, and the last line loses all without its sync.
"""

import hashlib
from dataclasses import dataclass
from functools import cache

import numpy as np

from pasta_jax.errors import PastaError
from pasta_jax.lang.program import Program, Tokenizer

_COLOURS = "amber azure beige coral cream ebony gold green ivory jade lilac mauve olive peach rose teal"
_ANIMALS = (
    "ant bat bee cat cow crow deer dog duck elk fox frog goat hare hawk hen "
    "ibis jay kite lamb lark lion lynx mole moth mule newt owl puma seal swan wolf"
)
RINGS = tuple(_COLOURS.split())
WORDS = tuple(_ANIMALS.split())
ENDS_ASKED = "then name the ends"
HELD_OUT = 0  # the seed of problems to measure on; all other seeds leave its instructions out

# How an answer may be annotated. They differ in speed, and `unsynced` in what the last line can know.
STYLES = (
    "each",  # a chunk for each walk
    "last_in_main",  # the same, but main goes the last walk itself meanwhile
    "pairs",  # a chunk for two walks
    "halves",  # the first half of the walks as chunks, the others by main
    "serial",  # no tags
    "unsynced",  # a chunk for each walk, and the ends at once
)


@dataclass(frozen=True)
class Level:
    """How large the problems are, and how their answers are annotated."""

    rings: int
    words: int  # on each ring
    parts: tuple[float, ...]  # how often an instruction has 1, 2, 3, … walks, as weights
    steps: tuple[int, int]  # fewest and most words of a walk; fewer than `words`
    ends: float  # the share of instructions with several walks that ask for the ends
    styles: tuple[float, ...]  # how often each of STYLES is drawn, as weights


_STYLES = (0.4, 0.1, 0.2, 0.1, 0.1, 0.1)

LEVELS = {
    "small": Level(4, 8, (1, 2, 2), (4, 7), 0.5, _STYLES),
    "medium": Level(8, 16, (1, 1, 2, 3, 3, 2), (6, 14), 0.5, _STYLES),
    "large": Level(16, 32, (1, 1, 2, 2, 2, 2, 2, 2), (6, 30), 0.5, _STYLES),
}


@dataclass(frozen=True)
class Problem:
    """One instruction with its only right answer, and that answer annotated in one style."""

    instruction: str
    lines: tuple[str, ...]  # of the answer: a walk each, then perhaps the ends
    has_ends: bool
    style: str
    annotation: str  # the answer with <async> and <sync/>, as Program.from_annotation reads it

    @property
    def answer(self) -> str:
        return _text(self.lines)

    @property
    def forkable(self) -> bool:
        """Whether the answer has parts that can be written at the same time."""
        return len(self.lines) > 1

    def program(self, tokenizer: Tokenizer) -> Program:
        """The annotated answer with its promises."""
        return Program.from_annotation(self.annotation, tokenizer)

    def grade(self, text: str) -> tuple[bool, ...]:
        """Whether each line is right: it stands in the text, and no other line begins with the same word."""
        said = text.split("\n")
        return tuple(
            [line for line in said if line.split(" ")[0] == want.split(" ")[0]] == [want] for want in self.lines
        )

    def exact(self, text: str) -> bool:
        """Whether the whole text is right, to the byte."""
        return text == self.answer


def problems(seed: int, start: int, count: int, level: str) -> list[Problem]:
    """Problems start, start + 1, …: each depends on seed, number and level alone."""
    if level not in LEVELS:
        raise PastaError(f"level {level!r}: there is none of this name; choose one of {', '.join(LEVELS)}")
    return [_problem(seed, number, LEVELS[level]) for number in range(start, start + count)]


@cache
def ring(name: str, words: int) -> tuple[str, ...]:
    """The words of a ring in their fixed order; each ring has its own, some shared with others."""
    order = np.random.default_rng([RINGS.index(name), words]).permutation(len(WORDS))[:words]
    return tuple(WORDS[word] for word in order)


def walk(name: str, words: int, steps: int, first: str) -> list[str]:
    """So many words of a ring, from `first` on."""
    order = ring(name, words)
    at = order.index(first)
    return [order[(at + step) % words] for step in range(steps)]


def _problem(seed: int, number: int, level: Level) -> Problem:
    """Drawn again until its instruction lies on the side of the split that the seed is for."""
    random = np.random.default_rng([seed, number])
    while True:
        instruction, lines, has_ends = _draw(random, level)
        if _is_held_out(instruction) == (seed == HELD_OUT):
            break
    style = STYLES[_pick(random, level.styles)]
    return Problem(instruction, lines, has_ends, style, _annotate(lines, has_ends, style))


def _is_held_out(instruction: str) -> bool:
    """One instruction in eight, told by itself."""
    return hashlib.sha256(instruction.encode()).digest()[0] % 8 == 0


def _draw(random: np.random.Generator, level: Level) -> tuple[str, tuple[str, ...], bool]:
    parts = 1 + _pick(random, level.parts)
    asked, lines, ends = [], [], ["ends"]
    for name in random.permutation(level.rings)[:parts]:
        name = RINGS[name]
        first = ring(name, level.words)[random.integers(level.words)]
        steps = int(random.integers(level.steps[0], level.steps[1] + 1))
        walked = walk(name, level.words, steps, first)
        asked.append(f"{name} {first} {steps}")
        counted = [f"{word} {steps - step}" for step, word in enumerate(walked)]
        lines.append(" ".join([name, *counted, "so", name, walked[-1]]))
        ends += [name, walked[-1]]
    has_ends = parts > 1 and random.random() < level.ends
    if has_ends:
        asked.append(ENDS_ASKED)
        lines.append(" ".join(ends))
    return "\n".join(asked), tuple(lines), has_ends


def _pick(random: np.random.Generator, weights: tuple[float, ...]) -> int:
    return int(np.searchsorted(np.cumsum(weights), random.random() * sum(weights), side="right"))


def _annotate(lines: tuple[str, ...], has_ends: bool, style: str) -> str:
    walks, end = (lines[:-1], lines[-1:]) if has_ends else (lines, ())
    count = len(walks)
    match style if count > 1 else "serial":
        case "each" | "unsynced":
            chunks, own = [[line] for line in walks], ()
        case "last_in_main":
            chunks, own = [[line] for line in walks[:-1]], walks[-1:]
        case "pairs":
            chunks, own = [walks[at : at + 2] for at in range(0, count, 2)], ()
        case "halves":
            chunks, own = [[line] for line in walks[: (count + 1) // 2]], walks[(count + 1) // 2 :]
        case "serial":
            return _text(lines)
    pieces = [f"<async topic='{' '.join(map(_name, chunk))}'>{_text(chunk)}</async>" for chunk in chunks]
    # Without ends nothing needs the chunks, and they run to their end by themselves.
    sync = "<sync/>" if has_ends and style != "unsynced" else ""
    return "".join(pieces) + _text(own) + sync + _text(end)


def _name(line: str) -> str:
    return line.split(" ")[0]


def _text(lines) -> str:
    return "".join(line + "\n" for line in lines)
