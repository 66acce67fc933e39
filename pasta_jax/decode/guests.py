"""Guests: threads given from outside instead of promised by main. Each sees the prompt and itself, at the positions and
with the random numbers that it would have as a request of its own, and may be held to a token automaton.

The prompt is what the guests' own prompts share. It is written once; main writes nothing. A guest ends when its value
is complete, with a stop id, or with its last token; what it samples last is never fed. An automaton's state is one
integer per thread. A step gathers the bit mask of each row's state, and walks through the bytes of the tokens it has
sampled: the host is not asked.
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.automata.automaton import INSIDE, OUTSIDE, UNLIMITED
from pasta_jax.automata.tokens import ARRAYS, TokenAutomaton
from pasta_jax.automata.values import QUOTE
from pasta_jax.automata.vocabulary import Pieces, begins_character
from pasta_jax.decode.settings import Room
from pasta_jax.errors import PastaError

FREE = -1  # the state of a thread without an automaton


# On the device, the automaton of each lane: the arrays with a first axis [B].
jax.tree_util.register_dataclass(TokenAutomaton, ARRAYS, ["key"])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Words:
    """What the ids add to a text. See automata/vocabulary.py."""

    data: jax.Array  # uint8 [T]
    begin: jax.Array  # int32 [V + 1]
    chars: jax.Array  # uint8 [2, V]
    closes: jax.Array  # bool [2, V]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Guests:
    """The guests of each lane: its threads from 1 to `count`."""

    count: jax.Array  # int32 [B]; 0: none, the lane's threads are main and its chunks
    budget: jax.Array  # int32 [B]: tokens that each may sample
    state: jax.Array  # int32 [B, M]: of its automaton, or FREE
    chars: jax.Array  # int32 [B, M]: characters of the string it is in
    table: TokenAutomaton
    words: Words


def no_guests(lanes: int, threads: int, room: Room, pieces: Pieces) -> Guests:
    """Lanes without guests."""

    def full(*shape: int, value: int = 0, dtype: jnp.dtype = jnp.int32) -> jax.Array:
        return jnp.full((lanes, *shape), value, dtype)

    return Guests(
        count=full(),
        budget=full(),
        state=full(threads, value=FREE),
        chars=full(threads),
        table=TokenAutomaton(
            next=full(room.states, 256, value=-1, dtype=jnp.int16),
            mask_of=full(room.states),
            masks=full(room.masks, pieces.size // 32, dtype=jnp.uint32),
            done=full(room.states, dtype=jnp.bool),
            kind=full(room.states, dtype=jnp.uint8),
            least=full(room.states),
            most=full(room.states, value=UNLIMITED),
            key="",
        ),
        words=Words(*map(jnp.asarray, (pieces.data, pieces.start, pieces.chars, pieces.closes))),
    )


def room_for(automata: Sequence[TokenAutomaton]) -> Room:
    """Room for each of some automata, rounded up so that few programs are compiled."""
    states, masks = 256, 64
    for automaton in automata:
        while states < len(automaton.done):
            states *= 2
        while masks < len(automaton.masks):
            masks *= 2
    return Room(states, masks)


def require_room(automaton: TokenAutomaton, room: Room) -> None:
    """Refuse an automaton that is too large for a loop."""
    states, masks = len(automaton.done), len(automaton.masks)
    if states > room.states or masks > room.masks:
        raise PastaError(
            f"the schema: needs {states} states and {masks} masks, but there is room for {room.states} and "
            f"{room.masks}; ask for less at a time"
        )


def padded(automaton: TokenAutomaton, room: Room) -> TokenAutomaton:
    """An automaton as a lane's part of the tables, on the host."""
    require_room(automaton, room)

    def filled(array: np.ndarray, rows: int) -> np.ndarray:
        return np.pad(array, [(0, rows - len(array))] + [(0, 0)] * (array.ndim - 1))

    rows = dict.fromkeys(ARRAYS, room.states) | {"masks": room.masks}
    return TokenAutomaton(**{name: filled(getattr(automaton, name), rows[name]) for name in ARRAYS}, key="")


@functools.partial(jax.jit, donate_argnames="guests")
def install(guests: Guests, lane: jax.Array, table: TokenAutomaton) -> Guests:
    """Give a lane another automaton."""
    new = jax.tree.map(lambda field, value: field.at[lane].set(value), guests.table, table)
    return dataclasses.replace(guests, table=new)


def allowed(guests: Guests, lane_N: jax.Array, thread_N: jax.Array, size: int) -> jax.Array:
    """bool [N, size]: the ids that may follow in these threads."""
    table, words = guests.table, guests.words
    state_N, chars_N = guests.state[lane_N, thread_N], guests.chars[lane_N, thread_N]
    safe_N = jnp.maximum(state_N, 0)
    words_NxW = table.masks[lane_N, table.mask_of[lane_N, safe_N]]
    bits_NxWx32 = (words_NxW[:, :, None] >> jnp.arange(32, dtype=jnp.uint32)[None, None]) & 1
    allowed_NxV = (bits_NxWx32 != 0).reshape(len(state_N), -1)

    def within_lengths() -> jax.Array:
        kind_N, least_N, most_N = (field[lane_N, safe_N] for field in (table.kind, table.least, table.most))
        after_N = (kind_N != INSIDE).astype(jnp.int32)  # ESCAPED; of the others, nothing is read
        total_NxV = chars_N[:, None] + words.chars[after_N].astype(jnp.int32)
        fits_NxV = (total_NxV <= most_N[:, None]) & (~words.closes[after_N] | (total_NxV >= least_N[:, None]))
        return allowed_NxV & (fits_NxV | (kind_N == OUTSIDE)[:, None])

    counted_N = table.kind[lane_N, safe_N] != OUTSIDE
    allowed_NxV = jax.lax.cond(jnp.any(counted_N & (state_N >= 0)), within_lengths, lambda: allowed_NxV)
    return (allowed_NxV | (state_N < 0)[:, None])[:, :size]


def follow(
    guests: Guests, lane_N: jax.Array, thread_N: jax.Array, token_N: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """State and characters after these tokens, and whether the value is complete, [N] each."""
    table, words = guests.table, guests.words
    state_N, chars_N = guests.state[lane_N, thread_N], guests.chars[lane_N, thread_N]
    is_free_N = state_N < 0
    begin_N = words.begin[token_N]
    length_N = jnp.where(is_free_N, 0, words.begin[token_N + 1] - begin_N)

    def walk(at: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        state_N, chars_N = now
        byte_N = words.data[jnp.minimum(begin_N + at, len(words.data) - 1)].astype(jnp.int32)
        after_N = table.next[lane_N, state_N, byte_N].astype(jnp.int32)
        is_char_N = (table.kind[lane_N, state_N] == INSIDE) & (byte_N != QUOTE) & begins_character(byte_N)
        opens_N = (table.kind[lane_N, state_N] == OUTSIDE) & (table.kind[lane_N, after_N] == INSIDE)
        counted_N = jnp.where(opens_N, 0, chars_N + is_char_N)
        walks_N = (at < length_N) & (after_N >= 0)  # what a mask allows has a state; other rows' tokens mean nothing
        return jnp.where(walks_N, after_N, state_N), jnp.where(walks_N, counted_N, chars_N)

    start = jnp.maximum(state_N, 0), chars_N
    end_N, chars_N = jax.lax.fori_loop(0, jnp.max(length_N), walk, start)
    return jnp.where(is_free_N, FREE, end_N), chars_N, table.done[lane_N, end_N] & ~is_free_N
