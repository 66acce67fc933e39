"""Mutations of valid data: of trees of JSON, of lines, of bytes; those of one format know its structure."""

import copy
import json
import random
from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")
Path = tuple[Any, ...]  # keys and indices from the root of a tree

LONG = "\ue000 a number of 5,000 digits"  # json.dumps refuses such numbers, so they are put in afterwards
DEEP = "\ue000 lists in lists"
STRANGE = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 255, 256, 2**16, 2**20, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53),
    *(2**63 - 1, 2**63, -(2**63), 2**64, 10**10, 10**9, 10**30, LONG, 0.0, -0.0, 0.5, 1.5, -1.5, 1e-300, 1e308, 1e9),
    *(float("inf"), float("-inf"), float("nan")),
    *(
        "",
        "a",
        " ",
        "\n",
        "a\nb",
        "\0",
        "\x1b[31m",
        "\ud800",
        "数",
        "\u2028",
        "1",
        "nan",
        "x" * 100_000,
        "../../x",
        "/",
    ),
    *([], {}, [[]], [None], [0], [""], [{}], {"": None}, {"a": 1}, DEEP, [1] * 1000, ["a"] * 50, {"type": "default"}),
)
WORDS = ("true", "None", "1e400", "-", "0x10", "(1,2)", "[1,", "{'a': 1}", "__import__('os')", "nan", "inf", "'")


class Unchanged:
    """No mutation: the valid data, of which there may be several."""

    rng = random.Random(0)

    def __init__(self, number: int):
        self.number = number

    def pick(self, values: Sequence[T]) -> T:
        """One of several."""
        return values[self.number % len(values)]

    def tree(self, value: Any) -> Any:
        """A tree of dicts, lists, texts and numbers."""
        return value

    def raw(self, data: bytes) -> bytes:
        """Any bytes."""
        return data

    def json(self, value: Any) -> bytes:
        """A file with one JSON value."""
        return dumped(value)

    def lines(self, values: Sequence[Any]) -> bytes:
        """A file of JSON lines."""
        return b"".join(dumped(value) + b"\n" for value in values)


class Mutator(Unchanged):
    """Mutations drawn from a generator of random numbers."""

    def __init__(self, rng: random.Random):
        self.rng = rng

    def pick(self, values: Sequence[T]) -> T:
        return self.rng.choice(values)

    def tree(self, value: Any) -> Any:
        root = [copy.deepcopy(value)]
        for _ in range(self.rng.choice((1, 1, 1, 2, 3, 8))):
            self._change(root)
        return root[0]

    def raw(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(self.rng.choice((1, 1, 2, 4, 16))):
            self._damage(changed)
        return bytes(changed)

    def json(self, value: Any) -> bytes:
        content = dumped(self.tree(value)) if self.rng.random() < 0.85 else dumped(value)
        return content if self.rng.random() < 0.85 else self.raw(content)

    def lines(self, values: Sequence[Any]) -> bytes:
        rows, at = list(values), self.rng.randrange(len(values))
        match self.rng.randrange(8):
            case 0:
                rows[at] = self.pick(STRANGE)
            case 1:
                del rows[at]
            case 2:
                rows.insert(at, rows[self.rng.randrange(len(rows))])
            case _:
                rows[at] = self.tree(rows[at])
        content = b"".join(dumped(row) + b"\n" for row in rows)
        match self.rng.randrange(12):
            case 0:
                return self.raw(content)
            case 1:
                return content.replace(b"\n", self.pick((b"\r\n", b"", b"\0", b"\n\n", b"\xe2\x80\xa8")), 3)
            case 2:
                return content + b"x" * self.pick((1, 10_000, 2_000_000))
        return content

    def _change(self, root: list[Any]) -> None:
        """Change one place of a tree in one way."""
        path = self.pick(list(_paths(root))[1:] or [(0,)])
        parent: Any = root
        for key in path[:-1]:
            parent = parent[key]
        key = path[-1]
        try:
            value = parent[key]
        except (KeyError, IndexError):
            return
        match self.rng.randrange(12):
            case 0 if parent is not root:
                del parent[key]
            case 1 if isinstance(parent, dict) and parent is not root:
                parent[self.pick(("", "a", "extra", "数", str(key) + "_", "type"))] = value
            case 2:
                parent[key] = self.pick(([value], {"value": value}, [value, value], str(value), {str(value): value}))
            case 3 if isinstance(value, list) and value:
                parent[key] = self.pick((value[:-1], value * 2, value[::-1], value[:1], [*value, value[0]]))
            case 3 | 4 if isinstance(value, int | float):
                parent[key] = self.pick(
                    (-value, value + 1, value - 1, value * 2, value / 3, value * 10**6, value + 0.5)
                )
            case 5 if isinstance(value, str):
                parent[key] = self.pick(
                    (value * 2, value[:-1], value[::-1], value + "\n", value.upper(), value + "\ud800")
                )
            case 6:
                other: Any = root
                for step in self.pick(list(_paths(root))[1:]):
                    other = other[step]
                parent[key] = copy.deepcopy(other)
            case _:
                parent[key] = copy.deepcopy(self.pick(STRANGE))

    def _damage(self, data: bytearray) -> None:
        """Change some bytes in one way."""
        at = self.rng.randrange(len(data)) if data else 0
        span = self.rng.choice((1, 1, 2, 4, 8, 64))
        match self.rng.randrange(9):
            case 0 | 1 if data:
                data[at] ^= 1 << self.rng.randrange(8)
            case 2:
                data[at : at + span] = self.rng.randbytes(span)
            case 3:
                del data[at:]
            case 4:
                del data[at : at + span]
            case 5:
                data[at:at] = data[at : at + span]
            case 6:
                data[at : at + span] = self.pick((b"\0", b"\xff")) * span
            case 7:
                size = self.pick((4, 8))
                number = self.pick((0, 1, 2**31 - 1, 2**31, 2**32 - 1, 10**6, 10**9, 2**63, 2**64 - 1)) % 2 ** (
                    8 * size
                )
                data[at : at + size] = number.to_bytes(size, "little")
            case _:
                data[at:at] = self.pick(
                    (b'"', b"{", b"[" * 5000, b",", b"\n", b"\xc3", b"9" * 5000, b"\\ud800", b"null")
                )


def dumped(value: Any) -> bytes:
    """A tree as JSON, as other tools write it: with NaN, and halves of surrogate pairs."""
    text = json.dumps(value, ensure_ascii=True)
    text = text.replace(json.dumps(LONG), "9" * 5000).replace(json.dumps(DEEP), "[" * 3000 + "]" * 3000)
    return text.encode()


def _paths(value: Any, path: Path = ()) -> list[Path]:
    """The paths of all parts of a tree; of long lists, the first few and the last."""
    found = [path]
    if isinstance(value, dict):
        keys: list[Any] = list(value)
    elif isinstance(value, list):
        keys = [*range(min(len(value), 8)), len(value) - 1] if value else []
    else:
        keys = []
    for key in keys[:60]:
        found += _paths(value[key], (*path, key))
    return found
