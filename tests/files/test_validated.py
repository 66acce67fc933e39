"""Data from outside: sizes are limited before anything is read, and each error is one line with its place and fix."""

import dataclasses
import io
import sys
from typing import Annotated, Literal
from unittest import mock

import pytest
from msgspec import Meta

from pasta_jax.answer import prompts
from pasta_jax.errors import PastaError
from pasta_jax.files import validated
from pasta_jax.tokenizers.bpe import takes_bounded_time

MOST, FIX = 1000, "fix it"


@dataclasses.dataclass(frozen=True)
class Part:
    size: Annotated[int, Meta(ge=1, le=10)]
    kind: Literal["a", "b"] = "a"


@dataclasses.dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]
    share: Annotated[float, Meta(ge=0, le=1)] = 0.5

    def __post_init__(self):
        if len(self.parts) > 2:
            raise PastaError("at most two parts")


def refused(path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(PastaError) as error:
        validated.read_json(path, Whole, MOST, FIX)
    return str(error.value).removeprefix(f"{path}: ")


def test_json_becomes_its_type(tmp_path):
    (tmp_path / "a").write_bytes(b'\xef\xbb\xbf{"parts": [{"size": 3}, {"size": 10, "kind": "b"}], "other": null}')
    assert validated.read_json(tmp_path / "a", Whole, MOST, FIX) == Whole((Part(3), Part(10, "b")))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"parts": [{"size": 3}, {"size": 11}]}', "parts[1].size: expected `int` <= 10; fix it"),
        (b'{"parts": [{"kind": "b"}]}', "parts[0].size: missing; fix it"),
        (b'{"parts": [{"size": 3, "kind": "c"}]}', "parts[0].kind: unknown value 'c'; choose from a, b; fix it"),
        (b'{"parts": [], "share": NaN}', "share: expected `float` >= 0.0; fix it"),
        (b'{"parts": [], "share": 1e999}', "share: expected `float` <= 1.0; fix it"),
        (b'{"parts": [{"size": 1}, {"size": 1}, {"size": 1}]}', "at most two parts; fix it"),
        (b"[]", "expected `object`, got `array`; fix it"),
        (b'{"parts":\n [}', "line 2, column 3: not JSON: Expecting value; fix it"),
        (b'{"parts": ' + b"9" * 900, "line 1, column 911: not JSON: Expecting ',' delimiter; fix it"),
        (b"\xff", "byte 1 is not UTF-8; fix it"),
        (b'{"a": "\\uD800"}', "contains '\\ud800', which is not valid Unicode; fix it"),
        (b"x" * (MOST + 1), "has more than 1,000 bytes; fix it"),
    ],
)
def test_invalid_files_are_one_line_with_place_and_fix(tmp_path, content, message):
    assert refused(tmp_path / "a", content) == message


def test_long_numbers_deep_nesting_and_unreadable_paths_are_one_line(tmp_path):
    for content, message in (("9" * 5000, "a number of thousands"), ("[" * 100_000, "nested too deeply|not JSON")):
        with pytest.raises(PastaError, match=f"^it: line 7.*: .*{message}.*; fix it$"):
            validated.parse_json(content, "it", FIX, line=7)
    for path in (tmp_path, tmp_path / "absent", tmp_path / "a\0b", tmp_path / ("x" * 5000)):
        with pytest.raises(PastaError, match=r"; fix it$") as error:
            validated.read_bytes(path, MOST, FIX)
        assert str(error.value).isprintable()


def test_hostile_prompts_are_refused_by_line(tmp_path):
    path = tmp_path / "prompts.jsonl"
    for line in (b'{"prompt": ' + b"9" * 5000 + b"}", b'{"prompt": "a \\udc80"}', b'{"prompt": "\xff"}', b"[" * 9999):
        path.write_bytes(b'\n{"prompt": "Why?"}\n' + line)
        with pytest.raises(PastaError, match=r"prompts\.jsonl: line 3[:,]") as error:
            prompts.read_prompts_file(path)
        assert str(error.value).isprintable()
    stdin = mock.Mock(buffer=io.BytesIO(b"x" * (prompts.MOST_BYTES + 1)))
    with mock.patch.object(sys, "stdin", stdin), pytest.raises(PastaError, match="stdin: has more than"):
        prompts.read_prompt("-")


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


UNBOUNDED = ["(a+)+b", "(a|a)*b", "(?:a{1,9}){9,}", ".*.*.*x", r"(x)\1", "(?<=a)b", "(?R)", r"\k<a>", "[a[b]]", "["]


@pytest.mark.parametrize("pattern", [GPT2, LLAMA3, GPT4O, r"\d", "[0-9]", *UNBOUNDED])
def test_patterns_that_may_take_forever_are_recognised_and_none_in_use_does(pattern):
    assert takes_bounded_time(pattern) == (pattern not in UNBOUNDED)
