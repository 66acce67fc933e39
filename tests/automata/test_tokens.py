"""Masks over tokens, compared with a reader of one character at a time that knows no automaton."""

import json
import random
from unittest.mock import Mock

import numpy as np
import pytest

from pasta_jax.automata import regex, tokens, values
from pasta_jax.automata.automaton import UNLIMITED, listed, sequence, texts
from pasta_jax.automata.tokens import joined, over_tokens
from pasta_jax.automata.vocabulary import pieces
from pasta_jax.errors import PastaError
from tests.helpers.byte_tokenizer import ByteTokenizer

WORDS = [
    '",',
    '"}',
    '", "',
    '"a',
    "ab",
    "abc",
    "aé",
    "\\",
    '\\"',
    '\\"x',
    "\\n",
    ' "',
    "12",
    "1,",
    "7}\n",
    "[]",
    '["',
    "é",
]


class Wordy(ByteTokenizer):
    """Bytes, and some tokens of several bytes."""

    def piece(self, id: int) -> bytes:
        return WORDS[id - 326].encode() if 0 <= id - 326 < len(WORDS) else super().piece(id)


PIECES = pieces(Wordy(), 384)
WHOLE = {
    "text": (values.string(), {"type": "string"}),
    "short": (values.string(2, 3), {"type": "string", "minLength": 2, "maxLength": 3}),
    "integer": (values.integer(1, 250), {"type": "integer", "minimum": 1, "maximum": 250}),
    "texts": (
        listed(values.string(1, 2), 1, 3),
        {"items": {"minLength": 1, "maxLength": 2}, "minItems": 1, "maxItems": 3},
    ),
    "choice": (values.choice(["a", "ab", 1, None]), {"enum": ["a", "ab", 1, None]}),
}


def may_go_on(automaton, ids: list[int]) -> tuple[int, int] | None:
    """(state, characters) of an automaton after some tokens, by its definition; None if they aren't possible."""
    state, count = 0, 0
    for byte in b"".join(Wordy().piece(id) for id in ids):
        kind, after = automaton.kind[state], int(automaton.next[state, byte])
        if after < 0:
            return None
        if kind == 1 and byte == ord('"'):
            if count < automaton.least[state]:
                return None
        elif kind == 1:
            count += byte & 0xC0 != 0x80
            if count > automaton.most[state]:
                return None
        if kind == 0 and automaton.kind[after] == 1:
            count = 0
        state = after
    return state, count


@pytest.mark.parametrize("name", list(WHOLE))
def test_masks_allow_exactly_what_keeps_a_value_possible(name):
    automaton = over_tokens(WHOLE[name][0], PIECES)
    bits = np.unpackbits(automaton.masks.view(np.uint8), axis=1, bitorder="little")
    rng = random.Random(0)
    for _ in range(60):
        ids: list[int] = []
        for _ in range(20):
            state, count = may_go_on(automaton, ids)
            if automaton.done[state]:
                break
            allowed = bits[automaton.mask_of[state]].astype(bool)
            if automaton.kind[state]:
                escaped = int(automaton.kind[state] == 2)
                total = count + PIECES.chars[escaped]
                allowed &= (total <= automaton.most[state]) & (
                    ~PIECES.closes[escaped] | (total >= automaton.least[state])
                )
            expected = [id for id in range(384) if Wordy().piece(id) and may_go_on(automaton, [*ids, id])]
            found = [id for id in np.flatnonzero(allowed).tolist() if id not in PIECES.stop_ids]
            assert found == expected, b"".join(map(Wordy().piece, ids))
            assert found
            ids.append(rng.choice(found))
        else:
            continue
        text = b"".join(map(Wordy().piece, ids)).decode()
        json.JSONDecoder().raw_decode(text)


def test_joined_automata_are_each_where_they_say():
    parts = [over_tokens(WHOLE[name][0], PIECES) for name in ("text", "integer", "text", "choice")]
    whole, first = joined(parts)
    assert first[0] == first[2]
    for part, at, text in zip(parts, first, ('"a"', "25", '"\\"', '"ab'), strict=True):
        state, expected = whole.walk(text.encode(), at), part.walk(text.encode())
        assert state == expected + at
        assert (whole.masks[whole.mask_of[state]] == part.masks[part.mask_of[expected]]).all()


def test_texts_of_which_a_tokenizer_has_no_ids_are_refused():
    class Poor(Wordy):
        def piece(self, id: int) -> bytes:
            return b"" if id == ord("x") else super().piece(id)

    poor = pieces(Poor(), 384)
    with pytest.raises(PastaError, match="no text of this tokenizer"):
        over_tokens(texts([b"axb"]), poor)
    with pytest.MonkeyPatch.context() as patch:  # a pass over the states finds what they need, and not one for each
        passes = Mock(side_effect=tokens._masks)
        patch.setattr(tokens, "_masks", passes)
        with pytest.raises(PastaError, match="no text of this tokenizer"):
            over_tokens(texts([b"a" * 100 + b"x"]), poor)
        assert passes.call_count == 1
    with pytest.raises(PastaError, match="no text of this tokenizer"):
        over_tokens(regex.trusted("a+x"), poor)  # it goes on for ever, and never ends
    first_of = over_tokens(regex.trusted("a+x|b"), poor)
    first = np.unpackbits(first_of.masks[first_of.mask_of[0]].view(np.uint8), bitorder="little")
    assert [first[ord(letter)] for letter in "ab"] == [0, 1]
    some = over_tokens(texts([b"ax", b"bb"]), poor)
    first = np.unpackbits(some.masks[some.mask_of[0]].view(np.uint8), bitorder="little")
    assert [first[ord(letter)] for letter in "ab"] == [0, 1]
    either_way = over_tokens(sequence(texts([b"a"]), texts([b"x", b"y"])), poor)
    assert either_way.done.sum() > 0
    assert UNLIMITED not in either_way.least
