"""A run's folder is checked before the work, and used by one process at a time."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pasta_jax.errors import PastaError
from pasta_jax.files import workdir
from pasta_jax.files.workdir import LOCK, claim


def error_of(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def test_a_second_claim_names_the_owner(tmp_path):
    folder = tmp_path / "new/run"
    for _ in range(2):  # free again afterwards
        with claim(folder):
            with pytest.raises(PastaError) as refused, claim(folder):
                pytest.fail("two owners")
            assert (folder / LOCK).exists(), "a refused process leaves the lock alone"
        assert list(folder.iterdir()) == []
    owner = f"process {os.getpid()} on {socket.gethostname()}"
    assert str(refused.value) == f"{folder}: in use by {owner}; wait until it ends, or choose another folder"


def test_another_process_is_refused_and_a_dead_owner_replaced(tmp_path):
    script = (
        "import pathlib, sys\n"
        "from pasta_jax.files.workdir import claim\n"
        "with claim(pathlib.Path(sys.argv[1])):\n"
        "    print('claimed', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, tmp_path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"claimed\n"
        with pytest.raises(PastaError, match=f"in use by process {process.pid} on "), claim(tmp_path):
            pytest.fail("two owners")
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert str(process.pid) in (tmp_path / LOCK).read_text()
    with claim(tmp_path):
        assert (tmp_path / LOCK).read_text() == f"{socket.gethostname()} {os.getpid()}\n"


def test_a_lock_that_its_owner_removes_meanwhile_is_not_used(tmp_path, monkeypatch):
    flock, calls = workdir.fcntl.flock, []

    def owner_ends_first(file, operation):
        if not calls:
            (tmp_path / LOCK).unlink()
        calls.append(operation)
        flock(file, operation)

    monkeypatch.setattr(workdir.fcntl, "flock", owner_ends_first)
    with claim(tmp_path):
        assert len(calls) == 2
        with pytest.raises(PastaError, match="in use by"), claim(tmp_path):
            pytest.fail("two owners")


def test_a_folder_that_cannot_be_used_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for folder, message in (
        ("file", "is a file; choose a folder"),
        ("file/below", "Not a directory; choose"),
    ):
        with pytest.raises(PastaError, match=f"{folder}: {message}"), claim(tmp_path / folder):
            pytest.fail("not a folder")
    for number, reason in ((errno.EROFS, "Read-only file system"), (errno.ENOSPC, "No space left on device")):
        error = error_of(number)

        def fail(*_, error=error):
            raise error

        monkeypatch.setattr(workdir, "_lock", fail)
        with pytest.raises(PastaError) as refused, claim(tmp_path / "run"):
            pytest.fail("cannot be written")
        assert str(refused.value) == f"{tmp_path / 'run'}: {reason}; choose a writable folder on a disk with free space"


def test_a_disk_that_fills_up_is_one_line_and_other_errors_pass(tmp_path: Path):
    def wrapped() -> None:
        try:
            raise error_of(errno.EDQUOT)
        except OSError as cause:
            raise RuntimeError("save failed") from cause

    def full() -> None:
        raise error_of(errno.ENOSPC)

    for work in (full, wrapped):
        with (
            pytest.raises(PastaError, match="the disk is full; free some space and rerun"),
            claim(tmp_path),
        ):
            work()
    with pytest.raises(FileNotFoundError), claim(tmp_path):
        raise error_of(errno.ENOENT)
    with pytest.raises(PastaError, match="as it is"), claim(tmp_path):
        raise PastaError("as it is")
    assert list(tmp_path.iterdir()) == []


def test_a_claim_that_waits_follows_its_owner(tmp_path):
    claimed = threading.Event()

    def follow() -> None:
        with claim(tmp_path, wait=True):
            claimed.set()

    second = threading.Thread(target=follow)
    with claim(tmp_path):
        second.start()
        assert not claimed.wait(0.2)
    second.join(60)
    assert claimed.is_set()
    assert list(tmp_path.iterdir()) == []
