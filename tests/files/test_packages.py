"""Files from packages: joined once, checked against their hashes, named with their command when missing."""

import hashlib
import os

import pytest

from pasta_jax.errors import PastaError
from pasta_jax.files import packages as assets
from tests.helpers.requires import requires_gemma, requires_smollm2

PARTS = [b"GGUF one, ", b"two, ", b"three"]
WHOLE = b"".join(PARTS)
SHA256 = hashlib.sha256(WHOLE).hexdigest()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PASTA_JAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Three installed packages with a third of a file each, and one with all of it."""
    site = tmp_path / "site"
    for number, content in enumerate([*PARTS, WHOLE]):
        package = site / f"pasta_test_part{number}"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "weights.bin").write_bytes(content)
    monkeypatch.syspath_prepend(site)
    return site


def asset(numbers):
    parts = tuple((f"pasta_test_part{number}", "weights.bin") for number in numbers)
    return assets._Asset(parts, "weights.gguf", len(WHOLE), SHA256, "--gemma")


@pytest.fixture
def hashed(monkeypatch):
    """The names of the files whose content is hashed."""
    names = []
    digest = hashlib.file_digest

    def spy(file, algorithm):
        names.append(os.path.basename(file.name))
        return digest(file, algorithm)

    monkeypatch.setattr(hashlib, "file_digest", spy)
    return names


def test_cache_dir_follows_the_environment(cache, tmp_path, monkeypatch):
    assert assets.cache_dir() == cache
    assert cache.is_dir()
    monkeypatch.delenv("PASTA_JAX_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert assets.cache_dir() == tmp_path / ".cache" / "pasta_jax"
    (tmp_path / "file").touch()
    monkeypatch.setenv("PASTA_JAX_CACHE", str(tmp_path / "file"))
    with pytest.raises(PastaError, match="file: File exists; set PASTA_JAX_CACHE"):
        assets.cache_dir()


def test_parts_are_joined_once(cache, packages, hashed):
    path = assets._joined(asset([0, 1, 2]))
    assert path == cache / "weights.gguf"
    assert path.read_bytes() == WHOLE
    assert sorted(file.name for file in cache.iterdir()) == ["verified.json", "weights.gguf"]
    created = path.stat().st_mtime_ns
    assert assets._joined(asset([0, 1, 2])).stat().st_mtime_ns == created
    assert hashed == []  # it was hashed while it was written


def test_a_joined_file_needs_no_packages(packages, monkeypatch):
    path = assets._joined(asset([0, 1, 2]))
    assert assets._joined(asset([7, 8])) == path


def test_a_damaged_cache_is_created_again(cache, packages):
    path = assets._joined(asset([0, 1, 2]))
    path.write_bytes(WHOLE[:-1])
    assert assets._joined(asset([0, 1, 2])).read_bytes() == WHOLE
    path.write_bytes(WHOLE.replace(b"two", b"twx"))  # the same size
    assert assets._joined(asset([0, 1, 2])).read_bytes() == WHOLE
    (cache / "verified.json").write_text("[{")
    assert assets._joined(asset([0, 1, 2])).read_bytes() == WHOLE


def test_wrong_parts_leave_nothing_behind(cache, packages):
    with pytest.raises(PastaError) as caught:
        assets._joined(asset([0, 2, 1]))
    assert str(packages / "pasta_test_part0" / "weights.bin") in str(caught.value)
    assert "pip uninstall -y pasta-test-part0 pasta-test-part2 pasta-test-part1 && bash launch/setup.sh --gemma" in str(
        caught.value
    )
    assert list(cache.iterdir()) == []


def test_a_write_that_fails_leaves_nothing_behind(cache, packages, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(PastaError, match="No space left on device; free 0 MB there or set PASTA_JAX_CACHE"):
        assets._joined(asset([0, 1, 2]))
    assert list(cache.iterdir()) == []


def test_a_file_in_a_package_is_hashed_once_and_again_when_it_changes(packages, hashed):
    path = packages / "pasta_test_part3" / "weights.bin"
    for _ in range(3):
        assert assets._in_package(asset([3])) == path
    assert hashed == ["weights.bin"]
    os.utime(path, ns=(0, 0))
    assets._in_package(asset([3]))
    assert hashed == ["weights.bin"] * 2
    path.write_bytes(WHOLE.replace(b"one", b"onx"))
    with pytest.raises(PastaError, match=r"weights.bin: not the pinned file .*; install it again: .*--gemma"):
        assets._in_package(asset([3]))
    path.write_bytes(WHOLE + b"!")
    with pytest.raises(PastaError, match="not the pinned file"):
        assets._in_package(asset([3]))
    assert len(hashed) == 3  # a wrong size is enough


def test_a_missing_package_is_named_with_its_command(packages):
    with pytest.raises(
        assets.AssetMissing, match=r"package pasta-test-part9, which is not .*: bash launch/setup.sh --gemma"
    ):
        assets._joined(asset([0, 9]))
    (packages / "pasta_test_part3" / "weights.bin").unlink()
    with pytest.raises(assets.AssetMissing, match="package pasta-test-part3,"):
        assets._in_package(asset([3]))
    assert issubclass(assets.AssetMissing, PastaError)


@requires_smollm2
def test_smollm2_matches_its_pinned_hash():
    assert assets.smollm2_gguf().name == "SmolLM2-135M-Instruct.Q4_1.gguf"


@requires_gemma
def test_joined_gemma_matches_its_pinned_hash(cache):
    path = assets.gemma3_270m_gguf()
    assert path == cache / "gemma-3-270m-q4_k_m.gguf"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == assets._GEMMA3_270M.sha256
