"""Questions of three to eight parts with exact answers, made from a seed: quality that a program can check.

The parts don't depend on each other: arithmetic, sorting, strings, lists, lookups in a table. Every other question ends
with a line that needs the others (the largest of them, their sum, which two agree), so it can't be written beside them:
that is what a join is for. An answer is read by line: part 3 is what follows "3." or "3)" up to the next part.
"""

import dataclasses
import functools
import random
import re
from collections.abc import Callable, Mapping, Sequence

SEED, COUNT = 0, 400
FEWEST, MOST = 3, 8  # parts
LAST = "Last"
NAME = "multipart"

_WORDS = str.split(
    "apple river candle garden window basket copper dragon forest hammer island jacket kitten lemon magnet needle "
    "orange pencil rabbit saddle temple violin walnut yellow anchor bridge carpet danger engine feather"
)
_NAMES = str.split("Ada Ben Cleo Dan Eva Finn Gina Hugo Ines Jon Kira Leo Mona Nils Olga Paul")
_GOODS = str.split("tea rice milk salt bread honey butter coffee sugar flour")


@dataclasses.dataclass(frozen=True)
class Multipart:
    """A question, and what its parts and its last line must say."""

    text: str
    answers: tuple[str, ...]
    last: str | None  # None: the question has no line that needs the others


Part = tuple[str, str]  # the question and its answer


def _arithmetic(rng: random.Random) -> Part:
    kind, a, b = rng.choice("+-*"), rng.randint(11, 99), rng.randint(11, 99)
    if kind == "+":
        return f"What is {a} + {b}?", str(a + b)
    if kind == "-":
        return f"What is {max(a, b)} - {min(a, b)}?", str(abs(a - b))
    b = rng.randint(2, 9)
    return f"What is {a} times {b}?", str(a * b)


def _counting(rng: random.Random) -> Part:
    names = rng.sample(_WORDS, rng.randint(4, 9))
    return f"How many words does this list have: {', '.join(names)}?", str(len(names))


def _lookup(rng: random.Random) -> Part:
    prices = {name: rng.randint(2, 99) for name in rng.sample(_GOODS, 5)}
    asked = rng.choice(list(prices))
    table = ", ".join(f"{name} {price}" for name, price in prices.items())
    return f"These are prices: {table}. What is the price of {asked}?", str(prices[asked])


def _largest(rng: random.Random) -> Part:
    numbers = rng.sample(range(10, 999), 5)
    return f"Which is the largest of {', '.join(map(str, numbers))}?", str(max(numbers))


def _sorted(rng: random.Random) -> Part:
    numbers = rng.sample(range(10, 99), 4)
    asked = f"Sort from smallest to largest, with commas: {', '.join(map(str, numbers))}."
    return asked, ", ".join(map(str, sorted(numbers)))


def _alphabet(rng: random.Random) -> Part:
    names = rng.sample(_NAMES, 4)
    return f"Which of these names is first in the alphabet: {', '.join(names)}?", min(names)


def _joined(rng: random.Random) -> Part:
    names = rng.sample(_WORDS, 3)
    asked = f"Write the first letters of these words as one word: {', '.join(names)}."
    return asked, "".join(name[0] for name in names)


def _at(rng: random.Random) -> Part:
    names, place = rng.sample(_WORDS, 5), rng.randrange(5)
    ordinal = ("first", "second", "third", "fourth", "last")[place]
    return f"What is the {ordinal} word of this list: {', '.join(names)}?", names[place]


_NUMBERS = (_arithmetic, _counting, _lookup, _largest)  # whose answers are numbers
_TEXTS = (_sorted, _alphabet, _joined, _at)


