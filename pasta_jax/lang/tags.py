"""The tags: their ids on a tokenizer, their surface form, and the escaping of text that looks like one."""

import re
from dataclasses import dataclass

from pasta_jax.lang.lexer import SURFACE, TOPIC_ESCAPES, lex

MAX_TENS = 64
NUM_TAGS = 68


@dataclass(frozen=True)
class TagIds:
    """68 consecutive ids from `base`: [PROMISE], [/PROMISE:1] to [/PROMISE:64], [ASYNC], [/ASYNC], [SYNC].

    Methods use operators only, so they accept ints, NumPy arrays and JAX arrays.
    """

    base: int

    @property
    def promise(self) -> int:
        return self.base

    def close(self, n):
        """[/PROMISE:n], n from 1 to 64: closes a promise, carries its tens, and forks."""
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
        """The first id after the tags."""
        return self.base + NUM_TAGS

    def is_tag(self, id):
        return (id >= self.base) & (id < self.end)

    def is_close(self, id):
        return (id > self.base) & (id <= self.base + MAX_TENS)

    def tens(self, id):
        """The n of a [/PROMISE:n]."""
        return id - self.base

    def name(self, id: int) -> str:
        """The id as the documentation writes it."""
        if self.is_close(id):
            return f"[/PROMISE:{self.tens(id)}]"
        names = {self.promise: "[PROMISE]", self.async_: "[ASYNC]", self.end_async: "[/ASYNC]", self.sync: "[SYNC]"}
        return names.get(id, str(id))

    def piece(self, id: int) -> str:
        """A tag's piece in tokenizers of other tools, which read it in any text too: not what people write there."""
        return f"<|{self.name(id).strip('[]')}|>"


def tens_for(length: int) -> int:
    """The `tokens` of a block of `length` ids, including [ASYNC] and [/ASYNC]."""
    return -(-length // 10)


def promise_tag(topic: str, tens: int) -> str:
    """The surface form of a promise."""
    return f'<promise topic="{escape_topic(topic)}" tokens={tens} />'


def escape(text: str, forms: tuple[str, ...] = SURFACE) -> str:
    r"""Text as it is written between tags: a look-alike gets one more backslash, `<sync/>` becomes `<\sync/>`.

    `forms=ANNOTATION` also escapes what is a tag only for annotators; use it on a source before annotation.
    """
    return "".join("<\\" + piece[1:] if form else piece for form, piece in lex(text, forms))


def escape_topic(topic: str) -> str:
    """A topic as it is written between its quotes: without a raw `<`, so that no tag form contains another."""
    return "".join(TOPIC_ESCAPES.get(character, character) for character in topic)


def unescape_topic(text: str) -> str:
    """Undo `escape_topic`."""
    return re.sub(r"\\(x3c|.)", lambda match: {"n": "\n", "x3c": "<"}.get(match[1], match[1]), text)
