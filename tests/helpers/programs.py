"""Random texts and programs, full of what could be mistaken for a tag."""

import random

from hypothesis import strategies as st

from pasta_jax.lang.lexer import SURFACE, lex
from pasta_jax.lang.program import Chunk, Program, Sync, Text

FRAGMENTS = [
    *("<", "\\", '"', "'", "/", ">", " ", "\n", "\\\\", '\\"', "\\n", "\\x3c", "/>", " />", "0", "7", "64", "65"),
    *("<async>", "</async>", "<sync/>", "<async", "</as", "async>", "<sync", "<sync />", "<ASYNC>", "<async foo>"),
    *("<\\async>", "<\\/async>", "<\\\\sync/>", "<\\", "<\\\\", "<promise", "promise topic=", '<promise topic="'),
    *('<promise topic="c" tokens=9 /><async>', '<promise topic="a" tokens=2 />', '<promise topic="" tokens=64 />'),
    *('<\\promise topic="a" tokens=2 />', "<promise topic='a' tokens=2 />", '<promise topic="b" tokens=0 />'),
    *('" tokens=', '" tokens=3 />', "tokens=12 />", "'>", '">', "<b>", "a < b", "<async topic='", "<async topic='a'>"),
    *('<async topic="b c">', '<\\async topic="b">', "word", "two words", "é", "数", "😀", "\r\n", "\t"),
    *("\u2028", "\x00"),
]


def random_text(rng: random.Random, most: int = 8) -> str:
    """Fragments and occasionally any other character, except lone surrogates, which can't be encoded."""
    pieces = []
    for _ in range(rng.randrange(most + 1)):
        code = rng.randrange(0x110000)
        strange = rng.random() < 0.2 and not 0xD800 <= code < 0xE000
        pieces.append(chr(code) if strange else rng.choice(FRAGMENTS))
    return "".join(pieces)


def random_program(rng: random.Random) -> tuple[Program, str]:
    """A program and the plain text it stands for."""
    parts, source = [], []
    for _ in range(rng.randrange(7)):
        kind = rng.randrange(5)
        if kind == 0:
            parts.append(Sync())
            continue
        text = random_text(rng)
        source.append(text)
        parts.append(Text(text) if kind < 3 else Chunk(random_text(rng, 3), rng.randint(1, 64), text))
    return Program(tuple(parts)), "".join(source)


texts = st.one_of(st.text(), st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=3))).map("".join))
programs = st.lists(
    st.one_of(st.builds(Text, texts), st.builds(Chunk, texts, st.integers(1, 64), texts), st.builds(Sync))
).map(lambda parts: Program(tuple(parts)))


def unescape(text: str, forms: tuple[str, ...] = SURFACE) -> str:
    """Undo `escape` without the parser: every escaped look-alike loses one backslash."""
    return "".join("<" + piece[2:] if form and piece[1] == "\\" else piece for form, piece in lex(text, forms))
