"""tokenizer.json as types: pieces, merges, added tokens, and how text is cut into words."""

import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from pasta_jax.errors import PastaError
from pasta_jax.models.vocabulary import MOST_PIECES
from pasta_jax.outside import MIB, parse_json, read_bytes, typed

FIX = "use a GGUF or .model file"
Id = Annotated[int, Meta(ge=0, lt=MOST_PIECES)]


class Model(Struct, frozen=True):
    """The pieces and merges of byte-level BPE."""

    vocab: Annotated[dict[str, Id], Meta(max_length=MOST_PIECES)]
    merges: Annotated[list[str | tuple[str, str]], Meta(max_length=4 * MOST_PIECES)]
    type: Literal["BPE"] | None = None  # absent in old files
    ignore_merges: bool = False


class Added(Struct, frozen=True):
    """A piece outside the model's."""

    id: Id
    content: str
    special: bool


class Digits(Struct, frozen=True, tag=True, tag_field="type"):
    """Cut around digits."""

    individual_digits: bool = False


class ByteLevel(Struct, frozen=True, tag=True, tag_field="type"):
    """Write bytes as characters, with `use_regex` after cutting as GPT-2 does."""

    add_prefix_space: bool = True
    trim_offsets: bool = True
    use_regex: bool = True


class Pattern(Struct, frozen=True, omit_defaults=True):
    """What to cut around: one of the two."""

    Regex: Annotated[str, Meta(min_length=1, max_length=2000)] | None = None
    String: Annotated[str, Meta(min_length=1, max_length=2000)] | None = None


class Split(Struct, frozen=True, tag=True, tag_field="type"):
    """Cut around a pattern."""

    pattern: Pattern
    behavior: Literal["Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
    invert: bool = False


Cut = Digits | ByteLevel | Split


class Sequence(Struct, frozen=True, tag=True, tag_field="type"):
    """Several cuts, one after another."""

    pretokenizers: Annotated[tuple[Cut, ...], Meta(max_length=16)]


class File(Struct, frozen=True):
    """The parts that determine the ids of plain text; the others would add or parse control pieces."""

    model: Model
    added_tokens: Annotated[list[Added], Meta(max_length=MOST_PIECES)]
    pre_tokenizer: Cut | Sequence | None = None
    normalizer: dict | None = None

    def words(self) -> dict | None:
        """`pre_tokenizer` as the library takes it."""
        return msgspec.to_builtins(self.pre_tokenizer)


def read(path: Path) -> File:
    """The file, if it is byte-level BPE whose normalizer leaves text as it is and whose patterns take bounded time."""
    raw = parse_json(read_bytes(path, 64 * MIB, FIX), f"{path}: not a tokenizer.json of the BPE kind", FIX)
    file = typed(raw, File, f"{path}: not a tokenizer.json of the BPE kind", FIX)
    if file.normalizer and file.normalizer.get("normalizers") != []:
        kind = file.normalizer.get("type")
        raise PastaError(f"{path}: decoding doesn't restore every text: its normalizer {kind!r} rewrites it; {FIX}")
    cuts = file.pre_tokenizer.pretokenizers if isinstance(file.pre_tokenizer, Sequence) else (file.pre_tokenizer,)
    for cut in cuts:
        if isinstance(cut, Split) and ((cut.pattern.Regex is None) == (cut.pattern.String is None)):
            raise PastaError(f"{path}: pre_tokenizer: a pattern is either Regex or String; {FIX}")
        if isinstance(cut, Split) and cut.pattern.Regex is not None and not takes_bounded_time(cut.pattern.Regex):
            raise PastaError(f"{path}: pre_tokenizer: pattern {cut.pattern.Regex!r} may take forever; {FIX}")
    return file


_ESCAPE = re.compile(r"\\[pP]\{\^?\w{1,40}\}|\\[^0-9kgGKRX]")
_CLASS = re.compile(r"\[\^?(?:[^\[\]&]|&(?!&))+\]")


def takes_bounded_time(pattern: str) -> bool:
    """Whether a regular expression is simple: no repeated groups, no references, few repetitions per alternative."""
    plain = _CLASS.sub("c", _ESCAPE.sub("e", pattern))
    if re.search(r"[\\\[\]]|\(\?(?!:|i:|=|!)|\)[*+{]", plain):
        return False
    return all(len(re.findall(r"[*+]|\{\d*,\d*\}", part)) <= 2 for part in plain.split("|"))
