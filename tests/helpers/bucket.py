"""Stand-in for gs://: its files are those of a local folder, for epath and for what Orbax hands to TensorStore."""

from pathlib import Path

from etils.epath import backend
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import _registry
from orbax.checkpoint._src.path import gcs_utils


def address_to_path(root: Path, address: str) -> str:
    """The local path of an address, with or without its gs://."""
    return str(root / str(address).removeprefix("gs://").strip("/"))


def install(monkeypatch, root: Path) -> None:
    """Use it until the test ends."""

    class Bucket(LocalFileSystem):  # in place of gcsfs; as on an object store, folders need not be created
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

    monkeypatch.setitem(_registry, "gcs", Bucket)
    monkeypatch.setattr(backend.fsspec_backend, "_get_filesystem", lambda name: Bucket())
    monkeypatch.setattr(
        gcs_utils, "get_kvstore_for_gcs", lambda address: {"driver": "file", "path": address_to_path(root, address)}
    )
    monkeypatch.setattr(gcs_utils, "is_hierarchical_namespace_enabled", lambda path: False)
