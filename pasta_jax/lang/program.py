"""A response as a program of text, promised chunks, and syncs; conversion to and from surface text and linear ids."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from numpy.typing import ArrayLike

from pasta_jax.lang.error import LangError, quoted
from pasta_jax.lang.events import Event, events
from pasta_jax.lang.lexer import ANNOTATION
from pasta_jax.lang.linear import Block, as_ids, scan
from pasta_jax.lang.tags import MAX_TENS, TagIds, escape, promise_tag, tens_for
from pasta_jax.lang.words import words

MAX_TOPIC_WORDS = 3
MIN_CHUNK_WORDS = 5

TENS_RANGE = f"tokens must be an integer from 1 to {MAX_TENS}"
TENS_WRONG = "tokens must be the tens of the block's length"
TOPIC_EMPTY = "a topic must not be empty"
TOPIC_LONG = f"a topic has at most {MAX_TOPIC_WORDS} words"
CHUNK_SHORT = f"a chunk has at least {MIN_CHUNK_WORDS} words"
CHUNK_LONG = f"a block has at most {10 * MAX_TENS} ids"
PROMISE_ALONE = "a promise must be directly followed by its <async>"
PROMISE_WRITTEN = "an annotation holds no promises"
ASYNC_ALONE = "an <async> must directly follow its promise"
ASYNC_BARE = "an annotation's <async> must have a topic"
ASYNC_OPEN = "an <async> must be closed"
END_ALONE = "an </async> must close an <async>"
TAG_IN_CHUNK = "a chunk holds no tags"
IF_TEXT = "or put a backslash after its < if it is text"


class Tokenizer(Protocol):
    """What the language needs of a tokenizer; `encode` accepts untrusted text and never returns a tag or control id."""

    tags: TagIds

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...


@dataclass(frozen=True)
class Text:
    """Text of the main thread."""

    text: str


@dataclass(frozen=True)
class Chunk:
    """A promise and its block."""

    topic: str
    tens: int
    text: str

    def __post_init__(self):
        if self.tens not in range(1, MAX_TENS + 1):
            raise LangError(TENS_RANGE, f"the chunk {quoted(self.topic)} has {self.tens}")


@dataclass(frozen=True)
class Sync:
    """Wait for all open chunks; later tokens may read them."""


@dataclass(frozen=True)
class Program:
    """Parts in linear order. Always in normal form: no empty and no adjacent Texts."""

    parts: tuple[Text | Chunk | Sync, ...]

    def __post_init__(self):
        parts, run = [], []
        for part in (*self.parts, None):
            if isinstance(part, Text):
                run.append(part.text)
                continue
            if text := "".join(run):
                parts.append(Text(text))
            run = []
            if part is not None:
                parts.append(part)
        object.__setattr__(self, "parts", tuple(parts))

    @staticmethod
    def parse(text: str) -> "Program":
        """Parse surface text; raises the first LangError of the grammar. `check` finds all, and checks style too."""
        items, errors = _read(events(text))
        _raise_first(errors + _tens_errors(items))
        return Program(tuple(_part(item) for item in items))

    @staticmethod
    def from_annotation(text: str, tokenizer: Tokenizer) -> "Program":
        """Parse an annotation with `<async topic='…'>…</async>` and `<sync/>`, and insert promises and lengths.

        The text must be escaped by `escape(source, ANNOTATION)`. The program passes `check` with this tokenizer.
        """
        promised, errors = _promised(events(text, ANNOTATION))
        items, more = _read(promised)
        _raise_first(errors + more)
        measured = [
            replace(item, tens=tens_for(block_length(item.text, tokenizer))) if isinstance(item, _ParsedChunk) else item
            for item in items
        ]
        _raise_first([error for item in measured for error in _rule_errors(item, tokenizer)])
        return Program(tuple(_part(item) for item in measured))

    def render(self) -> str:
        """The surface text; `parse` restores the program."""
        pieces = []
        for part in self.parts:
            match part:
                case Text(text):
                    pieces.append(escape(text))
                case Chunk(topic, tens, text):
                    pieces.append(f"{promise_tag(topic, tens)}<async>{escape(text)}</async>")
                case Sync():
                    pieces.append("<sync/>")
        return "".join(pieces)

    def strip(self) -> str:
        """The text for a reader: chunks in place, without tags."""
        return "".join(part.text for part in self.parts if not isinstance(part, Sync))

    def ids(self, tokenizer: Tokenizer) -> list[int]:
        """Linear ids; tags become ids directly, never through `encode`."""
        tags, ids = tokenizer.tags, []
        for part in self.parts:
            match part:
                case Text(text):
                    ids += tokenizer.encode(text)
                case Chunk(topic, tens, text):
                    ids += [tags.promise, *tokenizer.encode(topic), tags.close(tens)]
                    ids += [tags.async_, *tokenizer.encode(text), tags.end_async]
                case Sync():
                    ids.append(tags.sync)
        return ids

    @staticmethod
    def from_ids(ids: ArrayLike, tokenizer: Tokenizer) -> "Program":
        """Parse linear ids without end-of-turn; a LangError names the offending id by its index."""
        ids = as_ids(ids)
        parts, done = [], 0

        def text(start: int, stop: int) -> str:
            return tokenizer.decode(ids[start:stop].tolist())

        for mark in scan(ids, tokenizer.tags):
            if isinstance(mark, Block):
                parts.append(Text(text(done, mark.promise)))
                topic, content = text(mark.promise + 1, mark.close), text(mark.start + 1, mark.stop - 1)
                parts.append(Chunk(topic, mark.tens, content))
                done = mark.stop
            else:
                parts += [Text(text(done, mark.at)), Sync()]
                done = mark.at + 1
        return Program((*parts, Text(text(done, len(ids)))))


def check(text: str, tokenizer: Tokenizer | None = None) -> list[LangError]:
    """All violations in a surface text, in order: of the grammar, and of the style rules for topics and chunks.

    With a tokenizer the promised lengths are compared with the blocks' true lengths, too.
    """
    items, errors = _read(events(text))
    errors += _tens_errors(items)
    for item in items:
        errors += _rule_errors(item, tokenizer)
    return sorted(errors, key=_place)


@dataclass(frozen=True)
class _ParsedChunk:
    """A chunk with the events that errors refer to."""

    topic: str
    tens: int
    text: str
    promise: Event
    opened: Event


def _part(item: Text | Sync | _ParsedChunk) -> Text | Sync | Chunk:
    return Chunk(item.topic, item.tens, item.text) if isinstance(item, _ParsedChunk) else item


def _promised(events: list[Event]) -> tuple[list[Event], list[LangError]]:
    """An annotation's events as those of a program: a promise before every <async>, still without a length."""
    result, errors = [], []
    for event in events:
        match event.kind:
            case "annotated":
                result += [replace(event, kind="promise"), replace(event, kind="async")]
            case "promise":
                errors.append(_error(event, PROMISE_WRITTEN, f"remove it, {IF_TEXT}"))
            case "async":
                errors.append(_error(event, ASYNC_BARE, f"write <async topic='...'>, {IF_TEXT}"))
                result.append(event)
            case _:
                result.append(event)
    return result, errors


