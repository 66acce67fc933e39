"""Checkpoints on Orbax: written in the background, whole or absent, restored on any mesh, checked for damage.

    FOLDER/120/state    every array of the state under its path
    FOLDER/120/about    JSON: the provenance, and a sum over the bits of each array
    FOLDER/120/sizes    JSON: the size of each file, to name a truncated one before anything is read

A step's folder gets its final name once all of it is written, so the newest name is always a complete checkpoint. The
sums don't depend on how an array is divided over devices; a restored array that differs in one bit is detected. Orbax
alone returned other values for 4 of 60 flipped bits. It refuses truncated and missing files and ends on a full disk,
but its own tasks then fill the terminal with tracebacks, which the sizes and a look at the free space avoid.
"""

import dataclasses
import importlib.metadata
import json
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Annotated, Any, TypedDict, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax import lax
from msgspec import Meta

from pasta_jax.errors import PastaError, brief
from pasta_jax.files import fingerprints
from pasta_jax.files.remote import absolute, files_below, is_remote, size_of
from pasta_jax.files.validated import MIB, read_json, typed
from pasta_jax.models.sharding import gathered

FORMAT = "pasta_jax checkpoint 1"
SIZES = "sizes"
METADATA = "_CHECKPOINT_METADATA"  # Orbax's
Tree = TypeVar("Tree")
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


class Provenance(TypedDict):
    """What a checkpoint was written with, stored with its arrays as JSON."""

    config: dict[str, Any]
    data: str  # fingerprint
    positions: dict[str, Any] | None  # the fields of lang/structure.py::Positions; None: not trained on the tags
    base: str  # fingerprint of the weights beside which an adapter is trained; empty: there are none
    git: str
    packages: dict[str, str]  # versions


@dataclasses.dataclass(frozen=True)
class _About:
    """What readers of a checkpoint's record rely on."""

    config: dict[str, Any]
    data: str
    sums: dict[str, Annotated[int, Meta(ge=0, lt=2**32)]]


def provenance(config: dict[str, Any], data: str, positions: dict[str, Any] | None, base: str = "") -> Provenance:
    """The config, data and positions of a training run, with the code's revision and the packages' versions."""
    versions = {name: importlib.metadata.version(name) for name in PACKAGES} | {"python": platform.python_version()}
    about = dict(config=config, data=data, positions=positions, base=base)
    return Provenance(**about, git=git_revision(), packages=versions)


