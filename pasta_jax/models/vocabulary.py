"""What any tokenizer file comes down to: the bytes of every id, the ids that are no text, the encoder of plain text."""

import re
from collections.abc import Callable
from typing import NamedTuple

# Pieces that exist to be given a meaning later; the tags are laid on them.
UNUSED = re.compile(r"<unused\d+>|<\|reserved_special_token_\d+\|>")
# Pieces that some files list as ordinary ones although only a program may write them. (HTML tags are ordinary.)
MARKER = re.compile(
    rf"{UNUSED.pattern}|<(?:pad|bos|eos|unk|mask|\w+_of_\w+|\w+_token)>|<\|\w+\|>|\[(?:multimodal|@BOS@)\]"
)


class Vocabulary(NamedTuple):
    data: list[bytes]  # by id: the bytes it stands for, b"" for a control id
    control: dict[str, int]  # the pieces that no text may turn into
    encode: Callable[[str], list[int]]  # plain text to ids, none of them in `control`
    file: str  # the name under which other programs expect a file of this kind
    content: Callable[[], bytes]  # that file
