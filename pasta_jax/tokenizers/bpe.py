"""Byte-level BPE vocabularies (SmolLM2, Llama 3): from a GGUF file or a tokenizer.json.

The encoder has neither added nor control pieces: text that spells one stays text.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from pasta_jax.errors import PastaError
from pasta_jax.files.gguf import GGUF
from pasta_jax.files.validated import MIB, parse_json, read_bytes, typed
from pasta_jax.tokenizers.vocabulary import MARKER, MOST_PIECES, Vocabulary

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


_NORMAL, _USER_DEFINED = 1, 4  # token types of a GGUF file

# Byte-level BPE writes each byte as one printable character: itself where Latin-1 has a glyph, else from U+0100 on.
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in set(_PRINTABLE)]
_BYTE_OF = {**{byte: byte for byte in _PRINTABLE}, **{0x100 + index: byte for index, byte in enumerate(_OTHERS)}}

_LLAMA3_WORDS = "|".join(
    [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
# How text is cut into words before the merges; a GGUF file states only a name.
_WORDS = {
    "smollm": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "llama-bpe": [
        pre_tokenizers.Split(Regex(_LLAMA3_WORDS), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ],
}


@dataclass(frozen=True)
class _Words:
    """How a GGUF file says that words are cut."""

    pre: str


def from_gguf(gguf: GGUF) -> Vocabulary:
    """The vocabulary in a GGUF file."""
    words = gguf.section("tokenizer.ggml.", _Words).pre
    if words not in _WORDS:
        raise PastaError(
            f"{gguf.path}: unknown pre-tokenizer {words!r} (known are {', '.join(_WORDS)}); use its tokenizer.json"
        )
    texts = gguf.texts("tokenizer.ggml.tokens", MOST_PIECES)
    types = gguf.integers("tokenizer.ggml.token_type", MOST_PIECES).tolist()
    if len(texts) != len(types):
        raise PastaError(f"{gguf.path}: {len(texts)} tokens but {len(types)} types of tokens; fetch the file again")
    normal = {text: id for id, text in enumerate(texts) if types[id] == _NORMAL}
    added = {text: (id, types[id] != _USER_DEFINED) for id, text in enumerate(texts) if types[id] != _NORMAL}
    merges = [pair.split(" ") for pair in gguf.texts("tokenizer.ggml.merges", 4 * MOST_PIECES)]
    encoder = Tokenizer(_model(gguf.path, normal, merges, whole_words=words == "llama-bpe"))
    encoder.pre_tokenizer = pre_tokenizers.Sequence(_WORDS[words])
    return _vocabulary(gguf.path, encoder, normal, added)


def from_file(path: Path) -> Vocabulary:
    """The vocabulary in a tokenizer.json."""
    file = read(path)
    added = {token.content: (token.id, token.special) for token in file.added_tokens}
    normal = {text: id for text, id in file.model.vocab.items() if text not in added}
    if len({*normal.values(), *(id for id, _ in added.values())}) < len(normal) + len(added):
        raise PastaError(f"{path}: two pieces have the same id; fetch the file again")
    merges = [pair.split(" ") if isinstance(pair, str) else list(pair) for pair in file.model.merges]
    frame = {"pre_tokenizer": file.words(), "model": {"type": "BPE", "vocab": {}, "merges": []}}
    try:
        encoder = Tokenizer.from_str(json.dumps(frame))
    except Exception as error:  # the library raises nothing more specific
        raise PastaError(f"{path}: pre_tokenizer: {error}; {FIX}") from None
    encoder.model = _model(path, normal, merges, whole_words=file.model.ignore_merges)
    return _vocabulary(path, encoder, normal, added)


def _model(path: Path, normal: dict[str, int], merges: list[list[str]], whole_words: bool) -> models.BPE:
    """`whole_words`: a word that is a piece becomes that piece, whatever the merges (Llama 3)."""
    for index, pair in enumerate(merges):
        # Checked here: for a missing piece the library panics, which can't be caught cleanly.
        if not (len(pair) == 2 and pair[0] in normal and pair[1] in normal and pair[0] + pair[1] in normal):
            raise PastaError(
                f"{path}: merge {index} joins {pair!r}, which are not two of its pieces; fetch the file again"
            )
    return models.BPE(vocab=normal, merges=[tuple(pair) for pair in merges], ignore_merges=whole_words)


def _vocabulary(
    path: Path, encoder: Tokenizer, normal: dict[str, int], added: dict[str, tuple[int, bool]]
) -> Vocabulary:
    """`added` maps each added piece to its id, and whether it is a control piece."""
    size = 1 + max([*normal.values(), *(id for id, _ in added.values())], default=-1)
    data, control = [b""] * size, {}
    try:
        for text, id in normal.items():
            data[id] = text.translate(_BYTE_OF).encode("latin-1")
    except UnicodeEncodeError as error:
        raise PastaError(f"{path}: its pieces are not byte-level BPE; use its .model or GGUF file") from error
    for text, (id, special) in added.items():
        if special or MARKER.fullmatch(text):
            control[text] = id
        else:
            data[id] = text.encode()

    def encode(text: str) -> list[int]:
        return encoder.encode(text, add_special_tokens=False).ids

    def content() -> bytes:
        spec = json.loads(encoder.to_str())
        spec["model"]["vocab"] = normal | {text: id for text, (id, _) in added.items()}
        plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        spec["added_tokens"] = [
            {"id": id, "content": text, "special": special, **plain} for text, (id, special) in added.items()
        ]
        spec["decoder"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
        return json.dumps(spec, ensure_ascii=False, indent=1).encode()

    return Vocabulary(data, control, encode, "tokenizer.json", content)
