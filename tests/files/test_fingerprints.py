"""Fingerprints: equal for equal content, different otherwise, and stable from one version to the next."""

import types

from pasta_jax.files import fingerprints


def test_texts_are_hashed_in_order_with_their_boundaries():
    assert fingerprints.of_texts(["a", "b"]) == fingerprints.of_texts(iter(["a", "b"]))
    different = [["a", "b"], ["b", "a"], ["ab"], ["ab", ""], ["a", "b", ""], []]
    assert len({fingerprints.of_texts(texts) for texts in different}) == len(different)


def test_data_is_hashed_by_value():
    assert fingerprints.of_data({"a": 1, "b": [2]}) == fingerprints.of_data({"b": [2], "a": 1})
    assert fingerprints.of_data([1, 2]) != fingerprints.of_data([2, 1])
    assert fingerprints.of_data({"a": 1}) != fingerprints.of_data({"a": "1"})


def test_large_files_are_told_apart_by_pieces(tmp_path):
    path, other, seen = tmp_path / "weights", tmp_path / "other", set()
    for content in (b"", b"a", b"a" * 10**6, b"a" * (10**6 - 1), b"a" * 990_000 + b"b" * 10_000):
        path.write_bytes(content)
        seen.add(fingerprints.of_pieces([path]))
    assert len(seen) == 5
    assert fingerprints.of_pieces([path]) in seen
    other.write_bytes(content)
    assert fingerprints.of_pieces([other]) not in seen


def test_code_is_hashed_by_its_source(tmp_path):
    module = types.ModuleType("module")
    module.__file__ = str(tmp_path / "module.py")
    (tmp_path / "module.py").write_text("a = 1\n")
    before = fingerprints.of_code(module)
    assert before == fingerprints.of_texts(["a = 1\n"])
    (tmp_path / "module.py").write_text("a = 2\n")
    assert fingerprints.of_code(module) != before


def test_values_on_disk_stay_valid():
    """Files of earlier runs hold these: a change would discard them all."""
    assert fingerprints.of_texts(["PASTA", "数"]) == "109e5cfb69c951df"
    assert fingerprints.of_data({"seed": 0, "rows": [1, 2]}) == "35422655a63d9b3d"
