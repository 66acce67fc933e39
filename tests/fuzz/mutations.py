"""Mutations of valid data: of trees of JSON, of lines, of bytes."""

import copy
import json
import random
from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")

LONG = "\ue000 a number of 5,000 digits"  # json.dumps refuses such numbers, so they are put in afterwards
DEEP = "\ue000 lists in lists"
STRANGE = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 255, 256, 2**16, 2**20, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53),
    *(2**63 - 1, 2**63, -(2**63), 2**64, 10**10, 10**9, 10**30, LONG, 0.0, -0.0, 0.5, 1.5, -1.5, 1e-300, 1e308, 1e9),
    *(float("inf"), float("-inf"), float("nan")),
    *("", "a", " ", "\n", "a\nb", "\0", "\x1b[31m", "\ud800", "数", "\u2028", "1", "nan", "x" * 100_000),
    *("../../x", "/", [], {}, [[]], [None], [0], [""], [{}], {"": None}, {"a": 1}, DEEP, [1] * 1000, ["a"] * 50),
    {"type": "default"},
)
SIZES = (0, 1, 10**6, 10**9, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)


class Mutator(random.Random):
    """Mutations drawn from a seed."""

    def often(self, probability: float) -> bool:
        return self.random() < probability

    def tree(self, value: T) -> T:
        """A tree of dicts, lists, texts and numbers, changed in a few places."""
        root = [copy.deepcopy(value)]
        for _ in range(self.choice((1, 1, 1, 2, 3, 8))):
            *parents, key = self.choice(list(_paths(root))[1:] or [(0,)])
            parent: Any = root
            for step in parents:
                parent = parent[step]
            if parent is root or self.often(0.8):
                parent[key] = self._other(root, parent[key])
            elif isinstance(parent, dict) and self.often(0.5):
                parent[self.choice(("", "a", "extra", "数", f"{key}_", "type"))] = parent.pop(key)
            else:
                del parent[key]
        return root[0]

    def _other(self, root: list[Any], value: Any) -> Any:
        """Another value in place of one in a tree."""
        strange = copy.deepcopy(self.choice(STRANGE))
        match value:
            case bool() | None:
                similar: Sequence[Any] = (not value, str(value))
            case int() | float():
                similar = (-value, value + 1, value - 1, value * 2, value / 3, value * 10**6, value + 0.5)
            case str():
                similar = (value * 2, value[:-1], value[::-1], value + "\n", value.upper(), value + "\ud800")
            case list() if value:
                similar = (value[:-1], value * 2, value[::-1], value[:1], [*value, value[0]])
            case _:
                similar = ([value], {"value": value}, [value, value], str(value), {str(value): value})
        elsewhere: Any = root
        for step in self.choice(list(_paths(root))):
            elsewhere = elsewhere[step]
        return self.choice((strange, strange, self.choice(similar), copy.deepcopy(elsewhere)))

    def raw(self, data: bytes) -> bytes:
        """Bytes, some of which are lost, repeated or replaced."""
        changed = bytearray(data)
        for _ in range(self.choice((1, 1, 2, 4, 16))):
            at, span = self.randrange(len(changed) + 1), self.choice((1, 1, 2, 4, 8, 64))
            size = self.choice((4, 8))
            number = (self.choice(SIZES) % 2 ** (8 * size)).to_bytes(size, "little")
            piece = self.choice((b'"', b"{", b"[" * 5000, b",", b"\n", b"\xc3", b"9" * 5000, b"\\ud800", b"null"))
            old, new = self.choice((
                (span, self.randbytes(span)), (len(changed), b""), (span, b""), (0, bytes(changed[at : at + span])),
                (span, b"\0" * span), (span, b"\xff" * span), (size, number), (0, piece),
            ))  # fmt: skip
            changed[at : at + old] = new
            if changed and self.often(0.3):
                changed[self.randrange(len(changed))] ^= 1 << self.randrange(8)
        return bytes(changed)

    def json(self, value: Any) -> bytes:
        """A file with one JSON value."""
        content = dumped(self.tree(value)) if self.often(0.85) else dumped(value)
        return content if self.often(0.85) else self.raw(content)

    def lines(self, values: Sequence[Any], head: int = 0) -> bytes:
        """A file of JSON lines; the first `head` are rarely changed."""
        rows = list(values)
        at = self.randrange(head if self.often(0.7) else 0, len(rows))
        match self.randrange(8):
            case 0:
                rows[at] = self.choice(STRANGE)
            case 1:
                del rows[at]
            case 2:
                rows.insert(at, self.choice(rows))
            case _:
                rows[at] = self.tree(rows[at])
        content = lines(rows)
        match self.randrange(12):
            case 0:
                return self.raw(content)
            case 1:
                return content.replace(b"\n", self.choice((b"\r\n", b"", b"\0", b"\n\n", b"\xe2\x80\xa8")), 3)
            case 2:
                return content + b"x" * self.choice((1, 10_000, 2_000_000))
        return content


def dumped(value: Any) -> bytes:
    """A tree as JSON, as other tools write it: with NaN, and halves of surrogate pairs."""
    text = json.dumps(value, ensure_ascii=True)
    text = text.replace(json.dumps(LONG), "9" * 5000).replace(json.dumps(DEEP), "[" * 3000 + "]" * 3000)
    return text.encode()


def lines(values: Sequence[Any]) -> bytes:
    """A file of JSON lines."""
    return b"".join(dumped(value) + b"\n" for value in values)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The keys from the root to each part of a tree; of long lists, the first few and the last."""
    keys: list[Any] = []
    if isinstance(value, dict):
        keys = list(value)[:60]
    elif isinstance(value, list) and value:
        keys = [*range(min(len(value), 8)), len(value) - 1]
    return [path, *(found for key in keys for found in _paths(value[key], (*path, key)))]
