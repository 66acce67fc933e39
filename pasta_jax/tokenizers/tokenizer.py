"""Text to ids and back, for all model families. Plain text never becomes a control or tag id."""

import codecs
import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pasta_jax.errors import PastaError
from pasta_jax.files import fingerprints
from pasta_jax.files.atomic import write_whole
from pasta_jax.files.gguf import GGUF
from pasta_jax.files.validated import MIB, read_json
from pasta_jax.lang.tags import NUM_TAGS, TagIds
from pasta_jax.progress import say
from pasta_jax.tokenizers import bpe, spm, template, tools
from pasta_jax.tokenizers.chat import FAMILIES, Family, conversation, jinja_template
from pasta_jax.tokenizers.template import KINDS, Template
from pasta_jax.tokenizers.vocabulary import UNUSED, Vocabulary, first_run

_ROW_MULTIPLE = 128  # the vocabulary with appended tags is padded to a multiple, so that it divides over devices


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A vocabulary with its chat template and the place of the tags."""

    family: Family
    vocabulary: Vocabulary
    tags: TagIds
    model_vocab: int  # rows that the model needs: vocab_size, or more if the tags are appended
    jinja: str  # the source of the chat template
    template: Template | str | None = None  # None: the family's; a text: why the source can't be used
    note: str = ""  # to be said before the first chat
    tokens: Mapping[str, str] = dataclasses.field(default_factory=dict)  # the pieces that the source may name
    more_stops: tuple[int, ...] = ()  # that a folder's generation_config.json names

    @property
    def name(self) -> str:
        """The family's."""
        return self.family.name

    @property
    def vocab_size(self) -> int:
        """Number of ids of the tokenizer itself, without appended tags."""
        return len(self.vocabulary.data)

    @property
    def bos(self) -> int | None:
        """The begin-of-sequence id; None in families without one."""
        return self.vocabulary.control[self.family.bos] if self.family.bos else None

    @property
    def end_of_turn(self) -> int:
        """The id that ends a turn."""
        return self.vocabulary.control[self.family.close]

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The ids that end an answer: end of turn and end of document, in some models the same, and a model's own."""
        return tuple(dict.fromkeys((self.end_of_turn, self.vocabulary.control[self.family.eos], *self.more_stops)))

    @cached_property
    def _missing(self) -> re.Pattern[bytes]:
        """The bytes without an id. (SmolLM2's vocabulary lacks six control characters and two planes of Unicode.)"""
        single = {data[0] for data in self.vocabulary.data if len(data) == 1}
        absent = b"".join(b"\\x%02x" % byte for byte in range(256) if byte not in single)
        return re.compile(b"[%s]" % absent if absent else b"(?!)")

    def encode(self, text: str) -> list[int]:
        """Ids of untrusted text, without bos: never a control or tag id, and `decode` restores the text exactly."""
        try:
            missing = self._missing.search(text.encode())
        except UnicodeEncodeError as error:
            raise PastaError(
                f"character {error.start + 1} of the text is {text[error.start]!a}, which is not valid Unicode; "
                "remove it or decode the text from UTF-8 again"
            ) from None
        if missing:
            place = len(missing.string[: missing.start()].decode(errors="ignore"))
            raise PastaError(
                f"character {place + 1} of the text is {text[place]!a}, for which {self.name} has no ids; remove it"
            )
        return self.vocabulary.encode(text)

    def without_missing(self, text: str) -> str:
        """The text without the characters that have no ids: none of them may stop a judge."""
        return "".join(one for one in text if not self._missing.search(one.encode()))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; control and tag ids decode to nothing, bytes that are not UTF-8 to U+FFFD."""
        return b"".join(map(self.piece, ids)).decode("utf-8", "replace")

    def piece(self, id: int) -> bytes:
        """The bytes of one id."""
        if not 0 <= id < self.model_vocab:
            raise PastaError(
                f"id {id} is not one of the {self.model_vocab} of {self.name}; decode with the model's tokenizer"
            )
        return self.vocabulary.data[id] if id < self.vocab_size else b""

    def prompt_ids(self, text: str) -> list[int]:
        """A raw prompt: bos, if the family has one, and the text."""
        return ([] if self.bos is None else [self.bos]) + self.encode(self.vocabulary.opened(text, True))

    def chat(self, messages: list[tuple[str, str]]) -> list[int]:
        """(role, text) pairs, and those of tools.py, in the chat template, up to the opening of the answer."""
        return self.of_parts(self.parts(messages))

    def of_parts(self, parts: Iterable[tuple[bool, str]]) -> list[int]:
        """The ids of texts that are the template's, with its control pieces, or not."""
        ids, text, former = [], "", ""

        def between(piece: str) -> list[int]:
            """The ids of the text before a control piece, or the end, and after the former one."""
            stripped = text.lstrip() if self.vocabulary.strips.get(former, {}).get("rstrip") else text
            stripped = stripped.rstrip() if self.vocabulary.strips.get(piece, {}).get("lstrip") else stripped
            return self.encode(self.vocabulary.opened(stripped, not ids))

        for is_of_template, part in parts:
            # What stands between two control pieces is encoded as one text, as other tools do.
            for piece in self._controls.split(part) if is_of_template else [part]:
                if is_of_template and piece in self.vocabulary.spelled:
                    ids += [*between(piece), self.vocabulary.spelled[piece]]
                    text, former = "", piece
                else:
                    text += piece
        return ids + between("")

    def parts(self, messages: list[tuple[str, str]]) -> list[tuple[bool, str]]:
        """A conversation as (is the template's, text)."""
        if isinstance(self.template, str):
            raise PastaError(self.template)
        if any(kind in KINDS for kind, _ in messages):
            tools.require_order(messages)
            if self._tools is not None:
                return self._tools.parts(messages)
            messages = tools.in_words(messages)
        for number, (role, _) in enumerate(messages, start=1):
            if role not in ("system", "user", "assistant"):
                raise PastaError(f"message {number}: role {role!r}; use system, user or assistant")
        own = self._noted and self.template
        return own.parts(messages) if own else conversation(self.family, messages)

    @cached_property
    def _tools(self) -> Template | None:
        """How the template places functions, calls and results, if it does; rendered when they are first needed."""
        forgets = self.template.forgets if isinstance(self.template, Template) else None
        return tools.learned(self.jinja, self.tokens, forgets, self.name)

    @cached_property
    def _noted(self) -> bool:
        """Say the note, once."""
        if self.note:
            say(self.note)
        return True

    @cached_property
    def _controls(self) -> re.Pattern[str]:
        """The pieces that a template spells, the longest first."""
        pieces = sorted(self.vocabulary.spelled, key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, pieces))})")

    def save(self, folder: Path) -> Path:
        """Write the tokenizer under the name that other tools expect, whole or not at all."""
        target = folder / self.vocabulary.file
        write_whole(target, self.vocabulary.content())
        return target


