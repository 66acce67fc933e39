"""Files and folders that are whole or absent, on local disks and at gs:// (remote.py)."""

import contextlib
import ctypes
import errno
import functools
import io
import json
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from pasta_jax.errors import PastaError
from pasta_jax.files import remote
from pasta_jax.files.remote import is_remote

ABANDONED_S = 24 * 3600  # without a write, after which a temporary file belongs to no running writer
# Of a folder that a file system can't flush, or that its user may write to and not read.
UNSYNCED = (errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.ENOSYS, errno.EACCES)
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]+\.part", re.DOTALL)


@contextlib.contextmanager
def replacing(path: Path, fix: str = "choose a writable path on a disk with free space") -> Iterator[Path]:
    """Yield a temporary path next to `path` to write to; rename it when the block succeeds, remove it when it fails.

    Readers see the old file or the whole new one, after a crash of the machine too. The folder is created. A device or
    an open file is written to, as is the target of a symbolic link. `fix` ends the error of a failed write.
    """
    if is_remote(path):
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder, path.name)
            remote.upload(Path(folder, path.name), path, fix)
        return
    special = _special(path)
    if special is not None:  # a file must not replace it
        with tempfile.TemporaryDirectory() as folder, _one_line(path, fix):
            yield Path(folder, path.name)
            with open(special, "ab", closefd=isinstance(special, Path)) as file:
                file.write(Path(folder, path.name).read_bytes())
        return
    target = _target(path)
    part = _temporary(target)
    with _one_line(path, fix):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(target.parent)
            part.touch(exist_ok=False)  # O_EXCL; with the permissions of any new file
            yield part
            _sync(part)
            os.replace(part, target)
            _sync(target.parent)
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `folder` to fill; on success it replaces `folder`, or where that link leads."""
    if is_remote(folder):
        with tempfile.TemporaryDirectory() as part:
            yield Path(part)
            remote.upload_folder(Path(part), folder, "check that this machine may write there")
        return
    named, folder = folder, Path(os.path.realpath(folder))
    if os.path.ismount(folder):  # the last rename would fail
        raise PastaError(f"{named}: is a mount point, which can't be replaced; choose a folder below it")
    part, old = _temporary(folder), _temporary(folder)
    with _one_line(named, "choose a writable path on a disk with free space"):
        try:
            part.mkdir(parents=True)
            _remove_abandoned(folder.parent)
            yield part
            for path in (*remote.files_below(part), part):
                _sync(path)
            if not (folder.is_dir() and _exchange(folder, part)):
                if folder.is_dir():
                    with contextlib.suppress(OSError):
                        os.utime(folder)  # a kill before the last rename leaves `old`, which then stays for a day
                    folder.rename(old)
                part.rename(folder)
            _sync(folder.parent)
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(part, ignore_errors=True)
            if old.exists() and not folder.exists():
                old.rename(folder)


def _exchange(folder: Path, other: Path) -> bool:
    """Swap two folders in one step, which no kill divides; False where the system or the file system can't."""
    try:
        rename = ctypes.CDLL(None).renameat2  # of Linux
    except AttributeError:
        return False
    unused, exchange = 0, 2  # absolute paths need no descriptor of a folder
    return rename(unused, os.fsencode(folder), unused, os.fsencode(other), exchange) == 0


def is_special(path: Path) -> bool:
    """Whether it leads to a device, a pipe or an open file, beside which nothing can be kept."""
    return not is_remote(path) and _special(path) is not None


def _special(path: Path) -> Path | int | None:
    """What to open where `path` leads to a device, a pipe, an open file (or a folder, to which a write fails).

    /dev/stdout is a link to an open file. Ours is returned by its number: what the process prints later then follows.
    """
    while os.path.exists(path):
        folder = os.path.realpath(path.parent)
        if folder in ("/dev/fd", f"/proc/{os.getpid()}/fd") and path.name.isdecimal():
            return int(path.name)
        if re.fullmatch(r"/proc/.+/fd", folder):
            return path
        if not os.path.islink(path):
            return None if os.path.isfile(path) else path
        path = Path(folder, os.readlink(path))
    return None


def _target(path: Path) -> Path:
    """The file that a symbolic link leads to."""
    return Path(os.path.realpath(path)) if os.path.islink(path) else path


def _temporary(path: Path) -> Path:
    """A name that no other writer has: two containers that share a folder may have equal process ids."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")


@functools.cache
def _remove_abandoned(folder: Path) -> None:
    """Remove what killed writers left in a folder long ago; once a process, since it lists the folder."""
    for path in folder.glob(".*.part"):
        with contextlib.suppress(OSError):
            if _TEMPORARY.fullmatch(path.name) and time.time() - path.stat().st_mtime > ABANDONED_S:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _sync(path: Path) -> None:
    """Have the disk hold what was written: else a crash of the machine could keep a rename and lose the content."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in UNSYNCED or not path.is_dir():
            raise


@contextlib.contextmanager
def _one_line(path: Path, fix: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PastaError(f"{path}: {error.strerror or error}; {fix}") from None


def check_writable(folder: Path) -> None:
    """Create the folder and write a byte there; OSError if that fails. For outputs of long work, before it begins."""
    if is_remote(folder):
        probe = folder / f".writable.{secrets.token_hex(8)}"
        write_whole(probe, b"\n")
        probe.unlink(missing_ok=True)
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        file.write(b"\n")


def check_file(path: Path, name: str) -> None:
    """Refuse, before long work, a file that can't be written or whose folder is missing: it may be misspelt.

    `name` begins the error.
    """
    try:
        if not is_remote(path):
            if _special(path) is not None and not path.is_dir():
                return  # nothing is created beside it: only root may do so in /dev
            path = _target(path)
        if not is_remote(path) and not path.parent.is_dir():
            missing = os.strerror(errno.ENOTDIR) if path.parent.exists() else "no such folder"
            raise PastaError(f"{name}: {path.parent}: {missing}; create the folder or choose another one")
        if path.is_dir() or not path.name:
            raise PastaError(f"{name}: is a folder; choose a file")
        if not is_remote(path):
            with contextlib.suppress(FileNotFoundError):
                os.stat(path)  # raises for a name that no file can have
        check_writable(path.parent)
    except (OSError, ValueError) as error:  # the latter for a name with a NUL
        reason = getattr(error, "strerror", None) or error
        raise PastaError(f"{name}: {reason}; choose a folder that you may write to") from None


def refuse_inputs(outputs: Mapping[str, Path], inputs: Mapping[str, Path | None]) -> None:
    """Refuse to write over a file that is read; both by the names of their flags."""
    for flag, path in outputs.items():
        for other, read in inputs.items():
            if read is not None and os.path.realpath(read) == os.path.realpath(path):
                raise PastaError(f"--{flag}={path}: is --{other}, which it would overwrite; choose another file")


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
def naming_a_full_disk(path: Path) -> Iterator[None]:
    """Run the block; if it fails because the disk is full, say so in one line."""
    try:
        yield
    except PastaError:
        raise
    except Exception as error:
        if not disk_is_full(error):
            raise
        raise PastaError(f"{path}: the disk is full; free some space and rerun the command to resume") from None
