"""A lock that one process holds at a time; another one waits for it, or is told who holds it."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from pasta_jax.errors import PastaError


@contextlib.contextmanager
def locked(lock: Path, what: Path, wait: bool) -> Iterator[None]:
    """Hold the file `lock`, which has this host and process id until the block ends; its folder is created.

    A dead process's lock is free: the operating system drops its hold. `what` is what the lock guards, for the error.
    """
    held = FileLock(lock, timeout=-1 if wait else 0, fallback_to_soft=False)
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        held.acquire()
        lock.write_text(f"{socket.gethostname()} {os.getpid()}\n")
    except Timeout:
        raise PastaError(f"{what}: in use by {_owner(lock)}; wait until it ends, or choose another path") from None
    except FileExistsError:
        raise PastaError(f"{lock.parent}: is a file; choose a folder") from None
    except OSError as error:
        held.release()
        raise PastaError(f"{what}: {error.strerror}; choose a writable folder on a disk with free space") from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            lock.unlink()  # while it is held, so that no other process's file is removed
        held.release()


def _owner(lock: Path) -> str:
    try:
        host, process = lock.read_text().split()
    except (OSError, ValueError):  # it is just starting or ending
        return "another process"
    return f"process {process} on {host}"
