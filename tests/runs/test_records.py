"""Records of a computation: a file cut anywhere goes on, nothing is computed twice, another run's file is refused."""

import dataclasses
import json
import operator
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pasta_jax.errors import PastaError
from pasta_jax.files.remote import path_of
from pasta_jax.runs import records
from tests.helpers import bucket

HEADER = {"model": "tiny", "seed": 1, "top_p": None}
TOTAL = 5


@dataclasses.dataclass(frozen=True)
class Square:
    n: int
    text: str
    found: tuple[tuple[int, float], ...]


class Interrupted(Exception):
    pass


def square(n: int) -> Square:
    return Square(n, f"é\u2028 {n}\n", ((n, n * 0.1),))


def fill(path: Path | None, stop: int = TOTAL, total: int = TOTAL, header: dict | None = None) -> list[int]:
    """Compute what is missing, in reverse order, at most `stop` records; what was computed."""
    computed = []

    def compute(numbers: Sequence[int]) -> Iterator[Square]:
        for n in reversed(numbers):
            if len(computed) == stop:
                raise Interrupted
            computed.append(n)
            yield square(n)

    def fits(record: Square) -> bool:
        return record.n < total

    with records.opened(path, header or HEADER, Square, operator.attrgetter("n"), "write elsewhere", fits) as done:
        try:
            for record in done.fill(done.missing(range(total)), compute):
                assert done.known[record.n] == record
            assert [done.known[n] for n in range(total)] == [square(n) for n in range(total)]
        except Interrupted:
            pass
    return computed


def test_no_record_is_computed_twice(tmp_path):
    path = tmp_path / "new" / "squares.jsonl"
    assert [fill(path, stop) for stop in (0, 2, 1, TOTAL, 0)] == [[], [4, 3], [2], [1, 0], []]
    header, *lines = map(json.loads, path.read_text().splitlines())
    assert (header, [line["n"] for line in lines]) == (HEADER, [4, 3, 2, 1, 0])
    assert list(path.parent.iterdir()) == [path]
    assert fill(None) == [4, 3, 2, 1, 0]  # in memory


def test_a_file_cut_at_any_byte_goes_on(tmp_path):
    path = tmp_path / "squares.jsonl"
    fill(path, total=3)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        left = max(whole[:length].count(b"\n") - 1, 0)
        assert fill(path, total=3) == [2, 1, 0][left:]
        assert path.read_bytes() == whole


def test_records_are_in_memory_as_a_later_run_reads_them(tmp_path):
    """Their keys are in the order of the file."""
    kind = tuple[int, dict[str, object]]
    for evidence in ({"b": (1, 2), "a": {"d": 0, "c": 1}}, None):
        with records.opened(tmp_path / "a", HEADER, kind, operator.itemgetter(0), "") as done:
            if evidence:
                done.add((0, evidence))
            assert json.dumps(done.known[0]) == '[0, {"a": {"c": 1, "d": 0}, "b": [1, 2]}]'


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 2}, "begun with seed=1, now 2"),
        ({"top_p": 0.9, "seed": 2}, "begun with seed=1, now 2"),  # the first
        ({"top_k": 0}, "begun with top_k=None, now 0"),
        ({"model": "other", "seed": None}, "begun with model=tiny, now other"),
    ],
)
def test_another_runs_file_is_refused_by_the_first_value_that_differs(tmp_path, change, message):
    path = tmp_path / "squares.jsonl"
    fill(path)
    whole = path.read_bytes()
    with pytest.raises(PastaError, match=rf"squares\.jsonl: {message}; change it back to resume, or write elsewhere"):
        fill(path, header=HEADER | change)
    assert path.read_bytes() == whole


def test_a_file_without_a_record_belongs_to_nobody(tmp_path):
    """Its command may have been refused after that, for what is corrected now."""
    path = tmp_path / "squares.jsonl"
    path.write_text(json.dumps(HEADER | {"seed": 2}) + "\n")
    fill(path)
    assert json.loads(path.read_text().splitlines()[0])["seed"] == HEADER["seed"]
    other = tmp_path / "notes.jsonl"
    other.write_text('{"my": "results"}\n')
    with pytest.raises(PastaError, match="write elsewhere"):
        fill(other)
    assert other.read_text() == '{"my": "results"}\n'


@pytest.mark.parametrize("content", ['{"my": "results"}', '{"my": "results"}\n{"of": "a week"}', "[1,\n2]"])
def test_a_file_of_something_else_without_a_last_line_break_stays_as_it_is(tmp_path, content):
    """Its last line looks like one that a kill cut off; its first one does not."""
    path = tmp_path / "results.json"
    path.write_text(content)
    with pytest.raises(PastaError, match="write elsewhere"):
        fill(path)
    assert path.read_text() == content


@pytest.mark.parametrize("line", ["[]", "{nonsense", "1", "[" * 100_000])
def test_a_file_of_something_else_is_refused(tmp_path, line):
    path = tmp_path / "squares.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(PastaError, match=r"squares\.jsonl: not the records of a stopped run; write elsewhere"):
        fill(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [("\0\0", "not JSON"), ('{"n": 1}', "text: missing"), ('{"n": 9, "text": "", "found": []}', "does not belong to")],
)
def test_a_damaged_line_is_named(tmp_path, line, message):
    path = tmp_path / "squares.jsonl"
    fill(path, stop=2)
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(PastaError, match=rf"line 4.*{message}.*; delete that line"):
        fill(path)


def test_a_second_process_is_told_the_first(tmp_path):
    path = tmp_path / "squares.jsonl"
    refused = pytest.raises(PastaError, match=rf"squares\.jsonl: in use by process {os.getpid()} on ")
    with records.opened(path, HEADER, Square, operator.attrgetter("n"), ""), refused:
        fill(path)
    assert len(fill(path)) == TOTAL


def test_a_full_disk_is_one_line_and_keeps_the_records(tmp_path):
    path = tmp_path / "squares.jsonl"
    full = pytest.raises(PastaError, match=r"squares\.jsonl: the disk is full; free some space and rerun")
    with full, records.opened(path, HEADER, Square, operator.attrgetter("n"), "") as done:
        done.add(square(0))
        raise OSError(28, os.strerror(28))
    assert fill(path) == [4, 3, 2, 1]


def test_records_at_gs_go_on(tmp_path, monkeypatch):
    bucket.install(monkeypatch, tmp_path)
    path, behind = path_of("gs://bucket/run/squares.jsonl"), tmp_path / "bucket/run/squares.jsonl"
    assert fill(path, stop=2) == [4, 3]
    behind.write_bytes(behind.read_bytes()[:-5])
    assert fill(path) == [3, 2, 1, 0]
    assert len(behind.read_text().splitlines()) == 1 + TOTAL