def tokenizer_fingerprint(tokenizer: Tokenizer) -> str:
    """Fingerprint of what determines ids: the family, the tags' place, and the ids of some awkward text."""
    probe = tokenizer.encode("  a\n\n1. Größe 数 😀 <async>\t\tdef f(x): return x**2")
    texts = [tokenizer.name, str(tokenizer.tags.base), str(tokenizer.model_vocab), str(probe)]
    if isinstance(tokenizer.template, Template):
        texts.append(tokenizer.jinja)  # not what it renders, which may have today's date
    return fingerprints.of_texts(texts)


class Detokenizer:
    """Ids to text, one id at a time: a character is returned with its last byte."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        """The characters that this id completes."""
        return self._decoder.decode(self._tokenizer.piece(id))

    def flush(self) -> str:
        """The rest, at the end: U+FFFD for an incomplete character."""
        return self._decoder.decode(b"", final=True)


_READERS = {"llama": spm.from_gguf, "gpt2": bpe.from_gguf, bpe.GEMMA4: bpe.from_gguf}  # of GGUF files, by kind


@dataclass(frozen=True)
class _Kind:
    """Which kind of tokenizer a GGUF file has."""

    model: str


def load_tokenizer(path: str | os.PathLike) -> Tokenizer:
    """The tokenizer in a GGUF, SentencePiece .model or tokenizer.json file, recognised by content.

    A model's own chat template, in the GGUF file or beside a tokenizer.json, replaces that of its family.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise PastaError(f"{path}: {error.strerror}; use a GGUF, .model or tokenizer.json file") from error
    if head.startswith(b"GGUF"):
        return in_gguf(GGUF.open(path))
    is_by_itself = not (path.parent / "config.json").is_file()
    source, tokens = (None, {}) if is_by_itself else template.in_folder(path.parent)
    is_json = head.lstrip().startswith(b"{")
    strips = {} if is_by_itself else template.strips_in(path.parent)
    vocabulary = bpe.from_file(path, {*tokens.values()}, strips) if is_json else spm.from_file(path)
    if is_by_itself:
        return _tokenizer(path, vocabulary, {})
    tokenizer = _with_template(_tokenizer(path, vocabulary, tokens), source, tokens, str(path.parent))
    return dataclasses.replace(tokenizer, more_stops=_more_stops(path.parent, tokenizer))


@dataclass(frozen=True)
class _Generation:
    eos_token_id: int | tuple[int, ...] | None = None