def _dependent(rng: random.Random, parts: list[Part], numeric: Sequence[int]) -> Part:
    """A line that needs the parts at `numeric`; the last of these may be replaced by one that agrees with another."""
    values = {n: int(parts[n][1]) for n in numeric}
    *most, final = (str(n + 1) for n in numeric)
    which = f"{', '.join(most)} and {final}"
    kind = rng.choice(("largest", "sum", "agree"))
    if kind == "agree" and len(numeric) > 2 and len(set(values.values())) == len(values):
        one, other = rng.sample(list(numeric), 2)
        total = int(parts[one][1])
        first = rng.randint(1, total - 1) if total > 1 else 0
        parts[other] = (f"What is {first} + {total - first}?", str(total))
        pair = sorted((one + 1, other + 1))
        return f"the numbers of the two questions among {which} that have the same answer", f"{pair[0]} and {pair[1]}"
    if kind == "sum":
        return f"the sum of the answers to {which}", str(sum(values.values()))
    return f"the largest of the answers to {which}", str(max(values.values()))


def _question(rng: random.Random, with_last: bool) -> Multipart:
    count = rng.randint(FEWEST, MOST)
    makers: list[Callable[[random.Random], Part]] = [rng.choice(_NUMBERS + _TEXTS) for _ in range(count)]
    numeric = sorted(rng.sample(range(count), min(3, count)))
    if with_last:
        for n in numeric:
            makers[n] = rng.choice(_NUMBERS)
    parts = [make(rng) for make in makers]
    last = _dependent(rng, parts, numeric) if with_last else None
    lines = [
        f"Answer these {count} questions. Begin each answer on a line of its own with the number of its question, "
        'as in "1. ...", and end it with the result.',
        *(f"{n}. {asked}" for n, (asked, _) in enumerate(parts, start=1)),
    ]
    if last:
        lines.append(f'Then write a line that begins with "{LAST}:" and has {last[0]}.')
    return Multipart("\n".join(lines), tuple(answer for _, answer in parts), last[1] if last else None)


@functools.cache
def questions() -> dict[str, Multipart]:
    """All questions by text: COUNT of them, half with a last line."""
    rng = random.Random(SEED)
    made = [_question(rng, with_last=number % 2 == 0) for number in range(COUNT)]
    return {one.text: one for one in made}


_LINE = re.compile(rf"^[\W_]*(?:(?P<number>\d{{1,2}})\s*[.):]|(?P<last>{LAST}\b))(?P<rest>.*)$", re.IGNORECASE)


def lines_of(answer: str, count: int) -> dict[int | str, str]:
    """What an answer says under each number up to `count`, and under LAST; the first of several counts.

    Other numbers begin nothing: a line "109." is the end of a part.
    """
    found: dict[int | str, list[str]] = {}
    current: list[str] = []
    for line in answer.splitlines():
        match = _LINE.match(line)
        if match and (match["last"] or 1 <= int(match["number"]) <= count):
            name = LAST if match["last"] else int(match["number"])
            current = [match["rest"]]
            found.setdefault(name, current)
        else:
            current.append(line)
    return {name: " ".join(several) for name, several in found.items()}


def says(text: str, answer: str) -> bool:
    """Whether a text ends with an answer: its words and numbers, in either case, without "and" and punctuation."""
    own, expected = (
        [one for one in re.findall(r"[a-z]+|\d+", re.sub(r"(?<=\d),(?=\d{3}\b)", "", given.casefold())) if one != "and"]
        for given in (text, answer)
    )
    return own[-len(expected) :] == expected


def exactness(texts: Mapping[int, tuple[str, str]]) -> dict[str, dict[int, float]]:
    """Of (question, answer) by number: the share of the parts that are right, and of those with one, the last line."""
    found: dict[str, dict[int, float]] = {"parts_right": {}, "last_right": {}}
    for number, (text, answer) in texts.items():
        question = questions()[text]
        lines = lines_of(answer, len(question.answers))
        right = [says(lines.get(n, ""), expected) for n, expected in enumerate(question.answers, start=1)]
        found["parts_right"][number] = sum(right) / len(right)
        if question.last is not None:
            found["last_right"][number] = float(says(lines.get(LAST, ""), question.last))
    return found
