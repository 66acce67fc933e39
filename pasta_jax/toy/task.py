"""The toy task: walks around fixed rings of words, with exact grading; independent parts and an end that needs all.

An instruction names a few rings, each with the first word and the number of words, and may request the ends:

    birds crow 7
    metals zinc 6
    then name the ends

The answer counts down along each ring, whose order a model must learn, repeats the last word of each walk capitalised,
and then collects those:

    birds crow 7 finch 6 heron 5 gull 4 swan 3 raven 2 hawk 1 Hawk
    metals zinc 6 cobalt 5 nickel 4 lead 3 brass 2 titanium 1 Titanium
    ends birds Hawk metals Titanium

Each token follows from a few others, so a small model learns the walks. Where a walk ends depends on all its steps, so
the last line can be copied from finished walks but hardly predicted before. Hence the parts lose nothing by running in
parallel, and the last line loses everything without its sync. No word is in two rings: a word to look up elsewhere, the
first one or an end, identifies its ring, which a small model learns early and reliably (dev/log/).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from pasta_jax.errors import PastaError
from pasta_jax.lang.program import Program, Tokenizer

RINGS = {
    "birds": "crow dove duck eagle finch gull hawk heron jay kite lark owl raven robin swan wren",
    "boats": "barge canoe clipper cutter dinghy ferry galleon gondola kayak ketch raft schooner skiff sloop tug yawl",
    "colours": "amber azure beige black blue brown coral cream green grey indigo pink purple red teal white",
    "dances": "ballet bolero conga foxtrot gavotte hula jig jive mambo minuet polka reel rumba samba tango waltz",
    "fabrics": "canvas chintz cotton denim felt fleece lace linen muslin satin silk suede tweed velvet voile wool",
    "fish": "bass bream carp cod eel hake perch pike plaice roach salmon shark sole trout tuna turbot",
    "fruits": "apple banana cherry date fig grape lemon lime mango melon orange papaya peach pear plum quince",
    "games": "bingo bridge cards chess darts dice dominoes hopscotch loto ludo poker quoits rummy snap tag whist",
    "gems": "agate beryl diamond emerald garnet jade jasper jet onyx opal pearl quartz ruby sapphire topaz zircon",
    "insects": "ant aphid bee beetle cicada cricket flea fly gnat hornet locust midge moth termite wasp weevil",
    "mammals": "bear boar camel deer fox goat hare horse lion lynx moose otter panda sheep tiger wolf",
    "metals": "brass bronze chrome cobalt copper gold iron lead lithium mercury nickel silver steel tin titanium zinc",
    "spices": "anise basil caraway chili clove cumin dill fennel ginger mace mint nutmeg paprika pepper saffron thyme",
    "sounds": "banjo bugle cello drum fiddle flute gong guitar harp horn lute oboe organ piano tuba viola",
    "tools": "anvil awl axe chisel drill file hammer knife lathe pliers rake saw spade spanner tongs wrench",
    "trees": "ash beech birch cedar elm fir hazel holly larch linden maple oak pine poplar rowan yew",
}
WORDS = tuple(word for words in RINGS.values() for word in words.split())
ENDS_REQUEST = "then name the ends"
HELD_OUT = 0  # the seed of evaluation problems; no other seed draws their instructions

# Ways to annotate an answer. They differ in speed, and `unsynced` in what the last line can see.
STYLES = (
    "each",  # a chunk for each walk
    "last_in_main",  # a chunk for each walk but the last, which main writes meanwhile
    "pairs",  # a chunk for two walks
    "halves",  # a chunk for each of the first half of the walks; main writes the others
    "serial",  # no tags
    "unsynced",  # a chunk for each walk, and the ends without waiting for them
)


@dataclass(frozen=True)
class Level:
    """The size of problems, and how their answers are annotated."""

    rings: int
    words: int  # on each ring, of its 16
    parts: tuple[float, ...]  # weights of instructions with 1, 2, 3, … walks
    steps: tuple[int, int]  # fewest and most words of a walk, less than `words`
    ends: float  # share of instructions with several walks that request the ends
    styles: tuple[float, ...]  # weights of STYLES


_STYLES = (0.22, 0.08, 0.14, 0.13, 0.39, 0.04)  # greedy answers follow the first one; samples vary

LEVELS = {
    "small": Level(4, 8, (1, 2, 2), (4, 7), 0.5, _STYLES),
    "medium": Level(8, 16, (1, 1, 2, 3, 3, 2), (4, 12), 0.5, _STYLES),
    "large": Level(16, 16, (1, 1, 2, 2, 2, 2, 2, 2), (6, 15), 0.5, _STYLES),
}


@dataclass(frozen=True)
class Problem:
    """An instruction with its only correct answer, and that answer annotated in one style."""

    instruction: str
    lines: tuple[str, ...]  # of the answer: one per walk, then perhaps the ends
    has_ends: bool
    style: str
    annotation: str  # the answer with <async> and <sync/>, as Program.from_annotation reads it

    @property
    def answer(self) -> str:
        """The correct answer."""
        return _text(self.lines)

    @property
    def forkable(self) -> bool:
        """Whether the answer has parts that can be written in parallel."""
        return len(self.lines) > 1

    def program(self, tokenizer: Tokenizer) -> Program:
        """The annotated answer with its promises."""
        return Program.from_annotation(self.annotation, tokenizer)

    def grade(self, text: str) -> tuple[bool, ...]:
        """Whether each line is correct: the text contains it, and no other line begins with the same word."""
        actual = text.split("\n")
        return tuple(
            [line for line in actual if line.split(" ")[0] == expected.split(" ")[0]] == [expected]
            for expected in self.lines
        )

    def exact(self, text: str) -> bool:
        """Whether the text equals the correct answer."""
        return text == self.answer


def problems(seed: int, start: int, count: int, level: str) -> list[Problem]:
    """Problems start, start + 1, …; each depends only on seed, number and level."""
    if level not in LEVELS:
        raise PastaError(f"level {level!r}: unknown; choose one of {', '.join(LEVELS)}")
    return [_problem(seed, number, LEVELS[level]) for number in range(start, start + count)]


@cache
def ring(name: str, words: int) -> tuple[str, ...]:
    """The words of a ring in its fixed order, which differs from ring to ring."""
    unordered = RINGS[name].split()
    order = np.random.default_rng([*RINGS].index(name)).permutation(words)
    return tuple(unordered[word] for word in order)


def walk(name: str, words: int, steps: int, first: str) -> list[str]:
    """`steps` words of a ring, from `first` on."""
    order = ring(name, words)
    at = order.index(first)
    return [order[(at + step) % words] for step in range(steps)]


def _problem(seed: int, number: int, level: Level) -> Problem:
    """Draw until the instruction belongs to the seed's side of the split."""
    random = np.random.default_rng([seed, number])
    while True:
        instruction, lines, has_ends = _draw(random, level)
        is_held_out = hashlib.sha256(instruction.encode()).digest()[0] % 8 == 0  # one in eight is for evaluation
        if is_held_out == (seed == HELD_OUT):
            break
    style = STYLES[_pick(random, level.styles)]
    return Problem(instruction, lines, has_ends, style, _annotate(lines, has_ends, style))