def _read(events: list[Event]) -> tuple[list[Text | Sync | _ParsedChunk], list[LangError]]:
    """The grammar: the well-formed parts, and an error for everything else."""
    items, errors = [], []
    promise: Event | None = None  # still without its <async>
    opened: list[Event] = []  # the current <async>; more than one only after an error
    content: list[str] = []
    for event in events:
        if opened:
            match event.kind:
                case "text":
                    content.append(event.text)
                case "end_async":
                    start = opened.pop()
                    if not opened and promise:
                        items.append(_ParsedChunk(promise.text, promise.tens, "".join(content), promise, start))
                    if not opened:
                        promise, content = None, []
                case _:
                    errors.append(_error(event, TAG_IN_CHUNK, f"close the chunk before it, {IF_TEXT}"))
                    if event.kind == "async":
                        opened.append(event)
            continue
        if event.kind == "async":
            if not promise:
                fix = f'put <promise topic="..." tokens=N /> directly before it, {IF_TEXT}'
                errors.append(_error(event, ASYNC_ALONE, fix))
            opened.append(event)
            continue
        if promise:
            errors.append(_alone(promise))
        promise = event if event.kind == "promise" else None
        match event.kind:
            case "text":
                items.append(Text(event.text))
            case "sync":
                items.append(Sync())
            case "end_async":
                errors.append(_error(event, END_ALONE, f"remove it, {IF_TEXT}"))
    if promise and not opened:
        errors.append(_alone(promise))
    errors += [_error(event, ASYNC_OPEN, "put </async> where its chunk ends") for event in opened]
    return items, errors


def _alone(promise: Event) -> LangError:
    return _error(promise, PROMISE_ALONE, f"put <async>...</async> directly after it, {IF_TEXT}")


def _tens_errors(items: Sequence[Text | Sync | _ParsedChunk]) -> list[LangError]:
    fix = "write one without leading zeros, or split the chunk"
    return [_error(item.promise, TENS_RANGE, fix) for item in items if isinstance(item, _ParsedChunk) and not item.tens]


def _rule_errors(item: Text | Sync | _ParsedChunk, tokenizer: Tokenizer | None) -> list[LangError]:
    if not isinstance(item, _ParsedChunk):
        return []
    errors = []
    topic_words, chunk_words = len(words(item.topic)), len(words(item.text))
    if not topic_words:
        errors.append(_error(item.promise, TOPIC_EMPTY, f"name the chunk in one to {MAX_TOPIC_WORDS} words"))
    if topic_words > MAX_TOPIC_WORDS:
        errors.append(_error(item.promise, TOPIC_LONG, f"shorten {quoted(item.topic)}"))
    if chunk_words < MIN_CHUNK_WORDS:
        errors.append(_error(item.opened, CHUNK_SHORT, f"this one has {chunk_words}: keep it in the main thread"))
    if tokenizer is None:
        return errors
    length = block_length(item.text, tokenizer)
    if tens_for(length) > MAX_TENS:
        errors.append(_error(item.opened, CHUNK_LONG, f"split this one, it has {length}"))
    elif item.tens and item.tens != tens_for(length):
        errors.append(_error(item.promise, TENS_WRONG, f"write tokens={tens_for(length)} for {length} ids"))
    return errors


def block_length(text: str, tokenizer: Tokenizer) -> int:
    """Ids of the async block that holds a text, its two tags included."""
    return len(tokenizer.encode(text)) + len(("[ASYNC]", "[/ASYNC]"))


def _error(event: Event, rule: str, fix: str) -> LangError:
    return LangError(rule, fix, event.line, event.column)


def _place(error: LangError) -> tuple[int, int]:
    return error.line, error.column


def _raise_first(errors: list[LangError]) -> None:
    if errors:
        raise min(errors, key=_place)
