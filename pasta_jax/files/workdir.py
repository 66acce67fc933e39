"""The folder of a run: checked before the work begins, and used by one process at a time."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pasta_jax.files.atomic import check_writable, naming_a_full_disk
from pasta_jax.files.lock import locked
from pasta_jax.files.remote import is_remote

LOCK = "run.lock"


@contextlib.contextmanager
def claim(folder: Path, wait: bool = False) -> Iterator[None]:
    """Create `folder` and keep other processes out of it, or wait for them; a full disk ends the block in one line.

    A remote folder is only checked: there are no locks.
    """
    if is_remote(folder):
        check_writable(folder)
        held: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    else:
        held = locked(folder / LOCK, folder, wait)
    with held, naming_a_full_disk(folder):
        yield
