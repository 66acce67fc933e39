"""Automata over tokens: which ids may follow in a state, as bit masks; states are those of the automaton over bytes.

What a token does to a state isn't stored: the device walks through its few bytes. A table of all tokens would take a
thousand times as much memory: Qwen's 152 thousand ids x 100 states x 2 bytes are 30 MB, their masks 2 MB, of which many
are equal. Lengths of strings are no states either, but a number that the device counts.
"""

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np

from pasta_jax.automata.automaton import ESCAPED, INSIDE, OUTSIDE, UNLIMITED, Automaton, beside, of_tables, pruned
from pasta_jax.automata.values import QUOTE
from pasta_jax.automata.vocabulary import Pieces, begins_character
from pasta_jax.errors import PastaError

MOST_MASKS = 1024  # 20 MB for Qwen
MOST_WORK = 1 << 24  # tokens looked at, which takes about a second
TAIL = 3  # states of what may follow a value in its last token


@dataclasses.dataclass(frozen=True, eq=False)
class TokenAutomaton:
    """S states and K masks over V ids, V a multiple of 32."""

    next: np.ndarray  # int16 [S, 256]: the state after a byte; -1: none
    mask_of: np.ndarray  # int32 [S]: the mask of a state
    masks: np.ndarray  # uint32 [K, V / 32]: bit i of word w: id 32 w + i may follow
    done: np.ndarray  # bool [S]: the value is complete, and nothing follows
    kind: np.ndarray  # uint8 [S]
    least: np.ndarray  # int32 [S]
    most: np.ndarray  # int32 [S]
    key: str  # equal automata have equal keys

    walk = Automaton.walk  # by the table alone


ARRAYS = tuple(field.name for field in dataclasses.fields(TokenAutomaton) if field.name != "key")


