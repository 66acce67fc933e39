"""Byte-level BPE vocabularies, as most models have: from a GGUF file or a tokenizer.json.

The encoder has neither control pieces nor added ones, but for blanks and words: text that spells one stays text.
"""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

from pasta_jax.errors import PastaError
from pasta_jax.files.gguf import GGUF
from pasta_jax.files.validated import MIB, Count, parse_json, read_bytes, typed
from pasta_jax.lang.tags import NUM_TAGS, TagIds
from pasta_jax.tokenizers import fallback
from pasta_jax.tokenizers.vocabulary import MARKER, MOST_PIECES, NONE, Strips, Vocabulary, check_merges, ids_of

FIX = "use a GGUF or .model file"
Id = Annotated[int, Meta(ge=0, lt=MOST_PIECES)]


class Model(Struct, frozen=True):
    """The pieces and merges of byte-level BPE."""

    vocab: Annotated[dict[str, Id], Meta(max_length=MOST_PIECES)]
    merges: Annotated[list[str | tuple[str, str]], Meta(max_length=4 * MOST_PIECES)]
    type: Literal["BPE"] | None = None  # absent in old files
    ignore_merges: bool = False
    byte_fallback: bool = False  # pieces are of characters; see fallback.py


class Added(Struct, frozen=True):
    """A piece outside the model's."""

    id: Id
    content: str
    special: bool
    normalized: bool = False  # found in text after the normalizer
    single_word: bool = False  # found only between characters that are of no word
    lstrip: bool = False  # blanks before it are dropped
    rstrip: bool = False  # and after it


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
    behavior: Literal["Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous", "Removed"]
    invert: bool = False


class Metaspace(Struct, frozen=True, tag=True, tag_field="type", omit_defaults=True):
    """Write blanks as `▁`, perhaps with one in front."""

    replacement: Annotated[str, Meta(min_length=1, max_length=1)] = ""
    prepend_scheme: Literal["first", "never", "always"] | None = None
    add_prefix_space: bool | None = None  # in old files
    split: bool | None = None


Cut = Digits | ByteLevel | Split | Metaspace


class Sequence(Struct, frozen=True, tag=True, tag_field="type"):
    """Several cuts, one after another."""

    pretokenizers: Annotated[tuple[Cut, ...], Meta(max_length=16)]


class File(Struct, frozen=True):
    """The parts that determine the ids of plain text; the others would add or parse control pieces."""

    model: Model
    added_tokens: Annotated[list[Added], Meta(max_length=MOST_PIECES)]
    pre_tokenizer: Cut | Sequence | None = None
    normalizer: dict | None = None
    post_processor: dict | None = None

    def strips(self) -> dict[str, dict[str, bool]]:
        """The pieces that swallow blanks, or are found as whole words only."""
        names = ("lstrip", "rstrip", "single_word")
        flags = {one.content: {name: getattr(one, name) for name in names} for one in self.added_tokens}
        return {piece: either for piece, either in flags.items() if any(either.values())}

    def begins_with(self) -> str | None:
        """The piece that a template for single texts puts before them."""
        steps = (self.post_processor or {}).get("processors", [self.post_processor])
        for step in steps if isinstance(steps, list) else []:
            single = step.get("single") if isinstance(step, dict) else None
            if isinstance(single, list) and single and isinstance(single[0], dict) and "SpecialToken" in single[0]:
                return single[0]["SpecialToken"].get("id")
        return None

    def words(self) -> dict | None:
        """`pre_tokenizer` as the library takes it."""
        return msgspec.to_builtins(self.pre_tokenizer)


def read(path: Path) -> File:
    """The file, if it is byte-level BPE whose normalizer leaves text as it is and whose patterns take bounded time.

    Qwen's normalizer composes characters (NFC). It is left out, as in llama.cpp: composed text, which nearly all text
    is, has the same ids, and other text is restored exactly.
    """
    raw = parse_json(read_bytes(path, 64 * MIB, FIX), f"{path}: not a tokenizer.json of the BPE kind", FIX)
    file = typed(raw, File, f"{path}: not a tokenizer.json of the BPE kind", FIX)
    if file.model.byte_fallback:
        return file
    nfc = {"type": "NFC"}
    if file.normalizer not in (None, nfc) and file.normalizer.get("normalizers") not in ([], [nfc]):
        kind = file.normalizer.get("type")
        raise PastaError(f"{path}: decoding doesn't restore every text: its normalizer {kind!r} rewrites it; {FIX}")
    cuts = file.pre_tokenizer.pretokenizers if isinstance(file.pre_tokenizer, Sequence) else (file.pre_tokenizer,)
    for cut in cuts:
        if isinstance(cut, Split) and ((cut.pattern.Regex is None) == (cut.pattern.String is None)):
            raise PastaError(f"{path}: pre_tokenizer: a pattern is either Regex or String; {FIX}")
        if isinstance(cut, Split) and cut.behavior == "Removed" and not cut.invert:
            raise PastaError(f"{path}: pre_tokenizer: drops the text that it cuts out; {FIX}")
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


