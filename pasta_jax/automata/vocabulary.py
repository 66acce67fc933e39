"""A tokenizer's pieces as arrays: what each token adds to a text, in bytes and in characters of a JSON string."""

import dataclasses

import numpy as np

from pasta_jax.automata.values import BACKSLASH, QUOTE
from pasta_jax.tokenizers.once import once
from pasta_jax.tokenizers.tokenizer import Tokenizer

LONGEST = 32  # bytes of a token that may be part of a value; longer ones are runs of blanks and marks


@dataclasses.dataclass(frozen=True, eq=False)
class Pieces:
    """The bytes of V tokens, rounded up to whole words of a mask; ids of nothing, or of too much, have none."""

    data: np.ndarray  # uint8 [T]: all bytes, token after token
    start: np.ndarray  # int32 [V + 1]: where a token's bytes begin
    # What a token adds to a string that is open before it, after a whole character (0) or after a backslash (1):
    chars: np.ndarray  # uint8 [2, V]: characters that begin in it before the string's end
    closes: np.ndarray  # bool [2, V]: whether it ends the string
    sorted_ids: np.ndarray  # int32 [N]: those with bytes, in the order of their bytes
    bytes_NxL: np.ndarray  # uint8: their bytes, padded
    lengths: np.ndarray  # int32 [N]
    begins: np.ndarray  # int64 [257]: where in that order the ids that begin with a byte do
    stop_ids: tuple[int, ...]

    @property
    def size(self) -> int:
        """V."""
        return len(self.start) - 1


@once
def pieces(tokenizer: Tokenizer, vocab: int) -> Pieces:
    """The pieces of a tokenizer, for logits of `vocab` ids."""
    size = -(-vocab // 32) * 32
    data = [tokenizer.piece(id) for id in range(tokenizer.vocab_size)]
    data = [piece if len(piece) <= LONGEST and not tokenizer.tags.is_tag(id) else b"" for id, piece in enumerate(data)]
    for stop in tokenizer.stop_ids:
        data[stop] = b""
    data += [b""] * (size - len(data))
    lengths = np.array([len(piece) for piece in data], np.int32)
    ids = np.array(sorted(np.flatnonzero(lengths).tolist(), key=data.__getitem__), np.int32)
    joined = b"".join(data[id].ljust(LONGEST, b"\0") for id in ids.tolist())
    padded = np.frombuffer(joined, np.uint8).reshape(len(ids), LONGEST)
    chars, closes = np.zeros((2, size), np.uint8), np.zeros((2, size), bool)
    for after in (0, 1):
        chars[after, ids], closes[after, ids] = _in_string(padded, lengths[ids], bool(after))
    return Pieces(
        data=np.frombuffer(b"".join(data) or b"\0", np.uint8),
        start=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        chars=chars,
        closes=closes,
        sorted_ids=ids,
        bytes_NxL=padded,
        lengths=lengths[ids],
        begins=np.searchsorted(padded[:, 0], np.arange(257)),
        stop_ids=tuple(tokenizer.stop_ids),
    )


def _in_string(bytes_NxL: np.ndarray, lengths_N: np.ndarray, escaped: bool) -> tuple[np.ndarray, np.ndarray]:
    chars_N, closed_N = np.zeros(len(lengths_N), np.uint8), np.zeros(len(lengths_N), bool)
    row, escaped = np.arange(len(lengths_N)), np.full(len(lengths_N), escaped)  # of the tokens that go on
    for at in range(bytes_NxL.shape[1]):
        goes_on = (lengths_N[row] > at) & ~closed_N[row]
        row, escaped = row[goes_on], escaped[goes_on]
        byte = bytes_NxL[row, at]
        closed_N[row] = closing = ~escaped & (byte == QUOTE)
        chars_N[row] += ~escaped & ~closing & begins_character(byte)
        escaped = ~escaped & (byte == BACKSLASH)
    return chars_N, closed_N


def begins_character(byte: np.ndarray) -> np.ndarray:
    """Whether a byte is the first one of a character in UTF-8. JAX arrays too."""
    return (byte & 0xC0) != 0x80
