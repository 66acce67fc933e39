"""Paths at gs://, through epath: files appear whole, growing ones are uploaded again, folders are fetched to be read.

An object store can't append, rename or lock. What grows is kept here and uploaded whole whenever it is flushed.
"""

import atexit
import contextlib
import functools
import io
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from pasta_jax.errors import PastaError, brief

SCHEME = "gs"
CHUNK = 16 << 20  # bytes of a file that are copied at a time


def path_of(text: str | os.PathLike[str]) -> Path:
    """A path as a user names it; shells expand no ~ after =. One at gs:// is an epath.Path, with pathlib's methods."""
    name = os.path.expanduser(text)
    scheme, is_address, _ = name.partition("://")
    if not is_address:
        return Path(name)
    if scheme != SCHEME:
        raise PastaError(f"{name}: only local paths and those at {SCHEME}:// can be used; choose one of these")
    import fsspec  # these take half a second, and other runs don't need them
    from etils import epath

    try:
        fsspec.get_filesystem_class("gcs")
    except ImportError:
        raise PastaError(f"{name}: gs:// needs packages that are not installed; bash launch/setup.sh --gcs") from None
    return epath.Path(name)


def is_remote(path: Path) -> bool:
    """Whether the path is at gs://."""
    return not isinstance(path, Path)


def absolute(path: Path) -> Path:
    """The path as processes with another current folder name it."""
    return path if is_remote(path) else path.absolute()


def size_of(path: Path) -> int:
    """The bytes of a file."""
    return path.stat().length if is_remote(path) else path.stat().st_size


def files_below(folder: Path) -> Iterator[Path]:
    """All files in a folder and its subfolders. (An epath.Path refuses the pattern `**`.)"""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from files_below(entry)
        else:
            yield entry


def upload(file: Path, target: Path, fix: str) -> None:
    """Copy a local file to a remote path, where it appears when it is complete."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with file.open("rb") as source, _whole(target) as copy:
            shutil.copyfileobj(source, copy, CHUNK)
    except Exception as error:  # of the network, of credentials, of the service
        raise PastaError(f"{target}: cannot be written ({brief(error)}); {fix}") from None


@contextlib.contextmanager
def _whole(target: Path) -> Iterator[BinaryIO]:
    """A remote file to write. What interrupts that, as Ctrl-C, leaves none: closing it would upload what it has."""
    with target.open("wb") as copy:
        try:
            yield copy
        except BaseException:
            if hasattr(copy, "discard"):  # fsspec's has it, TensorFlow's doesn't
                copy.closed = True
                copy.discard()
            raise


def upload_folder(folder: Path, target: Path, fix: str) -> None:
    """Replace a remote folder by a local one. Files in subfolders come first.

    So a reader that finds the file it looks for, such as about.json, finds a whole folder.
    """
    if target.exists():
        target.rmtree()
    for path in sorted(files_below(folder), key=lambda path: (-len(path.parts), path)):
        upload(path, target / path.relative_to(folder).as_posix(), fix)


_copies: list[Path] = []  # of what is remote


@functools.cache
def local(path: Path) -> Path:
    """The path itself, or a copy of a remote file or folder that is deleted when the process ends, or by `forget`."""
    if not is_remote(path):
        return path
    copy = Path(tempfile.mkdtemp(prefix="pasta_jax_"))
    _copies.append(copy)
    try:
        _fetch(path, copy / path.name)
    except Exception as error:
        fix = "check the address, and that this machine may read it"
        raise PastaError(f"{path}: cannot be read ({brief(error)}); {fix}") from None
    return copy / path.name


@atexit.register
def forget() -> None:
    """Delete all copies: what is at gs:// may be another by now, and is fetched again."""
    local.cache_clear()
    while _copies:
        shutil.rmtree(_copies.pop(), ignore_errors=True)


def _fetch(path: Path, copy: Path) -> None:
    if path.is_dir():
        copy.mkdir()
        for entry in path.iterdir():
            _fetch(entry, copy / entry.name)
    else:
        with path.open("rb") as source, copy.open("wb") as file:
            shutil.copyfileobj(source, file, CHUNK)


class Growing(io.BufferedIOBase):
    """A remote file that is written from its beginning on: uploaded whole when flushed, and at the end."""

    def __init__(self, path: Path, content: bytes, every_s: float):
        """`content` is what it begins with; a flush uploads it if the last upload was `every_s` ago."""
        super().__init__()
        self._path, self._content, self._every_s = path, bytearray(content), every_s
        self._upload()

    def writable(self) -> bool:
        """As io's classes ask."""
        return True

    def write(self, data: bytes) -> int:
        """Keep the data until it is flushed."""
        self._content += data
        return len(data)

    def flush(self) -> None:
        """Upload what was written."""
        if len(self._content) > self._uploaded and time.monotonic() - self._time >= self._every_s:
            self._upload()

    def close(self) -> None:
        """Upload the rest."""
        if not self.closed:
            self._every_s = 0.0
            super().close()  # which flushes

    def _upload(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_bytes(bytes(self._content))
        except Exception as error:
            fix = "check that this machine may write there, and rerun the command"
            raise PastaError(f"{self._path}: cannot be written ({brief(error)}); {fix}") from None
        self._uploaded, self._time = len(self._content), time.monotonic()
