"""The folder of a run: checked before the work begins, and used by one process at a time."""

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from pasta_jax.errors import PastaError
from pasta_jax.files.atomic import check_writable, disk_is_full
from pasta_jax.files.remote import is_remote

LOCK = "run.lock"


@contextlib.contextmanager
def claim(folder: Path, wait: bool = False) -> Iterator[None]:
    """Create `folder` and keep other processes out of it, or wait for them; a full disk ends the block in one line.

    The folder holds run.lock, with this host and process id, until the block ends. A dead owner's lock is taken over:
    the operating system drops its hold on the file. A remote folder is only checked: there are no locks.
    """
    if is_remote(folder):
        check_writable(folder)
        yield
        return
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = _lock(path, wait)
    except FileExistsError:
        raise PastaError(f"{folder}: is a file; choose a folder") from None
    except BlockingIOError:
        raise PastaError(f"{folder}: in use by {_owner(path)}; wait until it ends, or choose another folder") from None
    except OSError as error:
        raise PastaError(f"{folder}: {error.strerror}; choose a writable folder on a disk with free space") from None
    try:
        yield
    except PastaError:
        raise
    except Exception as error:
        if not disk_is_full(error):
            raise
        raise PastaError(f"{folder}: the disk is full; free some space and rerun the command to resume") from None
    finally:
        _release(path, file)


def _lock(path: Path, wait: bool) -> BinaryIO:
    """Open and lock the file, and write this process into it; BlockingIOError if another process holds it for good."""
    while True:
        file = path.open("ab", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            break
        file.close()  # its owner removed it after we had opened it
    try:
        file.truncate(0)
        file.write(f"{socket.gethostname()} {os.getpid()}\n".encode())
    except OSError:
        _release(path, file)
        raise
    return file


def _release(path: Path, file: BinaryIO) -> None:
    """Remove the file while it is locked, so that no other process's file is removed."""
    with contextlib.suppress(OSError):
        path.unlink()
    file.close()


def _owner(path: Path) -> str:
    try:
        host, process = path.read_text().split()
    except (OSError, ValueError):  # it is just starting or ending
        return "another process"
    return f"process {process} on {host}"
