"""The content of any tokenizer file: the bytes of every id, the control ids, and the encoder of plain text."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from tokenizers import Tokenizer

from pasta_jax.errors import PastaError

LONG = 4096  # characters, which are encoded in some milliseconds
MOST_PIECES = 2**20  # of any vocabulary; the largest in use have a quarter of that
# Pieces reserved for later use; the tags are placed on them.
UNUSED = re.compile(r"<unused\d+>|<\|reserved_special_token_\d+\|>")
# Pieces that some files list as ordinary although only a program may write them. (HTML tags are ordinary.)
MARKER = re.compile(
    rf"{UNUSED.pattern}|<(?:pad|bos|eos|unk|mask|\w+_of_\w+|\w+_token)>|<\|\w+\|>|\[(?:multimodal|@BOS@)\]"
)


BLANK = "▁"  # stands for a space in pieces of some vocabularies
Strips = Mapping[str, Mapping[str, bool]]  # pieces that swallow the whitespace before (`lstrip`) or after them
NONE: Strips = MappingProxyType({})
Opened = Callable[[str, bool], str]  # a text as one is read that begins a prompt (True), or follows a control piece


def as_it_is(text: str, is_first: bool) -> str:
    """No blank before texts."""
    return text


def ids_of(encoder: Tokenizer, text: str) -> list[int]:
    """The ids of a text. Only for a batch does the library let other threads run, and a long text takes a while."""
    if len(text) < LONG:
        return encoder.encode(text, add_special_tokens=False).ids
    return encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids


def around_blanks(encode: Callable[[str], list[int]], sign: list[int]) -> Callable[[str], list[int]]:
    """An encoder that writes `▁` as a space, but for a real one in a text, which becomes the pieces `sign`."""

    def encode_all(text: str) -> list[int]:
        first, *others = text.split(BLANK)
        return encode(first) + [id for part in others for id in (*sign, *encode(part))]

    return encode_all


def check_merges(path: Path, pieces: Mapping[str, int], merges: Sequence[Sequence[str]]) -> None:
    """Each joins two pieces to a third: for a missing one, the library panics, which can't be caught cleanly."""
    for index, pair in enumerate(merges):
        if not (len(pair) == 2 and pair[0] in pieces and pair[1] in pieces and pair[0] + pair[1] in pieces):
            raise PastaError(
                f"{path}: merge {index} joins {pair!r}, which are not two of its pieces; fetch the file again"
            )


class Vocabulary(NamedTuple):
    """A tokenizer's pieces, and its encoder."""

    data: list[bytes]  # by id: the bytes it stands for, b"" for a control id
    control: dict[str, int]  # the pieces that no text encodes to
    spelled: dict[str, int]  # those that a chat template may spell: control pieces, and others added to the vocabulary
    bos: str | None  # the control piece that begins every text, if the file says so
    encode: Callable[[str], list[int]]  # plain text to ids, none of them in `control`
    file: str  # the name that other tools expect for a file of this kind
    content: Callable[[], bytes]  # of that file
    opened: Opened = as_it_is
    strips: Strips = NONE


def first_run(ids: list[int], length: int) -> int | None:
    """The first id of the first `length` consecutive ids."""
    start = previous = None
    for id in sorted(ids):
        start = id if previous is None or id != previous + 1 else start
        if id - start + 1 == length:
            return start
        previous = id
    return None
