"""JSON lines: read with their places, in bounded memory; appended so that a cut at any byte loses one line at most."""

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from pasta_jax.errors import PastaError
from pasta_jax.files import jsonl
from pasta_jax.files.validated import Count


@pytest.mark.parametrize(
    ("content", "places"),
    [
        ('\n{"a": 1}\n  \n{"a": 2}', ["line 2", "line 4"]),
        ('\ufeff[{"a": 1},\n {"a": 2}]', ["record 1", "record 2"]),
    ],
)
def test_lines_and_a_list_have_the_same_records(tmp_path, content, places):
    path = tmp_path / "records"
    path.write_text(content)
    found = jsonl.read_records(path, dict[str, Count], "fix it")
    assert found == [(f"{path}: {place}", {"a": n}) for n, place in enumerate(places, 1)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": 1}\n{"a": -1}', r"line 2: \[\.\.\.\]: expected `int` >= 0"),
        ('[{"a": 1}, {"a": "b"}]', r"record 2: .*expected `int`, got `str`"),
        ('{"a": 1}\n{"a"', "line 2, column 5: not JSON"),
        ('{"a": 1}\n\udcff', "line 2: byte 1 is not UTF-8"),
        ("[1,\n2", "line 2, column 2: not JSON"),
        ("\n \n", "has no records"),
        ("[]", "has no records"),
    ],
)
def test_what_cannot_be_read_has_its_place(tmp_path, content, message):
    path = tmp_path / "records"
    path.write_text(content, errors="surrogateescape")
    with pytest.raises(PastaError, match=rf"records: {message}.*; fix it$|records, {message}.*; fix it$"):
        jsonl.read_records(path, dict[str, Count], "fix it")


def test_more_records_than_fit_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "MOST_RECORDS", 2)
    for content in ("1\n2\n3", "[1, 2, 3]"):
        (tmp_path / "records").write_text(content)
        with pytest.raises(PastaError, match="has more than 2 records"):
            jsonl.read_records(tmp_path / "records", Any, "fix it")


def test_a_huge_line_is_refused_in_bounded_memory(tmp_path):
    path = tmp_path / "prompts\n.jsonl"
    with path.open("wb") as file:
        file.write(b'{"prompt": "Why?"}\n')
        file.truncate(100 << 20)
    tracemalloc.start()
    with pytest.raises(PastaError, match=r"prompts\\n\.jsonl: line 2: has more than 4,194,304 bytes; fix it"):
        jsonl.read_records(path, Any, "fix it")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20


def test_appended_lines_survive_a_cut_at_any_byte(tmp_path):
    path = tmp_path / "new" / "lines.jsonl"
    with jsonl.JsonLines(path) as file:
        assert file.lines == []
        for value in ({"b": 1, "a": "数\u2028"}, [2], "three"):
            file.append(value)
            assert path.read_bytes().endswith(jsonl.json_line(value))  # handed over at once
    whole = path.read_bytes()
    assert whole == b'{"a": "\\u6570\\u2028", "b": 1}\n[2]\n"three"\n'
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with jsonl.JsonLines(path) as file:
            assert file.lines == whole[:length].split(b"\n")[:-1]
            file.append(4)
        assert path.read_bytes() == b"".join(line + b"\n" for line in [*file.lines, b"4"])
    with pytest.raises(PastaError, match="choose a writable folder"):
        jsonl.JsonLines(path / "below")


@pytest.mark.parametrize("content", ["", "cut", 'a\n\n"\u2028\u0085\x0b"\ncut'])
def test_whole_lines_end_at_line_breaks_alone(tmp_path, content):
    path = tmp_path / "lines"
    assert jsonl.whole_lines(path) == []
    path.write_bytes(content.encode())
    assert jsonl.whole_lines(path) == content.encode().split(b"\n")[:-1]


def test_what_another_process_appends_while_a_file_is_opened_stays(tmp_path, monkeypatch):
    path, read = tmp_path / "lines.jsonl", Path.read_bytes
    with jsonl.JsonLines(path) as first:
        first.append(1)

        def read_before_another_line(self: Path) -> bytes:
            content = read(self)
            first.append(2)
            return content

        monkeypatch.setattr(Path, "read_bytes", read_before_another_line)
        with jsonl.JsonLines(path) as second:
            assert second.lines == [b"1"]
            second.append(3)
    assert read(path) == b"1\n2\n3\n"
