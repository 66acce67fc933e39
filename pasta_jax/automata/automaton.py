"""Deterministic automata over bytes, and how larger ones are put together: sequences, alternatives, lists.

Parts of a JSON text can be told apart by their first byte, so putting them together never needs several states at a
time: where a part may end, what begins the next one continues nothing of it. Where that doesn't hold, it is refused.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Sequence

import numpy as np

from pasta_jax.errors import PastaError

# Kinds of states
OUTSIDE, INSIDE, ESCAPED = range(3)  # of a string whose characters are counted; ESCAPED: after a backslash in one
UNLIMITED = 1 << 30
MOST_STATES = 1 << 13


class Ambiguous(PastaError):
    """Two parts that begin with the same byte."""


@dataclasses.dataclass(frozen=True, eq=False)
class Automaton:
    """S states; state 0 is the start, and no byte leads back to it."""

    next: np.ndarray  # int32 [S, 256]: the state after a byte; -1: none
    accepts: np.ndarray  # bool [S]
    kind: np.ndarray  # uint8 [S]: OUTSIDE, INSIDE, ESCAPED
    least: np.ndarray  # int32 [S]: characters that the string around an INSIDE or ESCAPED state has at least
    most: np.ndarray  # int32 [S]: likewise at most; UNLIMITED outside of strings

    @functools.cached_property
    def key(self) -> str:
        """Equal automata have equal keys."""
        digest = hashlib.sha256()
        for field in dataclasses.fields(self):
            digest.update(getattr(self, field.name).tobytes())
        return digest.hexdigest()

    @property
    def states(self) -> int:
        """S."""
        return len(self.accepts)

    def walk(self, text: bytes, state: int = 0) -> int:
        """The state after some bytes; -1: none. Characters are not counted."""
        for byte in text:
            if state < 0:
                break
            state = int(self.next[state, byte])
        return state


def of_tables(next_Sx256: np.ndarray, accepts: np.ndarray) -> Automaton:
    """An automaton outside of strings."""
    count = len(accepts)
    if count > MOST_STATES:
        raise PastaError(f"needs more than {MOST_STATES:,} states; make it simpler")
    kind, least = np.zeros(count, np.uint8), np.zeros(count, np.int32)
    return Automaton(
        next_Sx256.astype(np.int32), accepts.astype(bool), kind, least, np.full(count, UNLIMITED, np.int32)
    )


def texts(choices: Sequence[bytes]) -> Automaton:
    """One of some texts."""
    rows: list[dict[int, int]] = [{}]
    ends = set()
    for text in choices:
        state = 0
        for byte in text:
            if byte not in rows[state]:
                rows[state][byte] = len(rows)
                rows.append({})
                if len(rows) > MOST_STATES:
                    raise PastaError(f"needs more than {MOST_STATES:,} states; shorten its texts")
            state = rows[state][byte]
        ends.add(state)
    table = np.full((len(rows), 256), -1, np.int32)
    for state, row in enumerate(rows):
        table[state, list(row)] = list(row.values())
    return of_tables(table, np.isin(np.arange(len(rows)), list(ends)))


def beside(parts: Sequence[Automaton], most: int = MOST_STATES) -> tuple[Automaton, list[int]]:
    """The parts in one table, none connected with another, and where each begins."""
    starts = np.cumsum([0, *(part.states for part in parts)]).tolist()
    if starts[-1] > most:
        raise PastaError(f"needs more than {most:,} states; make it simpler")
    moved = [np.where(part.next >= 0, part.next + at, -1) for part, at in zip(parts, starts, strict=False)]
    columns = ("accepts", "kind", "least", "most")
    rest = (np.concatenate([getattr(part, name) for part in parts]) for name in columns)
    return Automaton(np.concatenate(moved), *rest), starts[:-1]


def _continue(table: np.ndarray, states: Sequence[int], start: int) -> None:
    """Let some states also go on as another one does."""
    old, new = table[states], table[start]
    clash = (old >= 0) & (new >= 0) & (old != new)
    if clash.any():
        byte = int(np.argwhere(clash)[0, 1])
        raise Ambiguous(f"two alternatives begin with {chr(byte)!r}; make them differ at once")
    table[states] = np.where(new >= 0, new, old)


def sequence(*parts: Automaton) -> Automaton:
    """One part after another."""
    whole, starts = beside(parts)
    accepts = np.zeros(whole.states, bool)
    ends = [0]  # of what precedes the next part; states of the whole
    for number, (part, start) in enumerate(zip(parts, starts, strict=True)):
        own = (start + np.flatnonzero(part.accepts)).tolist()
        if number:
            _continue(whole.next, ends, start)
        ends = ([end for end in own if end != start] + (ends if start in own else [])) if number else own
    accepts[ends] = True
    return dataclasses.replace(whole, accepts=accepts)


def either(*parts: Automaton) -> Automaton:
    """One of the parts."""
    if len(parts) == 1:
        return parts[0]
    whole, starts = beside([texts([]), *parts])
    for part, start in zip(parts, starts[1:], strict=True):
        _continue(whole.next, [0], start)
        whole.accepts[0] |= part.accepts[0]
    return whole


def listed(item: Automaton, least: int, most: int | None, brackets: bytes = b"[]") -> Automaton:
    """A JSON list of items, `most` of them at most; None: any number. With other brackets, an object of properties."""
    first_bracket, last_bracket = brackets[:1], brackets[1:]
    opening, gap, closing = texts([first_bracket, first_bracket + b" "]), texts([b",", b", "]), texts([last_bracket])
    if most == 0:
        return texts([brackets])
    # Items with what stands before each; if there may be any number, the last one repeats.
    count = max(least, 1) if most is None else most
    parts = [opening, item] + (count - 1) * [gap, item] + ([gap] if most is None else []) + [closing]
    full, starts = beside(parts)
    befores, items, closed = starts[:-1:2], starts[1:-1:2], starts[-1]
    ends = [at + np.flatnonzero(part.accepts) for at, part in zip(starts, parts, strict=True)]
    for number, start in enumerate(befores):
        _continue(full.next, ends[2 * number], items[min(number, count - 1)])
        if number:
            _continue(full.next, ends[2 * number - 1], start)
    for number in range(max(least, 1), count + 1):
        _continue(full.next, ends[2 * number - 1], closed)
    if not least:  # what closes it may follow the opening bracket at once
        _continue(full.next, [int(full.next[0, brackets[0]])], closed)
    accepts = np.zeros(full.states, bool)
    accepts[ends[-1]] = True
    return dataclasses.replace(full, accepts=accepts)


def pruned(whole: Automaton) -> Automaton:
    """Only the states that can be reached, in their order."""
    seen, waiting = {0}, [0]
    for state in waiting:
        new = set(np.unique(whole.next[state]).tolist()) - seen - {-1}
        seen |= new
        waiting += sorted(new)
    kept = np.array(sorted(seen))
    new_number = np.full(whole.states + 1, -1, np.int32)
    new_number[kept] = np.arange(len(kept))
    columns = (getattr(whole, name)[kept] for name in ("accepts", "kind", "least", "most"))
    return Automaton(new_number[whole.next[kept]], *columns)
