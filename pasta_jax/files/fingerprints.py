"""Short hashes of what results depend on: texts, bytes, plain data, source code."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

PIECES, PIECE = 256, 64  # of a file, and the bytes of each


def of_texts(texts: Iterable[str]) -> str:
    """Hash texts in order."""
    return of_bytes(text.encode() + b"\0" for text in texts)


def of_bytes(parts: Iterable[bytes]) -> str:
    """Hash the concatenation of parts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]


def of_pieces(files: Iterable[Path]) -> str:
    """Hash names, sizes and evenly spread bytes of large files: enough to tell a model from another, in no time."""
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb", buffering=0) as file:
            for number in range(PIECES):
                file.seek(number * size // PIECES)
                digest.update(file.read(PIECE))
    return digest.hexdigest()[:16]


def of_data(value: Any) -> str:
    """Hash anything JSON can hold; the order of keys doesn't count."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def of_code(*modules: ModuleType) -> str:
    """Hash the source files of modules."""
    return of_texts(Path(module.__file__).read_text(encoding="utf-8") for module in modules)
