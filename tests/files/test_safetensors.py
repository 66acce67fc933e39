"""Safetensors files as the package itself writes them."""

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pasta_jax.files import safetensors

TENSORS = {
    "b/narrow": np.arange(3, dtype=np.int8),
    "a/wide": np.arange(6, dtype=np.float32).reshape(2, 3),
    "c": np.arange(12, dtype=np.uint32).reshape(3, 4)[:, ::2],
    "empty": np.zeros((0, 5), np.float32),
    "half": np.arange(4).astype(ml_dtypes.bfloat16),
    "one": np.float64(2.5).reshape(()),
    "ö": np.arange(5, dtype=np.int32),
}


def test_a_file_is_what_the_package_reads_and_writes(tmp_path):
    safetensors.write(tmp_path / "ours", TENSORS, {"format": "pt"})
    read = load_file(tmp_path / "ours")
    assert read.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert read[name].dtype == tensor.dtype
        np.testing.assert_array_equal(read[name], tensor)
    same = {"b": np.arange(3, dtype=np.float32), "a": np.ones((2, 2), np.float32), "c": np.arange(2, dtype=np.int8)}
    safetensors.write(tmp_path / "ours", same, {"format": "pt"})
    save_file(same, tmp_path / "theirs", metadata={"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_a_tensor_of_a_kind_that_files_lack_is_an_error(tmp_path):
    with pytest.raises(KeyError):
        safetensors.write(tmp_path / "x", {"x": np.array(["text"])}, {})
    assert not (tmp_path / "x").exists()
