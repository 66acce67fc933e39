"""The content of any tokenizer file: the bytes of every id, the control ids, and the encoder of plain text."""

import re
from collections.abc import Callable
from typing import NamedTuple

MOST_PIECES = 2**20  # of any vocabulary; the largest in use have a quarter of that
# Pieces reserved for later use; the tags are placed on them.
UNUSED = re.compile(r"<unused\d+>|<\|reserved_special_token_\d+\|>")
# Pieces that some files list as ordinary although only a program may write them. (HTML tags are ordinary.)
MARKER = re.compile(
    rf"{UNUSED.pattern}|<(?:pad|bos|eos|unk|mask|\w+_of_\w+|\w+_token)>|<\|\w+\|>|\[(?:multimodal|@BOS@)\]"
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
