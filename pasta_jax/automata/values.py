"""JSON values as automata: strings, numbers, dates, choices. Each accepts one canonical text of a value.

Canonical: characters stand as themselves in UTF-8, and only what must be escaped is, with two characters. An integer
has at most 18 digits, so that every reader holds it.
"""

import dataclasses
import json
import re
from collections.abc import Sequence

import numpy as np

from pasta_jax.automata.automaton import (
    ESCAPED,
    INSIDE,
    OUTSIDE,
    UNLIMITED,
    Automaton,
    either,
    of_tables,
    pruned,
    sequence,
    texts,
)
from pasta_jax.automata.regex import trusted, untrusted
from pasta_jax.errors import PastaError

QUOTE, BACKSLASH = 0x22, 0x5C
ESCAPES = {ord(char): byte for char, byte in zip('"\\ntrbf', (QUOTE, BACKSLASH, 10, 9, 13, 8, 12), strict=True)}
DIGITS = 18
LONGEST = 1000  # characters of a pattern

_YEAR = "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_BY_4 = "(0[48]|[2468][048]|[13579][26])"
_DAY = (
    f"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
    f"|([0-9]{{2}}{_BY_4}|{_BY_4}00)-02-29)"
)
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
FORMATS = {
    "date": _DAY,
    "time": _TIME,
    "date-time": f"{_DAY}T{_TIME}",
    "uuid": "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
}


def choice(values: Sequence[object]) -> Automaton:
    """One of some JSON values."""
    return texts([json.dumps(value, ensure_ascii=False).encode() for value in values])


def number() -> Automaton:
    """Any number of at most fifteen digits before the point, which may be -0."""
    whole = sequence(_optional(texts([b"-"])), _between(0, 10**15 - 1))
    exponent = sequence(texts([b"e", b"e-", b"e+"]), _digits(1, 2))
    return sequence(whole, _optional(sequence(texts([b"."]), _digits(1, 12))), _optional(exponent))


def integer(least: int | None = None, most: int | None = None) -> Automaton:
    """An integer between two bounds."""
    bound = 10**DIGITS - 1
    low, high = max(-bound, -bound if least is None else least), min(bound, bound if most is None else most)
    if low > high:
        raise PastaError(
            f"no integer of at most {DIGITS} digits is between minimum {least} and maximum {most}; change them"
        )
    parts = [sequence(texts([b"-"]), _between(max(1, -high), -low))] if low < 0 else []
    return either(*parts, *([_between(max(0, low), high)] if high >= 0 else []))


def _optional(part: Automaton) -> Automaton:
    return dataclasses.replace(part, accepts=part.accepts | (np.arange(part.states) == 0))


def _digits(least: int, most: int) -> Automaton:
    table = np.full((most + 1, 256), -1, np.int32)
    table[:most, ord("0") : ord("9") + 1] = np.arange(1, most + 1)[:, None]
    return of_tables(table, np.arange(most + 1) >= least)


def _between(low: int, high: int) -> Automaton:
    """The decimal numbers from one number to another, neither negative."""

    def after(prefix: int, digits: int) -> tuple[int, ...]:
        """For each count of digits that may follow: NONE, ALL, or the prefix where only some do. This is a state."""
        found = []
        for more in range(DIGITS + 1 - digits):
            first, last = prefix * 10**more, (prefix + 1) * 10**more - 1
            outside, inside = last < low or first > high, low <= first and last <= high
            found.append(-1 if outside else -2 if inside else prefix)
        while found and found[-1] == -1:
            found.pop()
        return tuple(found)

    numbers: dict[tuple[int, ...], int] = {}
    rows, ends, waiting = [[-1] * 10], [False], [(0, 0, 0)]  # (state, its prefix, its digits)
    for state, prefix, digits in waiting:
        for digit in range(10) if digits == 0 or prefix else ():  # nothing follows a leading 0
            key = after(10 * prefix + digit, digits + 1)
            if digits == 0 and digit == 0:
                key = key[:1] if key[:1] == (-2,) else ()
            if key and key not in numbers:
                numbers[key] = len(rows)
                rows.append([-1] * 10)
                ends.append(key[0] == -2)
                waiting.append((numbers[key], 10 * prefix + digit, digits + 1))
            rows[state][digit] = numbers.get(key, -1)
    table = np.full((len(rows), 256), -1, np.int32)
    table[:, ord("0") : ord("9") + 1] = rows
    return of_tables(table, np.array(ends))


def string(least: int = 0, most: int | None = None) -> Automaton:
    """A string of some number of characters (Unicode code points), which the device counts."""
    if most is not None and least > most:
        raise PastaError(f"minLength {least} is above maxLength {most}; lower it")
    quoted = _quoted(trusted("(?s:.)*"))
    if not least and most is None:
        return pruned(quoted)
    size = (quoted.states - 2) // 2
    kind = np.repeat([OUTSIDE, INSIDE, ESCAPED, OUTSIDE], [1, size, size, 1]).astype(np.uint8)
    least = np.where(kind == OUTSIDE, 0, least).astype(np.int32)
    most = np.where(kind == OUTSIDE, UNLIMITED, UNLIMITED if most is None else most).astype(np.int32)
    return pruned(dataclasses.replace(quoted, kind=kind, least=least, most=most))


