"""Files that are whole or absent, and JSON lines that a killed run resumes; on local disks and at gs:// (remote.py)."""

import contextlib
import errno
import fcntl
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from pasta_jax.errors import PastaError
from pasta_jax.files import remote
from pasta_jax.files.remote import is_remote

UPLOAD_S = 10.0  # a remote file of JSON lines lags at most this far behind; what it lacks is computed again


@contextlib.contextmanager
def replacing(path: Path, fix: str = "choose a writable path on a disk with free space") -> Iterator[Path]:
    """Yield a temporary path next to `path` to write to; rename it when the block succeeds, remove it when it fails.

    Readers see the old file or the whole new one. The folder is created. `fix` ends the error of a failed write.
    """
    if is_remote(path):
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder, path.name)
            remote.upload(Path(folder, path.name), path, fix)
        return
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        os.replace(part, path)
    except OSError as error:
        reason = error.strerror or error
        raise PastaError(f"{path}: {reason}; {fix}") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `folder` to fill; it replaces `folder` when the block succeeds."""
    if is_remote(folder):
        with tempfile.TemporaryDirectory() as part:
            yield Path(part)
            remote.upload_folder(Path(part), folder, "check that this machine may write there")
        return
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # left by a killed run
    try:
        part.mkdir(parents=True)
        yield part
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    except OSError as error:
        reason = error.strerror or error
        raise PastaError(f"{folder}: {reason}; choose a writable path on a disk with free space") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def check_writable(folder: Path) -> None:
    """Create the folder and write a byte there; OSError if that fails. For outputs of long work, before it begins."""
    if is_remote(folder):
        probe = folder / f".writable.{os.getpid()}"
        write_whole(probe, b"\n")
        probe.unlink(missing_ok=True)
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        file.write(b"\n")


def disk_is_full(error: BaseException) -> bool:
    """Whether the error, or one that it was raised from, is due to a full disk or an exhausted quota."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    # Libraries in C++ report it in their message only.
    return any(
        getattr(cause, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or os.strerror(errno.ENOSPC) in str(cause)
        for cause in causes
    )


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all."""
    with replacing(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines, each ended by a line break, whole or not at all."""
    with replacing(path) as part, part.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in lines)


def write_json(path: Path, value: Any) -> None:
    """Write anything JSON can hold, indented, whole or not at all."""
    write_whole(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def reopen(path: Path, lines: Iterable[str]) -> TextIO:
    """Replace the content of a file with `lines`, whole or not at all, and open it to append more."""
    if is_remote(path):
        content = "".join(line + "\n" for line in lines).encode()
        return io.TextIOWrapper(remote.Growing(path, content, every_s=0.0), encoding="utf-8", newline="\n")
    write_lines(path, lines)
    return path.open("a", encoding="utf-8", newline="\n")


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Wait until no other process is in such a block for the same path. Remote paths can't be locked."""
    if is_remote(path):
        yield
        return
    lock = path.with_name(path.name + ".lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    while True:
        file = lock.open("ab")
        fcntl.flock(file, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), lock.stat()):
                break
        file.close()  # its owner removed it after we had opened it
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        file.close()


def part_of(path: Path) -> Path:
    """Where `growing` keeps a file until it is complete."""
    return path.with_name(path.name + ".part")


@contextlib.contextmanager
def growing(path: Path, lines: Iterable[str] = ()) -> Iterator[TextIO]:
    """Yield a file that begins with `lines`; it becomes `path` when the block succeeds and is kept when it fails."""
    try:
        with reopen(part_of(path), lines) as file:
            yield file
        if is_remote(path):  # a rename would copy it there, and fail if another process had come first
            path.write_bytes(part_of(path).read_bytes())
            part_of(path).unlink(missing_ok=True)
        else:
            os.replace(part_of(path), path)
    except OSError as error:
        if not disk_is_full(error):
            raise
        raise PastaError(f"{part_of(path)}: the disk is full; free some space and rerun the command") from None


def whole_lines(path: Path) -> list[bytes]:
    """The lines of a file, without line breaks or a last line that a kill cut off; empty if there is no file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    return content.split(b"\n")[:-1]  # splitlines would also split at separators inside a text


class JsonLines:
    """An append-only file with one JSON value per line. A last line that a kill cut off is removed on opening.

    Each line is handed to the operating system before `append` returns, so a killed process loses at most the line that
    it was writing. `lines` holds the lines of earlier runs, without line breaks.
    """

    def __init__(self, path: Path, exclusive: bool = False):
        """`exclusive`: refuse a file that another process has open; remote files can't be locked."""
        if is_remote(path):
            self.lines = whole_lines(path)
            content = b"".join(line + b"\n" for line in self.lines)
            self._file: BinaryIO | remote.Growing = remote.Growing(path, content, UPLOAD_S)
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab")
        except OSError as error:
            raise PastaError(f"{path}: {error.strerror}; choose a writable folder") from None
        if exclusive:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self._file.close()
                raise PastaError(f"{path}: another process is writing it; wait or choose another folder") from None
        self.lines = whole_lines(path)
        self._file.truncate(sum(len(line) + 1 for line in self.lines))

    def append(self, value: object) -> None:
        """Write one line."""
        self._file.write(json_line(value))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> "JsonLines":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def json_line(value: object) -> bytes:
    """The line that `JsonLines` writes for a value; equal values give equal lines."""
    return json.dumps(value, ensure_ascii=True, sort_keys=True).encode() + b"\n"