def _draw(random: np.random.Generator, level: Level) -> tuple[str, tuple[str, ...], bool]:
    """(instruction, lines of the answer, whether the ends are among them)"""
    parts = 1 + _pick(random, level.parts)
    requests, lines, ends = [], [], ["ends"]
    for number in sorted(random.permutation(level.rings)[:parts]):
        name = list(RINGS)[number]
        first = ring(name, level.words)[random.integers(level.words)]
        steps = int(random.integers(level.steps[0], level.steps[1] + 1))
        words = walk(name, level.words, steps, first)
        requests.append(f"{name} {first} {steps}")
        counted = [f"{word} {steps - step}" for step, word in enumerate(words)]
        lines.append(" ".join([name, *counted, words[-1].capitalize()]))
        ends += [name, words[-1].capitalize()]
    has_ends = parts > 1 and random.random() < level.ends
    if has_ends:
        requests.append(ENDS_REQUEST)
        lines.append(" ".join(ends))
    return "\n".join(requests), tuple(lines), has_ends


def _pick(random: np.random.Generator, weights: tuple[float, ...]) -> int:
    return int(np.searchsorted(np.cumsum(weights), random.random() * sum(weights), side="right"))


def _annotate(lines: tuple[str, ...], has_ends: bool, style: str) -> str:
    """The answer with <async> and <sync/> in one of STYLES."""
    walks, end = (lines[:-1], lines[-1:]) if has_ends else (lines, ())
    count = len(walks)
    match style if count > 1 else "serial":
        case "each" | "unsynced":
            chunks, main = [[line] for line in walks], ()
        case "last_in_main":
            chunks, main = [[line] for line in walks[:-1]], walks[-1:]
        case "pairs":
            chunks, main = [walks[at : at + 2] for at in range(0, count, 2)], ()
        case "halves":
            chunks, main = [[line] for line in walks[: (count + 1) // 2]], walks[(count + 1) // 2 :]
        case "serial":
            return _text(lines)
    pieces = [f"<async topic='{' '.join(map(_name, chunk))}'>{_text(chunk)}</async>" for chunk in chunks]
    # Without ends nothing needs the chunks, so nothing waits for them.
    sync = "<sync/>" if has_ends and style != "unsynced" else ""
    return "".join(pieces) + _text(main) + sync + _text(end)


def _name(line: str) -> str:
    return line.split(" ")[0]


def _text(lines: Sequence[str]) -> str:
    return "".join(line + "\n" for line in lines)
