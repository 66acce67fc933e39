"""The tags: their ids on a tokenizer, their surface form, and how text that looks like one is kept apart."""

import re
from dataclasses import dataclass

from pasta_jax.lang.lexer import SURFACE, TOPIC_ESCAPES, lex

MAX_TENS = 64
NUM_TAGS = 68


@dataclass(frozen=True)
class TagIds:
    """68 ids in a row from `base`: [PROMISE], [/PROMISE:1] to [/PROMISE:64], [ASYNC], [/ASYNC], [SYNC].

    The tests are written with operators only, so they take ints, NumPy and JAX arrays alike.
    """

    base: int

    @property
    def promise(self) -> int:
        return self.base

    def close(self, n):
        """[/PROMISE:n], n from 1 to 64: ends a promise, carries its tens, and forks."""
        return self.base + n

    @property
    def async_(self) -> int:
        return self.base + MAX_TENS + 1

    @property
    def end_async(self) -> int:
        return self.base + MAX_TENS + 2

    @property
    def sync(self) -> int:
        return self.base + MAX_TENS + 3

    @property
    def end(self) -> int:
        """The first id behind the tags."""
        return self.base + NUM_TAGS

    def is_tag(self, id):
        return (id >= self.base) & (id < self.end)

    def is_close(self, id):
        return (id > self.base) & (id <= self.base + MAX_TENS)

    def tens(self, id):
        """The n of a [/PROMISE:n]."""
        return id - self.base

    def name(self, id: int) -> str:
        """How the documentation writes this id."""
        if self.is_close(id):
            return f"[/PROMISE:{self.tens(id)}]"
        named = {self.promise: "[PROMISE]", self.async_: "[ASYNC]", self.end_async: "[/ASYNC]", self.sync: "[SYNC]"}
        return named.get(id, str(id))


def tens_for(length: int) -> int:
    """The `tokens` of a block of `length` ids, [ASYNC] and [/ASYNC] counted."""
    return -(-length // 10)


def promise_tag(topic: str, tens: int) -> str:
    return f'<promise topic="{escape_topic(topic)}" tokens={tens} />'


def escape(text: str, forms: tuple[str, ...] = SURFACE) -> str:
    r"""Text as it stands between tags: a look-alike gets one backslash more, `<sync/>` is written `<\sync/>`.

    `forms=ANNOTATION` also guards what is a tag to an annotator only; use it on a source before it is annotated.
    """
    return "".join("<\\" + piece[1:] if form else piece for form, piece in lex(text, forms))


def unescape(text: str, forms: tuple[str, ...] = SURFACE) -> str:
    """Undo `escape`: every escaped look-alike loses one backslash."""
    return "".join("<" + piece[2:] if form and piece[1] == "\\" else piece for form, piece in lex(text, forms))


def escape_topic(topic: str) -> str:
    """A topic as it stands between its quotes; without a raw `<`, so that no tag form holds another."""
    return "".join(TOPIC_ESCAPES.get(character, character) for character in topic)


def unescape_topic(text: str) -> str:
    return re.sub(r"\\(x3c|.)", lambda match: {"n": "\n", "x3c": "<"}.get(match[1], match[1]), text)
