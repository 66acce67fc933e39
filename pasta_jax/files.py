"""Files that are whole or absent, and JSON lines that a killed run resumes."""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pasta_jax.errors import PastaError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` to write to; rename it when the block succeeds, remove it when it fails.

    Readers see the old file or the whole new one. The folder is created.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        os.replace(part, path)
    except OSError as error:
        reason = error.strerror or error
        raise PastaError(f"{path}: {reason}; choose a writable path on a disk with free space") from None
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


def write_json(path: Path, value: Any) -> None:
    """Write anything JSON can hold, indented, whole or not at all."""
    write_whole(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def whole_lines(path: Path) -> list[bytes]:
    """The lines of a file, without line breaks and without a last line that a kill cut off; no file has no lines."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    return content.split(b"\n")[:-1]  # splitlines would also split at separators inside a text
