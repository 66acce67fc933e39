"""Files that are whole or absent, and JSON lines that a killed run resumes."""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from pasta_jax.errors import PastaError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; renamed to it when the block succeeds, removed when it fails.

    A reader finds the old file or the whole new one. The folder is created.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        os.replace(part, path)
    except OSError as error:
        raise PastaError(f"{path}: {error.strerror}; choose a path on a disk with space that you may write") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all."""
    with replacing(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines, each ended by a line break, whole or not at all."""
    with replacing(path) as part, part.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in lines)


def write_json(path: Path, value) -> None:
    """Write indented JSON, whole or not at all."""
    write_whole(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def whole_lines(path: Path) -> list[bytes]:
    """The lines of a file without their line breaks. A last line that a kill cut off is not among them."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    return content.split(b"\n")[:-1]  # splitlines would also split at separators inside a text
