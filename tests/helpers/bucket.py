"""Stand-in for gs://: its files are those of a local folder, for epath and for what Orbax hands to TensorStore."""

from pathlib import Path

import fsspec
from etils.epath import backend
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import _registry
from orbax.checkpoint._src.path import gcs_utils


def address_to_path(root: Path, address: str) -> str:
    """The local path of an address, with or without its gs://."""
    return str(root / str(address).removeprefix("gs://").strip("/"))


def file_system(root: Path) -> type[fsspec.AbstractFileSystem]:
    """The class that fsspec uses for gs://, in place of gcsfs. As on an object store, folders need not be created."""

    class Bucket(LocalFileSystem):
        protocol = ("gs", "gcs")
        cachable = False

        @classmethod
        def _strip_protocol(cls, path):
            name = str(path)
            return name if name.startswith(f"{root}/") or name == str(root) else address_to_path(root, name)

        def _open(self, path, mode="rb", **options):
            if "w" in mode:
                self.makedirs(self._parent(path), exist_ok=True)
            return super()._open(path, mode, **options)

        def glob(self, path, **options):
            return [found.removeprefix(f"{root}/") for found in super().glob(self._strip_protocol(path), **options)]

    return Bucket


def install(monkeypatch, root: Path) -> None:
    """Use it until the test ends."""
    files = file_system(root)
    monkeypatch.setitem(_registry, "gcs", files)
    monkeypatch.setattr(backend.fsspec_backend, "_get_filesystem", lambda name: files())

    def kvstore(address: str) -> dict[str, str]:
        return {"driver": "file", "path": address_to_path(root, address)}

    monkeypatch.setattr(gcs_utils, "get_kvstore_for_gcs", kvstore)
    monkeypatch.setattr(gcs_utils, "is_hierarchical_namespace_enabled", lambda path: False)
