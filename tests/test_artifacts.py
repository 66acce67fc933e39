"""Steps as files: made once, named by what they were made from, gone on with after a kill at any byte."""

import pytest

from pasta_jax.errors import PastaError
from pasta_jax.pipelines.artifacts import Steps, read

TOTAL, BLOCK = 7, 3


def numbers(start: int, made: list):
    """Blocks of records; notes what was computed."""
    for at in range(start, TOTAL, BLOCK):
        made.append(at)
        yield [{"n": n, "text": "\u2028ü\n"} for n in range(at, min(at + BLOCK, TOTAL))]


def make(folder, made: list, settings=None):
    return Steps(folder).make("count", settings or {"seed": 1}, TOTAL, BLOCK, lambda start: numbers(start, made))


def test_a_step_is_made_once_and_another_one_for_other_settings(tmp_path):
    made = []
    first, again = make(tmp_path, made), make(tmp_path, made)
    assert made == [0, 3, 6]
    assert first == again
    assert [record["n"] for record in first.records] == list(range(TOTAL))
    other = make(tmp_path, made, {"seed": 2})
    assert other.path != first.path
    assert other.fingerprint == first.fingerprint  # by content
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".jsonl", ".jsonl"]


def test_a_step_killed_at_any_byte_ends_as_a_whole_one(tmp_path):
    whole = make(tmp_path / "whole", [])
    text = whole.path.read_bytes()
    for cut in range(0, len(text), 11):
        folder = tmp_path / f"cut{cut}"
        folder.mkdir()
        part = folder / (whole.path.name + ".part")
        part.write_bytes(text[:cut])
        made = []
        assert make(folder, made).fingerprint == whole.fingerprint
        assert (folder / whole.path.name).read_bytes() == text
        lines = text[:cut].count(b"\n") - 1
        assert made == [at for at in range(0, TOTAL, BLOCK) if at >= max(lines, 0) // BLOCK * BLOCK]


def test_a_file_that_was_spoilt_is_refused_by_its_line(tmp_path):
    made = make(tmp_path, [])
    text = made.path.read_text().split("\n")
    made.path.write_text("\n".join([*text[:3], "{nonsense", *text[4:]]))
    with pytest.raises(PastaError, match=r"count-.*line 4 is not JSON"):
        read(made.path)