_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _PADDING, _BYTE = range(1, 7)  # token types of a GGUF file
GEMMA4 = "gemma4"  # a kind of tokenizer in GGUF files: characters with byte pieces, and merges

# Byte-level BPE writes each byte as one printable character: itself where Latin-1 has a glyph, else from U+0100 on.
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in set(_PRINTABLE)]
_BYTE_OF = {**{byte: byte for byte in _PRINTABLE}, **{0x100 + index: byte for index, byte in enumerate(_OTHERS)}}

_SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
# Of words with capitals, a lower-case letter followed by a capital is the end of one.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")


def _words(*alternatives: str, signs: str = r"[\r\n]*") -> list[pre_tokenizers.PreTokenizer]:
    others = rf" ?[^\s\p{{L}}\p{{N}}]+{signs}", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"
    return [
        pre_tokenizers.Split(Regex("|".join([*alternatives, *others])), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]


_BY_DIGIT = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
_AS_GPT2 = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
_BY_THREE = _words(_SUFFIXES, _LETTERS, r"\p{N}{1,3}")
# How text is cut into words before the merges; a GGUF file states only a name.
_WORDS = {
    **dict.fromkeys(("smollm", "starcoder", "refact"), _BY_DIGIT),
    **dict.fromkeys(("gpt-2", "olmo", "granite-docling"), _AS_GPT2),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "dbrx", "smaug-bpe"), _BY_THREE),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _words(_SUFFIXES, _LETTERS, r"\p{N}")),
    "gpt-4o": _words(*(f"{one}{_SUFFIXES}?" for one in _CASED), r"\p{N}{1,3}", signs=r"[\r\n/]*"),
    "tekken": _words(*_CASED, r"\p{N}", signs=r"[\r\n/]*"),
}
_WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "tekken")


@dataclass(frozen=True)
class _Words:
    """How a GGUF file says that words are cut, and what texts begin with."""

    model: str
    pre: str = ""
    add_bos_token: bool = False
    bos_token_id: Count | None = None


def from_gguf(gguf: GGUF) -> Vocabulary:
    """The vocabulary in a GGUF file."""
    about = gguf.section("tokenizer.ggml.", _Words)
    words = about.pre
    if words not in _WORDS and about.model != GEMMA4:
        raise PastaError(
            f"{gguf.path}: unknown pre-tokenizer {words!r} (known are {', '.join(_WORDS)}); use its tokenizer.json"
        )
    texts = gguf.texts("tokenizer.ggml.tokens", MOST_PIECES)
    types = gguf.integers("tokenizer.ggml.token_type", MOST_PIECES).tolist()
    if len(texts) != len(types):
        raise PastaError(f"{gguf.path}: {len(texts)} tokens but {len(types)} types of tokens; fetch the file again")
    while types and types[-1] == _PADDING:  # to the rows of the embedding; a tokenizer.json lists none
        del types[-1], texts[-1]
    has_bos = about.add_bos_token and about.bos_token_id is not None and about.bos_token_id < len(texts)
    bos = texts[about.bos_token_id] if has_bos else None
    merges = [pair.split(" ") for pair in gguf.texts("tokenizer.ggml.merges", 4 * MOST_PIECES)]
    if about.model == GEMMA4:
        vocab = {text: id for id, text in enumerate(texts)}
        others = {text: id for text, id in vocab.items() if types[id] not in (_NORMAL, _BYTE)}
        found = {text: (id, types[id] in (_UNKNOWN, _CONTROL), False) for text, id in others.items()}
        return fallback.vocabulary(gguf.path, vocab, merges, False, found, *fallback.GEMMA4, bos)
    normal = {text: id for id, text in enumerate(texts) if types[id] == _NORMAL}
    added = {text: (id, types[id] != _USER_DEFINED) for id, text in enumerate(texts) if types[id] != _NORMAL}
    pieces = normal | _found(added)
    encoder = Tokenizer(_model(gguf.path, pieces, merges, whole_words=words in _WHOLE_WORDS))
    encoder.pre_tokenizer = pre_tokenizers.Sequence(_WORDS[words])
    return _vocabulary(gguf.path, encoder, normal, added, bos)


