"""A run's folder is checked before the work, and used by one process at a time; so is any other lock."""

import errno
import os
import socket
from pathlib import Path
from unittest.mock import Mock

import pytest

from pasta_jax.errors import PastaError
from pasta_jax.files import lock
from pasta_jax.files.lock import locked
from pasta_jax.files.workdir import LOCK, claim


def error_of(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def test_a_second_claim_names_the_owner(tmp_path):
    folder = tmp_path / "new/run"
    for _ in range(2):  # free again afterwards
        with claim(folder):
            assert (folder / LOCK).read_text() == f"{socket.gethostname()} {os.getpid()}\n"
            with pytest.raises(PastaError) as refused, claim(folder):
                pytest.fail("two owners")
            assert (folder / LOCK).exists(), "a refused process leaves the lock alone"
        assert list(folder.iterdir()) == []
    assert str(refused.value).startswith(f"{folder}: in use by process {os.getpid()} on {socket.gethostname()}; ")


def test_a_lock_that_its_owner_removes_meanwhile_is_not_used(tmp_path, monkeypatch):
    opened, calls = os.open, []

    def owner_ends_first(path, *arguments):
        descriptor = opened(path, *arguments)
        if str(path).endswith(LOCK) and not calls:
            calls.append(path)
            os.unlink(path)
        return descriptor

    monkeypatch.setattr(os, "open", owner_ends_first)
    with locked(tmp_path / LOCK, tmp_path, wait=True):
        assert calls
        with pytest.raises(PastaError, match="in use by"), claim(tmp_path):
            pytest.fail("two owners")


def test_a_folder_that_cannot_be_used_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for folder, message in (("file", "is a file; choose a folder"), ("file/below", "Not a directory; choose")):
        with pytest.raises(PastaError, match=f"{folder}: {message}"), claim(tmp_path / folder):
            pytest.fail("not a folder")
    monkeypatch.setattr(lock.Path, "write_text", Mock(side_effect=error_of(errno.ENOSPC)))
    refused = pytest.raises(PastaError, match=r"run: No space left on device; choose a writable folder on a disk with")
    with refused, claim(tmp_path / "run"):
        pytest.fail("cannot be written")
    monkeypatch.undo()
    with claim(tmp_path / "run"):
        pass


def test_a_disk_that_fills_up_is_one_line_and_other_errors_pass(tmp_path: Path):
    def wrapped() -> None:
        try:
            raise error_of(errno.EDQUOT)
        except OSError as cause:
            raise RuntimeError("save failed") from cause

    full = Mock(side_effect=error_of(errno.ENOSPC))
    in_a_message = ValueError("RESOURCE_EXHAUSTED: [OS error 28: ENOSPC No space left on device]")  # as TensorStore's
    for work in (full, wrapped, Mock(side_effect=in_a_message)):
        with pytest.raises(PastaError, match="the disk is full; free some space and rerun"), claim(tmp_path):
            work()
    with pytest.raises(FileNotFoundError), claim(tmp_path):
        raise error_of(errno.ENOENT)
    with pytest.raises(PastaError, match="as it is"), claim(tmp_path):
        raise PastaError("as it is")
    assert list(tmp_path.iterdir()) == []
