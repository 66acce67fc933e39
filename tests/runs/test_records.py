"""Steps as files: computed once, named by their inputs, resumed after a kill at any byte."""

import dataclasses
from collections.abc import Iterator, Sequence

import pytest

from pasta_jax.errors import PastaError
from pasta_jax.runs.records import Artifact, Artifacts

TOTAL, BLOCK = 7, 3


@dataclasses.dataclass(frozen=True)
class Number:
    n: int
    text: str


def make(folder, computed: list[int], inputs: dict | None = None) -> Artifact[Number]:
    """Make a step whose blocks come in reverse order; `computed` collects the start of each that was computed."""

    def compute(numbers: Sequence[int]) -> Iterator[tuple[int, Number]]:
        computed.append(numbers[0])
        return ((n, Number(n, "\u2028ü\n")) for n in reversed(numbers))

    return Artifacts(folder).make("count", inputs or {"seed": 1}, Number, TOTAL, BLOCK, compute)


def test_a_step_is_computed_once_for_each_set_of_inputs(tmp_path):
    computed = []
    first, again = make(tmp_path, computed), make(tmp_path, computed)
    assert computed == [0, 3, 6]
    assert first == again
    assert [record.n for record in first.records] == list(range(TOTAL))
    other = make(tmp_path, computed, {"seed": 2})
    assert other.path != first.path
    assert other.fingerprint == first.fingerprint  # of the records
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".jsonl", ".jsonl"]


def test_a_step_killed_at_any_byte_ends_like_an_uninterrupted_one(tmp_path):
    whole = make(tmp_path / "whole", [])
    text = whole.path.read_bytes()
    for cut in range(0, len(text), 11):
        folder = tmp_path / f"cut{cut}"
        folder.mkdir()
        part = folder / (whole.path.name + ".part")
        part.write_bytes(text[:cut])
        computed = []
        assert make(folder, computed).fingerprint == whole.fingerprint
        assert (folder / whole.path.name).read_bytes() == text
        lines = text[:cut].count(b"\n") - 1
        assert computed == [at for at in range(0, TOTAL, BLOCK) if at >= max(lines, 0) // BLOCK * BLOCK]


@pytest.mark.parametrize(
    ("line", "message"),
    [("{nonsense", "not JSON"), ('{"n": "three", "text": ""}', "expected `int`"), ('{"n": 1}', "text: missing")],
)
def test_a_damaged_file_is_refused_by_its_line(tmp_path, line, message):
    artifact = make(tmp_path, [])
    text = artifact.path.read_text().split("\n")
    artifact.path.write_text("\n".join([*text[:3], line, *text[4:]]))
    with pytest.raises(PastaError, match=rf"count-.*line 4.*{message}.*delete the file"):
        make(tmp_path, [])


def test_a_file_cut_off_within_its_last_line_is_refused(tmp_path):
    artifact = make(tmp_path, [])
    artifact.path.write_bytes(artifact.path.read_bytes()[:-5])
    with pytest.raises(PastaError, match=r"line 8.*not JSON"):
        make(tmp_path, [])