def from_file(path: Path, named: Collection[str] = (), strips: Strips = NONE) -> Vocabulary:
    """The vocabulary in a tokenizer.json. Pieces that the model's settings name are control pieces.

    `strips`: flags that win over the file's.
    """
    file = read(path)
    model = file.model
    found = {one.content: (one.id, one.special or one.content in named, one.normalized) for one in file.added_tokens}
    ids = model.vocab | {text: id for text, (id, *_) in found.items()}
    if len(set(ids.values())) < len(ids):
        raise PastaError(f"{path}: two pieces have the same id; fetch the file again")
    merges = [pair.split(" ") if isinstance(pair, str) else list(pair) for pair in model.merges]
    words, bos, own = file.words(), file.begins_with(), file.strips()
    strips = own | {piece: {**own.get(piece, {}), **flags} for piece, flags in strips.items()}
    if model.byte_fallback:
        return fallback.vocabulary(
            path, model.vocab, merges, model.ignore_merges, found, file.normalizer, words, bos, strips
        )
    added = {text: (id, special) for text, (id, special, _) in found.items()}
    normal = {text: id for text, id in model.vocab.items() if text not in added}
    frame = {"pre_tokenizer": words, "model": {"type": "BPE", "vocab": {}, "merges": []}}
    try:
        encoder = Tokenizer.from_str(json.dumps(frame))
    except Exception as error:  # the library raises nothing more specific
        raise PastaError(f"{path}: pre_tokenizer: {error}; {FIX}") from None
    encoder.model = _model(path, normal | _found(added, strips), merges, whole_words=model.ignore_merges)
    return _vocabulary(path, encoder, normal, added, bos, strips)


class _AddedOnly(Struct, frozen=True):
    """A tokenizer.json of any kind."""

    added_tokens: Annotated[list[Added], Meta(max_length=MOST_PIECES)] = []


def last_added(path: Path) -> int:
    """The greatest id that a tokenizer.json adds to its model's, but for our tags; -1: none."""
    file = typed(parse_json(read_bytes(path, 64 * MIB, FIX), str(path), FIX), _AddedOnly, str(path), FIX)
    tags = {TagIds(0).piece(tag) for tag in range(NUM_TAGS)}
    return max((one.id for one in file.added_tokens if one.content not in tags), default=-1)


_MARKUP = re.compile(r"[<>\[\]{}|]")


def _found(added: dict[str, tuple[int, bool]], strips: Strips = NONE) -> dict[str, int]:
    """The added pieces that text is searched for before it is cut: blanks, as GPT-NeoX has them, and words.

    DeepSeek has `ü`. Others, as `<tool_call>`, only a template may spell; those that swallow blanks would lose them.
    """
    plain = {text: id for text, (id, special) in added.items() if text and not special}
    swallow = {text for text, flags in strips.items() if flags.get("lstrip") or flags.get("rstrip")}
    return {text: id for text, id in plain.items() if len(text) == 1 or not (_MARKUP.search(text) or text in swallow)}


def _model(path: Path, normal: dict[str, int], merges: list[list[str]], whole_words: bool) -> models.BPE:
    """`whole_words`: a word that is a piece becomes that piece, whatever the merges (Llama 3)."""
    check_merges(path, normal, merges)
    return models.BPE(vocab=normal, merges=[tuple(pair) for pair in merges], ignore_merges=whole_words)


def _vocabulary(
    path: Path,
    encoder: Tokenizer,
    normal: dict[str, int],
    added: dict[str, tuple[int, bool]],
    bos: str | None,
    strips: Strips = NONE,
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
    alone = {text for text, flags in strips.items() if flags.get("single_word")}
    encoder.add_tokens(
        [AddedToken(text, normalized=False, single_word=text in alone) for text in _found(added, strips)]
    )

    def encode(text: str) -> list[int]:
        return ids_of(encoder, text)

    def content() -> bytes:
        spec = json.loads(encoder.to_str())
        spec["model"]["vocab"] = normal | {text: id for text, (id, _) in added.items()}
        plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        spec["added_tokens"] = [
            {"id": id, "content": text, "special": special, **plain, **strips.get(text, {})}
            for text, (id, special) in added.items()
        ]
        spec["decoder"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
        return json.dumps(spec, ensure_ascii=False, indent=1).encode()

    spelled = control | {text: id for text, (id, _) in added.items()}
    return Vocabulary(
        data, control, spelled, bos if bos in control else None, encode, "tokenizer.json", content, strips=strips
    )