def over_tokens(automaton: Automaton, pieces: Pieces, starts: Sequence[bytes] = (b"",)) -> TokenAutomaton:
    """The automaton of a value's tokens, which may begin after any of these texts.

    A value's last token may also bring what follows it in JSON: a space or line break, a comma or a closing brace, the
    next quote. Otherwise a model that writes '",' as one token would have to go on with the string.
    """
    whole = _with_tail(pruned(automaton))
    in_value = (whole.next >= 0) & (whole.next < whole.states - TAIL)  # the states of the tail are the last ones
    done = whole.accepts & ~in_value.any(axis=1)
    begins = [whole.walk(text) for text in starts]
    table, number, ends_ok = whole.next, {}, np.ones(whole.states, bool)
    masks: list[np.ndarray] = []
    found = _masks(whole, pieces, begins, done, ends_ok)
    if dead := _dead({state: needs for state, (_, needs) in found.items() if needs is not None}):
        ends_ok[dead] = False
        if not ends_ok[begins].all():
            raise PastaError("no text of this tokenizer is one of its values; change it")
        found = _masks(whole, pieces, begins, done, ends_ok)
    mask_of = np.zeros(whole.states, np.int32)
    for state, (mask, _) in found.items():
        packed = mask.tobytes()
        if packed not in number:
            number[packed] = len(masks)
            masks.append(mask)
        mask_of[state] = number[packed]
    if len(masks) > MOST_MASKS:
        raise PastaError(f"needs more than {MOST_MASKS:,} masks; make it simpler")
    stacked = np.stack(masks or [np.zeros(pieces.size // 32, np.uint32)])
    arrays = (table.astype(np.int16), mask_of, stacked, done, whole.kind, whole.least, whole.most)
    key = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
    return TokenAutomaton(*arrays, key=key)


def joined(automata: Sequence[TokenAutomaton]) -> tuple[TokenAutomaton, list[int]]:
    """Several automata as one, equal ones once, and the first state of each."""
    distinct = list({automaton.key: automaton for automaton in automata}.values())
    states = np.cumsum([0, *(len(one.done) for one in distinct)])
    masks = np.cumsum([0, *(len(one.masks) for one in distinct)])
    first = {one.key: int(at) for one, at in zip(distinct, states, strict=False)}
    if len(distinct) == 1:
        return distinct[0], [0] * len(automata)
    if states[-1] >= 1 << 15:
        raise PastaError(f"needs {states[-1]:,} states, at most {1 << 15:,} fit; ask for less at a time")
    moved = {
        "next": [np.where(one.next >= 0, one.next + at, -1) for one, at in zip(distinct, states, strict=False)],
        "mask_of": [one.mask_of + at for one, at in zip(distinct, masks, strict=False)],
    }
    columns = {name: np.concatenate(moved.get(name) or [getattr(one, name) for one in distinct]) for name in ARRAYS}
    columns["next"] = columns["next"].astype(np.int16)
    whole = TokenAutomaton(**columns, key=" ".join(first))
    return whole, [first[automaton.key] for automaton in automata]


def _with_tail(value: Automaton) -> Automaton:
    """The automaton of a value and of what may follow it in the same token."""
    tail = np.full((TAIL, 256), -1)  # after a blank, after a comma or brace, after a quote
    tail[0, list(b" \n")], tail[0, list(b",}")] = 0, 1
    tail[1, list(b" \n")], tail[1, QUOTE] = 1, 2
    whole, (_, blank) = beside([value, of_tables(tail, np.ones(TAIL))], value.states + TAIL)
    for bytes_, to in ((b" \n", blank), (b",}", blank + 1)):
        for byte in bytes_:
            ends = np.flatnonzero(value.accepts & (value.next[:, byte] < 0))
            whole.next[ends, byte] = to
    return whole


def _masks(
    whole: Automaton, pieces: Pieces, begins: Sequence[int], done: np.ndarray, ends_ok: np.ndarray
) -> dict[int, tuple[np.ndarray, list[int] | None]]:
    """For each state that tokens reach and that isn't done: its mask, and the states of which a value must go on to one
    from here; None: it may end here."""
    is_tail = np.arange(whole.states) >= whole.states - TAIL
    found: dict[int, tuple[np.ndarray, list[int] | None]] = {}
    waiting = list(dict.fromkeys(begins))
    queued = set(waiting)
    work = 0
    counts = bool((whole.least > 0).any() or (whole.most < UNLIMITED).any())
    for state in waiting:
        if done[state] or is_tail[state] or not ends_ok[state]:
            continue
        at, end = _walk(whole, pieces, state, counts)
        at, end = at[ends_ok[end]], end[ends_ok[end]]
        work += len(at)
        if work > MOST_WORK:
            raise PastaError("has too many states in which most tokens may follow; lower maxItems or ask for less")
        ids = pieces.sorted_ids[at]
        bits = np.zeros(pieces.size, bool)
        bits[ids] = True
        needs = end
        if whole.kind[state] != OUTSIDE:  # also when no further character fits
            needs = end[pieces.chars[int(whole.kind[state] == ESCAPED), ids] == 0]
        if whole.accepts[state]:
            bits[list(pieces.stop_ids)] = True
        mask = np.packbits(bits, bitorder="little").view(np.uint32)
        found[state] = mask, None if whole.accepts[state] else np.unique(needs).tolist()
        new = [one for one in np.unique(end).tolist() if one not in queued]
        queued.update(new)
        waiting += new
    return found


def _dead(needs: dict[int, list[int]]) -> list[int]:
    """The states from which no value can be completed: each needs one of some states, and none leads to an end."""
    before: dict[int, list[int]] = {}
    for state, others in needs.items():
        for other in others:
            before.setdefault(other, []).append(state)
    alive = [other for other in before if other not in needs]
    found = set(alive)
    for state in alive:  # which grows
        new = [one for one in before.get(state, ()) if one not in found]
        found.update(new)
        alive += new
    return [state for state in needs if state not in found]


def _walk(whole: Automaton, pieces: Pieces, state: int, counts: bool) -> tuple[np.ndarray, np.ndarray]:
    """The tokens that may follow in a state, as places in `sorted_ids`, and their states after it.

    Of a string that is open in `state`, the device counts the characters; of others in the same token, this function.
    """
    next_Sx256 = whole.next
    allowed = np.flatnonzero(next_Sx256[state] >= 0)
    at = np.concatenate([np.zeros(0, int), *(np.arange(*pieces.begins[byte : byte + 2]) for byte in allowed)])
    states = np.full(len(at), state)
    count = np.full(len(at), 0 if whole.kind[state] == OUTSIDE else -UNLIMITED)
    ends, finals = [], []
    for place in range(pieces.bytes_NxL.shape[1]):
        byte = pieces.bytes_NxL[at, place]
        after = next_Sx256[states, byte]
        lives = after >= 0
        if counts:
            inside = whole.kind[states] == INSIDE
            closing = inside & (byte == QUOTE)
            lives &= ~(closing & (count >= 0) & (count < whole.least[states]))
            count = count + (inside & ~closing & begins_character(byte))
            lives &= count <= whole.most[states]
            count = np.where((whole.kind[states] == OUTSIDE) & (whole.kind[after] == INSIDE), 0, count)
        ended = lives & (pieces.lengths[at] == place + 1)
        ends.append(at[ended])
        finals.append(after[ended])
        goes_on = lives & ~ended
        at, states, count = at[goes_on], after[goes_on], count[goes_on]
        if not len(at):
            break
    return np.concatenate(ends), np.concatenate(finals)