def git_revision() -> str:
    """The current commit, with `+changes` if files differ from it; `unknown` outside a repository."""
    root = Path(__file__).parents[2]

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=True).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != root.resolve():
            return "unknown"
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, about: Provenance, keep: int, keep_every: int):
        """Keeps the newest `keep`, and permanently those whose step is a multiple of `keep_every` (0: none)."""
        self.folder = absolute(folder)
        self._about = about
        self._writing: int | None = None
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            keep_period=keep_every or None,
            cleanup_tmp_directories=True,
            async_options=ocp.AsyncOptions(post_finalization_callback=self._write_sizes),
        )
        handlers = {"state": ocp.StandardCheckpointHandler(), "about": ocp.JsonCheckpointHandler()}
        for path in self.folder.glob(f"*/{METADATA}"):  # Orbax would log the whole of a damaged one
            if path.parent.name.isdigit():  # others were being written when their process was killed
                read_json(path, dict[str, Any], most=MIB, fix=_FIX)
        try:
            self._manager = ocp.CheckpointManager(self.folder, options=options, item_handlers=handlers)
        except Exception as error:  # Orbax raises many kinds on the metadata of some step
            raise PastaError(
                f"{self.folder}: metadata of a checkpoint cannot be read ({brief(error)}); {_FIX}"
            ) from None

    def latest(self) -> int | None:
        """The step of the newest complete checkpoint."""
        return self._manager.latest_step()

    def save(self, step: int, state: Tree) -> None:
        """Copy the state off the device and write it in the background; an existing step is left as it is."""
        if step == self.latest():
            return
        about = self._about | {"format": FORMAT, "sums": {name: int(s) for name, s in bit_sums(state).items()}}
        items = {"state": ocp.args.StandardSave(flat(state)), "about": ocp.args.JsonSave(about)}
        self.wait()  # for the previous save
        self._check_space(state)
        self._writing = step
        self._manager.save(step, args=ocp.args.Composite(**items))

    def _check_space(self, state: Tree) -> None:
        if is_remote(self.folder):
            return
        needed = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) + MIB  # for Orbax's own files
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise PastaError(
                f"{self.folder}: a checkpoint takes {needed / MIB:,.0f} MiB and {free / MIB:,.0f} are free; "
                "make room and start the same command again, which resumes"
            )

    def _write_sizes(self) -> None:
        """Called when all of a step is written, just before its folder gets its final name."""
        if jax.process_index() == 0:
            place = next(self.folder.glob(f"{self._writing}.*tmp*"), self.folder / str(self._writing))
            (place / SIZES).write_text(json.dumps(_sizes(place)))

    def _check_sizes(self, step: int) -> None:
        place = self.folder / str(step)
        if not (place / SIZES).is_file():
            return  # another tool's, or damaged: reading the other parts will show it
        sizes = read_json(place / SIZES, dict[str, Annotated[int, Meta(ge=0)]], most=64 * MIB, fix=_FIX)
        actual = _sizes(place)
        for name, size in sizes.items():
            if actual.get(name) != size:
                problem = f"has {actual[name]} bytes" if name in actual else "is missing"
                raise PastaError(f"{place}: not a complete checkpoint ({name} {problem}, {size} were written); {_FIX}")

    def wait(self) -> None:
        """Block until everything saved is on disk."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Finish writing and release Orbax's threads."""
        self._manager.close()

    def about(self, step: int) -> dict[str, Any]:
        """A checkpoint's provenance and sums; checkpoints of other tools are refused."""
        place = self.folder / str(step)
        self._check_sizes(step)
        try:
            about = self._manager.restore(step, args=ocp.args.Composite(about=ocp.args.JsonRestore()))["about"]
        except Exception as error:  # Orbax and TensorStore raise many kinds on other tools' folders
            raise PastaError(f"{place}: not a pasta_jax checkpoint ({brief(error)}); {_FIX}") from None
        if not isinstance(about, dict) or about.get("format") != FORMAT:
            raise PastaError(f"{place}: not a pasta_jax checkpoint; {_FIX}")
        typed(about, _About, f"{place}/about", _FIX)
        return about

    def restore(self, step: int, like: Tree) -> Tree:
        """The state at a step, with the shapes, dtypes and shardings of `like` (arrays, or jax.ShapeDtypeStruct)."""
        place = self.folder / str(step)
        about = self.about(step)
        expected, sums = flat(like), about["sums"]
        try:
            leaves = self._manager.item_metadata(step)["state"].items()
            stored = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in leaves}
        except Exception as error:
            raise PastaError(f"{place}: not a complete checkpoint ({brief(error)}); {_FIX}") from None
        for name in sorted(expected.keys() | stored.keys()):
            old, new = stored.get(name), expected.get(name)
            if old is None or new is None or (tuple(old.shape), old.dtype) != (tuple(new.shape), new.dtype):
                raise PastaError(
                    f"{place}: {name} is {_describe(old)} there and {_describe(new)} here: "
                    "it belongs to another model or training run; use another workdir"
                )
        shapes = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
            for name, leaf in expected.items()
        }
        try:
            args = ocp.args.Composite(state=ocp.args.StandardRestore(shapes))
            restored = self._manager.restore(step, args=args)["state"]
        except Exception as error:
            raise PastaError(f"{place}: not a complete checkpoint ({brief(error)}); {_FIX}") from None
        for name, total in bit_sums(restored).items():
            if int(total) != sums.get(name):
                raise PastaError(f"{place}: {name} differs from what was saved; {_FIX}")
        return jax.tree.unflatten(jax.tree.structure(like), [restored[name] for name in expected])


def _sizes(place: Path) -> dict[str, int]:
    """Sizes of the files in its subfolders; Orbax writes those beside them only at the very end."""
    folders = [entry for entry in place.iterdir() if entry.is_dir()]
    return {str(path.relative_to(place)): size_of(path) for folder in folders for path in files_below(folder)}


_FIX = "delete that folder to resume from the previous one"


def flat(tree: Tree) -> dict[str, Any]:
    """Leaves by their path; a checkpoint holds names, not classes."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def fingerprint_of_params(params: Tree) -> str:
    """Hash names and bits of all parameters. All processes call it."""
    leaves = sorted(flat(gathered(params)).items())
    return fingerprints.of_bytes(name.encode() + np.ascontiguousarray(leaf).tobytes() for name, leaf in leaves)


@jax.jit
def bit_sums(tree: Tree) -> dict[str, jax.Array]:
    """The sum of each leaf's bits as integers, modulo 2^32: the same on every mesh."""

    def one(leaf: jax.Array) -> jax.Array:
        bits = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[leaf.dtype.itemsize]
        return jnp.sum(lax.bitcast_convert_type(leaf, bits).astype(jnp.uint32), dtype=jnp.uint32)

    return {name: one(leaf) for name, leaf in flat(tree).items()}


def _describe(leaf: jax.Array | None) -> str:
    return "missing" if leaf is None else f"{leaf.dtype}{list(leaf.shape)}"
