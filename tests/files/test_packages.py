"""Files from packages: joined once, checked against their hashes, named with their command when missing."""

import hashlib
import os

import pytest

from pasta_jax.errors import PastaError
from pasta_jax.files import packages
from pasta_jax.files.packages import Asset
from tests.helpers.requires import requires_data, requires_gemma, requires_qwen, requires_smollm2

PARTS = [b"GGUF one, ", b"two, ", b"three"]
WHOLE = b"".join(PARTS)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PASTA_JAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Three installed packages with a third of a file each, part0 to part2, and part3 with all of it."""
    for number, content in enumerate([*PARTS, WHOLE]):
        (tmp_path / f"site/part{number}-1.0.dist-info").mkdir(parents=True)
        (tmp_path / f"site/part{number}-1.0.dist-info/METADATA").write_text(f"Name: part{number}\nVersion: 1.0\n")
        (tmp_path / f"site/part{number}").mkdir()
        (tmp_path / f"site/part{number}/all.gguf.part{number}").write_bytes(content)
    monkeypatch.syspath_prepend(tmp_path / "site")
    return tmp_path / "site"


@pytest.fixture
def path(site, monkeypatch):
    """The path of an asset that some of the packages hold."""

    def of(*numbers: int):
        parts = tuple((f"part{number}", f"part{number}/all.gguf.part{number}") for number in numbers)
        monkeypatch.setitem(packages.ASSETS, "all", Asset(parts, hashlib.sha256(WHOLE).hexdigest(), "--gemma"))
        return packages.path("all")

    return of


@pytest.fixture
def hashed(monkeypatch):
    """The names of the files whose content is hashed."""
    names, digest = [], hashlib.file_digest
    monkeypatch.setattr(
        hashlib, "file_digest", lambda file, kind: names.append(os.path.basename(file.name)) or digest(file, kind)
    )
    return names


def test_cache_dir_follows_the_environment(cache, tmp_path, monkeypatch):
    assert packages.cache_dir() == cache
    assert cache.is_dir()
    monkeypatch.delenv("PASTA_JAX_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert packages.cache_dir() == tmp_path / "other/pasta_jax"
    (tmp_path / ".cache/pasta_jax").mkdir(parents=True)  # where earlier versions kept it
    assert packages.cache_dir() == tmp_path / ".cache/pasta_jax"
    (tmp_path / "file").touch()
    monkeypatch.setenv("PASTA_JAX_CACHE", str(tmp_path / "file"))
    with pytest.raises(PastaError, match="file: File exists; set PASTA_JAX_CACHE"):
        packages.cache_dir()

    def homeless() -> None:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(packages.Path, "home", homeless)
    monkeypatch.delenv("PASTA_JAX_CACHE")
    with pytest.raises(PastaError, match=r"no home folder .* set PASTA_JAX_CACHE"):
        packages.cache_dir()


def test_parts_are_joined_once_and_then_need_no_packages(cache, path, site, hashed):
    whole = path(0, 1, 2)
    assert (whole, whole.read_bytes()) == (cache / "all.gguf", WHOLE)
    created = whole.stat().st_mtime_ns
    (site / "part0/all.gguf.part0").unlink()
    assert path(0, 1, 2).stat().st_mtime_ns == created
    assert hashed == []  # its content was hashed as it was written


@pytest.mark.parametrize("damage", [WHOLE[:-1], WHOLE.replace(b"two", b"twx")])
def test_a_damaged_cache_is_created_again(path, damage):
    path(0, 1, 2).write_bytes(damage)
    assert path(0, 1, 2).read_bytes() == WHOLE


def test_wrong_parts_leave_nothing_behind(cache, path, site):
    with pytest.raises(PastaError) as caught:
        path(0, 2, 1)
    assert f"{site}/part0/all.gguf.part0: not the pinned file" in str(caught.value)
    assert "pip uninstall -y part0 part2 part1 && bash launch/setup.sh --gemma" in str(caught.value)
    assert list(cache.iterdir()) == []


def test_a_file_in_a_package_is_hashed_once_and_again_when_it_changes(path, site, hashed):
    file = site / "part3/all.gguf.part3"
    for _ in range(3):
        assert path(3) == file
    assert hashed == [file.name]
    os.utime(file, ns=(0, 0))
    path(3)
    assert hashed == [file.name] * 2
    file.write_bytes(WHOLE.replace(b"one", b"onx"))
    with pytest.raises(PastaError, match=r"not the pinned file, .*; install it again: .*--gemma"):
        path(3)


def test_a_cache_that_cannot_be_written_costs_another_hash(path, site, cache, hashed):
    cache.mkdir()
    (cache / "verified").touch()  # a file, where the folder would be
    for _ in range(2):
        assert path(3).read_bytes() == WHOLE
    assert len(hashed) == 2


def test_a_missing_package_is_named_with_its_command(path, site, tmp_path, monkeypatch):
    with pytest.raises(packages.AssetMissing, match=r"part9 is not installed; bash launch/setup.sh --gemma .*part9\)"):
        path(0, 9)
    (site / "part3/all.gguf.part3").unlink()
    with pytest.raises(packages.AssetMissing, match="part3 is not installed"):
        path(3)
    monkeypatch.setattr(packages, "SHARE", tmp_path)
    with pytest.raises(packages.AssetMissing, match=r"dpo_en_demo.json is not installed; bash .* --data$"):
        packages.path("preferences")


OF_OPTION = {"--assets": requires_smollm2, "--gemma": requires_gemma, "--qwen": requires_qwen}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=OF_OPTION.get(option, requires_data))
        for name, (_, _, option) in packages.ASSETS.items()
    ],
)
def test_each_asset_is_the_pinned_file(name):
    assert packages.path(name).is_file()