def _more_stops(folder: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The control ids that generation_config.json names as ends of an answer."""
    path = folder / "generation_config.json"
    if not path.is_file():
        return ()
    named = read_json(path, _Generation, MIB, "fix or delete the file").eos_token_id
    ids = {*tokenizer.vocabulary.control.values()} - {*range(tokenizer.tags.base, tokenizer.tags.end)}
    return tuple(id for id in (named if isinstance(named, tuple) else (named,)) if id in ids)


def in_gguf(gguf: GGUF) -> Tokenizer:
    """The tokenizer in an open GGUF file."""
    vocabulary = _READERS[_kind_of(gguf)](gguf)
    tokens, source = _tokens_of(gguf, vocabulary), gguf.metadata.get("tokenizer.chat_template")
    return _with_template(_tokenizer(gguf.path, vocabulary, tokens), source, tokens, str(gguf.path))


def _kind_of(gguf: GGUF) -> str:
    kind = gguf.section("tokenizer.ggml.", _Kind).model
    if kind not in _READERS:
        raise PastaError(
            f"{gguf.path}: unsupported tokenizer kind {kind!r}; use a file with one of {', '.join(_READERS)}"
        )
    return kind


_WITHOUT = "set chat to False where texts are continued (generate, launch.decode)"  # fields and the server need one


def _tokens_of(gguf: GGUF, vocabulary: Vocabulary) -> dict[str, str]:
    """The pieces that a template may name, of a file that states their ids."""
    pieces = {id: piece for piece, id in vocabulary.control.items()}
    ids = {name: gguf.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")}
    return {f"{name}_token": pieces[id] for name, id in ids.items() if isinstance(id, int) and id in pieces}


def _with_template(tokenizer: Tokenizer, source: object, tokens: dict[str, str], place: str) -> Tokenizer:
    """The tokenizer with a model's own template, or with the reason why that can't be used."""
    family, why = tokenizer.family, f"{place}: chat template"
    if not isinstance(source, str):
        none = f"{place}: no chat template, as base models have none"
        if family.open:
            return dataclasses.replace(tokenizer, note=f"{none}; using that of {family.name}")
        return dataclasses.replace(tokenizer, template=f"{none}; add a {template.FILE}, or {_WITHOUT}")
    own: Template | str | None
    try:
        own = template.learned(source, tokens, family, why)
        if own is not None:  # which may be another than its family's: Llama 3 is often tuned with ChatML
            after = own.between["assistant", "user"].lstrip()  # Llama 2's has a blank before the end
            ends = [one for one in tokenizer.vocabulary.control if after.startswith(one) and one != family.open]
            family = dataclasses.replace(family, close=max(ends, key=len, default=family.close))
            if not after.startswith(family.close):
                own = f"{why}: answers don't end with {family.close}; replace it, or {_WITHOUT}"
    except PastaError as error:
        own = str(error)
    return dataclasses.replace(tokenizer, family=family, jinja=source, template=own, tokens=tokens)


def _family_of(path: Path, vocabulary: Vocabulary, tokens: dict[str, str]) -> Family:
    """The family whose control pieces a vocabulary has, or one of this model alone."""
    control = vocabulary.control
    family = next((family for family in FAMILIES if family.marks <= control.keys()), None)
    eos = tokens.get("eos_token")
    if family is None and eos not in control:
        marks = ", ".join(family.open for family in FAMILIES)
        raise PastaError(
            f"{path}: no known control piece that opens a turn ({marks}), and no eos_token beside it; "
            "use a model's folder with its tokenizer_config.json"
        )
    return family or Family("this model", vocabulary.bos, eos, "", eos)


def _tokenizer(path: Path, vocabulary: Vocabulary, tokens: dict[str, str]) -> Tokenizer:
    vocabulary = _without_appended_tags(vocabulary)
    control, size = vocabulary.control, len(vocabulary.data)
    family = _family_of(path, vocabulary, tokens)
    base = _spelled_tags(control)
    if base is None:
        base = first_run([id for piece, id in control.items() if UNUSED.fullmatch(piece)], NUM_TAGS)
    rows = size if base is not None else -(-(size + NUM_TAGS) // _ROW_MULTIPLE) * _ROW_MULTIPLE
    tags = TagIds(size if base is None else base)
    tokenizer = Tokenizer(family, vocabulary, tags, rows, jinja_template(family) if family.open else "")
    if any(tokenizer.decode(tokenizer.encode(text)) != text for text in _PROBES):
        raise PastaError(
            f"{path}: decoding doesn't restore every text (characters or spaces are rewritten); "
            "use the tokenizer file that came with the model"
        )
    return tokenizer


# What normalizers and pre-tokenizers tend to change.
_PROBES = "  a  \t\n\r\n\u00ad é e\u0301 ﬁ Ａ ▁ \u200b 😀\ufeff ", "a"


def _without_appended_tags(vocabulary: Vocabulary) -> Vocabulary:
    """The vocabulary as the model's authors made it: an export lists appended tags at its end."""
    base = _spelled_tags(vocabulary.control)
    if base is None or base + NUM_TAGS != len(vocabulary.data):
        return vocabulary
    control = {piece: id for piece, id in vocabulary.control.items() if id < base}
    spelled = {piece: id for piece, id in vocabulary.spelled.items() if id < base}
    return vocabulary._replace(data=vocabulary.data[:base], control=control, spelled=spelled)


def _spelled_tags(control: dict[str, int]) -> int | None:
    """The first tag's id in a vocabulary that lists the tags by name, as exports do for other tools."""
    base = control.get(TagIds(0).piece(0))
    if base is not None and all(control.get(TagIds(base).piece(id)) == id for id in range(base, base + NUM_TAGS)):
        return base
    return None
