"""Steps as files: computed once, named by their inputs, in whole blocks; a cut at any byte changes no bit."""

import dataclasses
import json
import threading
from collections.abc import Iterator, Sequence

import pytest

from pasta_jax.errors import PastaError
from pasta_jax.preference.artifacts import Artifact, Artifacts, Step

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

    fits = lambda number, record: record.n == number  # noqa: E731
    return Artifacts(folder).make(Step("count", inputs or {"seed": 1}, Number, TOTAL, compute, BLOCK, fits))


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


def test_a_step_cut_at_any_byte_ends_like_an_uninterrupted_one(tmp_path):
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


def test_a_step_begun_by_an_earlier_version_goes_on(tmp_path):
    """It wrote other characters than ASCII as they are, and keys in the order of the fields."""
    head = {"step": "count", "made_from": {"seed": 1}}
    lines = [head, *({"text": "\u2028ü\n", "n": n} for n in range(4))]
    path = Artifacts(tmp_path).path("count", {"seed": 1}).with_suffix(".jsonl.part")
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    computed = []
    assert [record.n for record in make(tmp_path, computed).records] == list(range(TOTAL))
    assert computed == [3, 6]


def test_runs_that_share_a_step_compute_it_once(tmp_path):
    computed, artifacts, began = [], [], threading.Event()

    class Slow(list):
        def append(self, item):
            began.set()
            super().append(item)

    slow = Slow()
    first = threading.Thread(target=lambda: artifacts.append(make(tmp_path, slow)))
    first.start()
    assert began.wait(60)
    artifacts.append(make(tmp_path, computed))
    first.join(60)
    assert computed == []
    assert artifacts[0] == artifacts[1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{nonsense", "line 4.*not JSON"),
        ('{"n": "three", "text": ""}', "line 4: .*expected `int`"),
        ('{"n": 1}', "line 4: text: missing"),
        ('{"n": 5, "text": ""}', "line 4: does not belong"),
        ("", "line 4.*not JSON"),
        (None, "has 6 records, this step has 7"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, line, message):
    artifact = make(tmp_path, [])
    lines = artifact.path.read_text().split("\n")
    lines[3:4] = [] if line is None else [line]
    part = artifact.path.with_suffix(".jsonl.part")
    artifact.path.write_text("\n".join(lines))
    with pytest.raises(PastaError, match=rf"count-.*{message}.*; delete the file"):
        make(tmp_path, [])
    artifact.path.rename(part)
    if line is not None:
        with pytest.raises(PastaError, match=rf"part: {message.partition('.*')[0]}.*; delete the file"):
            make(tmp_path, [])