def formatted(name: str) -> Automaton:
    """A string of one of the FORMATS."""
    return pruned(_quoted(trusted(FORMATS[name])))


# Readers differ: re with and without ASCII, JavaScript, versions of Unicode. What is written is right for all of them:
# each class holds what all count in it, and within [^…] what any does.
_MOST = {"d": r"\d", "w": r"\w\p{L}\p{N}\p{Cn}", "s": r"\s\x1C-\x1F\u180E\uFEFF"}
_LEAST = {"d": "0-9", "w": "0-9A-Za-z_", "s": r" \t\n\r"}
_POSITIVE, _NEGATED = (
    {letter: f"[{text}]" for letter, text in these.items()}
    | {letter.upper(): f"[^{text}]" for letter, text in others.items()}
    for these, others in ((_LEAST, _MOST), (_MOST, _LEAST))
)
_ANY = r"[^\n\r\u2028\u2029]"
_CLASS = r"\[(\^?)(\]?(?:\\.|[^\]\\])*)\]"  # a ] that stands first is a character of the class
_PARTS = re.compile(rf"\\(.)|{_CLASS}|\.", re.DOTALL)


def matching(pattern: str) -> tuple[Automaton, float]:
    """A string in which an expression matches, all of it only between ^ and $; and the seconds it took to compile."""
    if len(pattern) > LONGEST:
        raise PastaError(f"pattern: has more than {LONGEST:,} characters; shorten it")
    escapes = len(pattern[:-1]) - len(pattern[:-1].rstrip("\\"))  # before the last character
    begins, ends = pattern.startswith("^"), pattern.endswith("$") and escapes % 2 == 0
    inner = pattern[begins : len(pattern) - ends]
    if (begins or ends) and "|" in inner and not _is_group(inner):
        raise PastaError("pattern: alternatives beside ^ or $ are ambiguous; put them into a group, as ^(a|b)$")
    if anchor := re.search("[$^]", _bare(inner)):
        raise PastaError(f"pattern: {anchor[0]} within it; write them around all of it alone, as ^(a|b)$")
    if twice := re.search(r"[*+?}]\+", _bare(inner)):
        raise PastaError(f"pattern: {twice[0]} has several meanings; put what the + repeats into a group")
    inner = _PARTS.sub(_for_all_readers, inner)
    content, seconds = untrusted(f"{'' if begins else '(?s:.)*'}(?:{inner}){'' if ends else '(?s:.)*'}")
    return pruned(_quoted(content)), seconds


def _for_all_readers(part: re.Match[str]) -> str:
    """An escape, a class or a dot as one that means the same to all readers."""
    escape, negated, inner = part.groups()
    if escape is not None:
        return _POSITIVE.get(escape, part[0])
    if inner is None:
        return _ANY
    if operator := re.search(r"\[|&&|--|~~", re.sub(r"\\.", "x", inner, flags=re.DOTALL)):
        raise PastaError(f"pattern: {operator[0]} within [ ] has several meanings; put backslashes before it")
    sets = _NEGATED if negated else _POSITIVE
    # A - before a set of characters stands for itself.
    inner = re.sub(
        r"\\(.)|-(?=\\[dwsDWS])", lambda one: sets.get(one[1], one[0]) if one[1] else r"\-", inner, flags=re.DOTALL
    )
    return f"[{negated}{inner}]"


def _is_group(text: str) -> bool:
    """Whether a | stands only within groups or classes of characters."""
    depth = 0
    for character in _bare(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "|" and depth <= 0:
            return False
    return True


def _bare(text: str) -> str:
    """An expression without escapes and classes of characters."""
    return re.sub(_CLASS, "x", re.sub(r"\\.", "x", text, flags=re.DOTALL))


def _quoted(content: Automaton) -> Automaton:
    """The JSON string with this content: a quote, states of the content, of escapes in it, and the end."""
    size = content.states
    opened, escaped, closed = 1, 1 + size, 1 + 2 * size  # the first state of each part; 0 is before the quote
    table = np.full((closed + 1, 256), -1, np.int32)
    table[0, QUOTE] = opened
    moved = np.where(content.next >= 0, content.next + opened, -1)
    plain = np.ones(256, bool)
    plain[[*range(0x20), QUOTE, BACKSLASH]] = False
    table[opened:escaped] = np.where(plain, moved, -1)
    for letter, byte in ESCAPES.items():
        table[escaped:closed, letter] = moved[:, byte]
    has_escape = (table[escaped:closed] >= 0).any(axis=1)
    table[opened:escaped, BACKSLASH] = np.where(has_escape, np.arange(escaped, closed), -1)
    table[opened:escaped, QUOTE] = np.where(content.accepts, closed, -1)
    return of_tables(table, np.arange(len(table)) == closed)
