"""The toy task: walks around fixed rings of words, exactly checkable; parts that fork, and an end that needs them all.

An instruction names a few rings, each with a word to begin from and how many words to say, and perhaps asks for the
ends:

    birds crow 7
    metals zinc 6
    then name the ends

The answer counts down along each ring, whose order is to be learnt, says in a capital where the walk ended, and then
gathers that:

    birds crow 7 gull 6 wren 5 hawk 4 jay 3 duck 2 swan 1 Swan
    metals zinc 6 tin 5 gold 4 lead 3 iron 2 brass 1 Brass
    ends birds Swan metals Brass

Each token follows from a few others, so a small model learns the walks; where a walk ends is a matter of all its steps,
so the last line can be copied from finished walks but hardly be guessed ahead of them. Hence parts lose nothing by
running side by side, and the last line loses all without its sync. Every ring has words of its own: what must be looked
up elsewhere, a first word or an end, is told by itself, which a small model learns early and surely (docs/LOG.md).
"""

import hashlib
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
    words: int  # on each ring, of its 16
    parts: tuple[float, ...]  # how often an instruction has 1, 2, 3, … walks, as weights
    steps: tuple[int, int]  # fewest and most words of a walk; fewer than `words`
    ends: float  # the share of instructions with several walks that ask for the ends
    styles: tuple[float, ...]  # how often each of STYLES is drawn, as weights


_STYLES = (0.22, 0.08, 0.14, 0.13, 0.39, 0.04)  # greedy answers take the first, sampled ones leave room for choice

LEVELS = {
    "small": Level(4, 8, (1, 2, 2), (4, 7), 0.5, _STYLES),
    "medium": Level(8, 16, (1, 1, 2, 3, 3, 2), (4, 12), 0.5, _STYLES),
    "large": Level(16, 16, (1, 1, 2, 2, 2, 2, 2, 2), (6, 15), 0.5, _STYLES),
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
    """The words of a ring in their fixed order, which no other ring has."""
    own = RINGS[name].split()
    order = np.random.default_rng([*RINGS].index(name)).permutation(words)
    return tuple(own[word] for word in order)


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
    for number in sorted(random.permutation(level.rings)[:parts]):
        name = list(RINGS)[number]
        first = ring(name, level.words)[random.integers(level.words)]
        steps = int(random.integers(level.steps[0], level.steps[1] + 1))
        walked = walk(name, level.words, steps, first)
        asked.append(f"{name} {first} {steps}")
        counted = [f"{word} {steps - step}" for step, word in enumerate(walked)]
        lines.append(" ".join([name, *counted, walked[-1].capitalize()]))
        ends += [name, walked[-1].capitalize()]
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
