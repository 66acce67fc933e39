"""Datasets on disk: records round-trip under any policy; a dataset states what it was made from."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from pasta_jax.data.builder import Examples, about_of, is_current, write
from pasta_jax.data.example import VECTORS, encode
from pasta_jax.data.records import prompt_ids
from pasta_jax.errors import PastaError
from pasta_jax.lang.program import Program
from pasta_jax.lang.structure import NO_LABEL, POLICIES, Positions
from pasta_jax.lang.tree import to_tree
from pasta_jax.toy.tokenizer import toy_tokenizer
from tests.helpers.records import toy_records

TOKENIZER = toy_tokenizer()
RECORDS = toy_records(40, validation_percent=20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "set"
    write(folder, RECORDS, TOKENIZER)
    return folder


def examples(folder: Path, split: str = "train", strip_tags: bool = False, policy: str = "predicted") -> Examples:
    return Examples(folder, split, TOKENIZER, strip_tags, Positions(policy, 30))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("strip_tags", [False, True])
def test_records_round_trip(folder, policy, strip_tags):
    stored = [e for split in ("train", "validation") for e in examples(folder, split, strip_tags, policy)]
    expected = []
    for record in RECORDS:
        plain, linear = TOKENIZER.encode(record.response), Program.parse(record.program).ids(TOKENIZER)
        ids = plain if strip_tags else linear
        prompt = prompt_ids(record, TOKENIZER)
        expected.append(encode(prompt, ids, TOKENIZER.tags, TOKENIZER.end_of_turn, Positions(policy, 30)))

    def content(examples) -> list[tuple]:
        return sorted(tuple(getattr(e, name).tolist() for name in VECTORS) for e in examples)

    assert content(stored) == content(expected)
    assert all(getattr(e, name).dtype == np.int32 for e in stored for name in VECTORS)


def test_answers_as_trees(folder):
    trees = Examples(folder, "train", TOKENIZER, False, Positions("shared_start"), tree=True)
    assert trees.lengths == [len(example) for example in trees]
    assert any(TOKENIZER.tags.promise in example.token for example in trees)
    for example in trees:
        prompt = int((example.label != NO_LABEL).argmax()) + 1  # its last token predicts the first of the answer
        answer = example.token[prompt:]
        np.testing.assert_array_equal(answer, to_tree(answer, TOKENIZER.tags))


def test_splits_and_lengths(folder):
    for split in ("train", "validation"):
        set_ = examples(folder, split)
        assert len(set_) == sum(record.split == split for record in RECORDS) > 0
        assert set_.lengths == [len(e) for e in set_]
        plain = examples(folder, split, strip_tags=True)
        assert plain.lengths == [len(e) for e in plain]
    with pytest.raises(PastaError, match="no split 'test'"):
        examples(folder, "test")


@pytest.mark.parametrize(("there", "fix"), [("train", "data.held_out=0"), ("validation", "validation_percent=0")])
def test_a_split_without_records_has_a_fix_of_its_own(tmp_path, there, fix):
    write(tmp_path / "set", [record for record in RECORDS if record.split == there], TOKENIZER)
    with pytest.raises(PastaError, match=rf"no split .*, only {there}; .*{fix}"):
        examples(tmp_path / "set", {"train": "validation", "validation": "train"}[there])


def test_writing_is_reproducible_and_replaces_an_older_dataset(folder, tmp_path):
    assert is_current(folder, RECORDS, TOKENIZER)
    assert not is_current(folder, RECORDS[1:], TOKENIZER)
    assert not is_current(tmp_path, RECORDS, TOKENIZER)
    other = dataclasses.replace(RECORDS[0], annotator="other")
    assert about_of([other], TOKENIZER)["fingerprint"] != about_of(RECORDS[:1], TOKENIZER)["fingerprint"]
    write(tmp_path / "copy", RECORDS, TOKENIZER)
    for before, after in zip(examples(folder), examples(tmp_path / "copy"), strict=True):
        np.testing.assert_array_equal(before.token, after.token)
    write(tmp_path / "copy", RECORDS[:9], TOKENIZER)  # replaces the old one
    assert is_current(tmp_path / "copy", RECORDS[:9], TOKENIZER)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy"]


def test_a_record_may_occur_twice(tmp_path):
    write(tmp_path / "set", [RECORDS[0], RECORDS[0]], TOKENIZER)
    assert len(examples(tmp_path / "set", RECORDS[0].split)) == 2


def test_evaluation_data_is_refused(tmp_path):
    records = [dataclasses.replace(RECORDS[0], source="alpaca_eval")]
    with pytest.raises(PastaError, match="reserved for evaluation"):
        write(tmp_path / "set", records, TOKENIZER)
    with pytest.raises(PastaError, match="no record"):
        write(tmp_path / "set", [], TOKENIZER)
    (tmp_path / "mine.txt").touch()
    with pytest.raises(PastaError, match="not a dataset"):
        write(tmp_path, RECORDS, TOKENIZER)


def test_another_version_tokenizer_or_folder_is_refused(folder, tmp_path):
    about = json.loads((folder / "about.json").read_text())
    for change, message in (
        ({"version": "9.0.0"}, "version 9"),
        ({"tokenizer": "x"}, "another tokenizer"),
        ({"sources": ["mt_bench"]}, "reserved for evaluation"),
        ({"counts": {"train": "many"}}, r"counts\[...\]: expected `int`, got `str`"),
        ({"path": "../elsewhere"}, "is not a folder below"),
        ({"path": "gone"}, "not a whole dataset .*; write it again"),
    ):
        (tmp_path / "about.json").write_text(json.dumps(about | change))
        with pytest.raises(PastaError, match=message):
            examples(tmp_path)
    (tmp_path / "about.json").write_text("{")
    with pytest.raises(PastaError, match="not JSON"):
        examples(tmp_path)
    with pytest.raises(PastaError, match="folder that launch"):
        examples(tmp_path / "absent")
