"""Checkpoints over Orbax: written beside training, whole or absent, restored on any mesh, refused by name if broken.

    FOLDER/120/state    every array of the state under its path
    FOLDER/120/about    JSON: what it was made with, and a sum over the bits of each array
    FOLDER/120/sizes    JSON: the size of each file, so that one cut off later is named before anything is read

A step's folder gets its name when all of it is written, so the newest name is always a whole checkpoint. The sums don't
depend on how an array is divided over devices; a restored array that differs by one bit is noticed.
"""

import importlib.metadata
import json
import platform
import subprocess
from pathlib import Path
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax import lax

from pasta_jax.errors import PastaError

FORMAT = "pasta_jax checkpoint 1"
SIZES = "sizes"
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


class Provenance(TypedDict):
    """What a checkpoint was made with, stored beside its arrays as JSON."""

    config: dict[str, Any]
    data: str  # fingerprint
    positions: dict[str, Any] | None  # the fields of lang/structure.py::Positions; None: not trained on the tags
    git: str
    packages: dict[str, str]  # versions


def provenance(config: dict[str, Any], data: str, positions: dict[str, Any] | None) -> Provenance:
    """The config, data and positions of a training run, with the code's revision and the packages' versions."""
    versions = {name: importlib.metadata.version(name) for name in PACKAGES} | {"python": platform.python_version()}
    return Provenance(config=config, data=data, positions=positions, git=git_revision(), packages=versions)


def git_revision() -> str:
    """The commit this code is at, marked where files differ from it; `unknown` outside of a repository."""
    root = Path(__file__).parents[1]

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
        """Keeps the newest `keep`, and for good those whose step is a multiple of `keep_every` (0: none)."""
        self.folder = folder.absolute()
        self._about = about
        self._writing: int | None = None
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            keep_period=keep_every or None,
            cleanup_tmp_directories=True,
            async_options=ocp.AsyncOptions(post_finalization_callback=self._write_sizes),
        )
        handlers = {"state": ocp.StandardCheckpointHandler(), "about": ocp.JsonCheckpointHandler()}
        self._manager = ocp.CheckpointManager(self.folder, options=options, item_handlers=handlers)

    def latest(self) -> int | None:
        """The step of the newest whole checkpoint."""
        return self._manager.latest_step()

    def save(self, step: int, state) -> None:
        """Copy the state off the device, then go on while it is written; a step that is there is left alone."""
        if step == self.latest():
            return
        about = self._about | {"format": FORMAT, "sums": {name: int(s) for name, s in bit_sums(state).items()}}
        items = {"state": ocp.args.StandardSave(flat(state)), "about": ocp.args.JsonSave(about)}
        self.wait()  # the one before
        self._writing = step
        self._manager.save(step, args=ocp.args.Composite(**items))

    def _write_sizes(self) -> None:
        """Called when all of a step is written, just before its folder gets its name."""
        if jax.process_index() == 0:
            place = next(self.folder.glob(f"{self._writing}.*tmp*"), self.folder / str(self._writing))
            (place / SIZES).write_text(json.dumps(_sizes(place)))

    def _check_sizes(self, step: int) -> None:
        place = self.folder / str(step)
        if not (place / SIZES).is_file():
            return  # foreign, or its other parts will tell
        try:
            sizes = json.loads((place / SIZES).read_text())
        except ValueError:
            raise PastaError(f"{place}: not a whole checkpoint ({SIZES} is cut off); {_MEND}") from None
        there = _sizes(place)
        for name, size in sizes.items():
            if there.get(name) != size:
                has = f"has {there[name]} bytes" if name in there else "is missing"
                raise PastaError(f"{place}: not a whole checkpoint ({name} {has}, {size} were written); {_MEND}")

    def wait(self) -> None:
        """Until what was saved is on disk."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        self._manager.close()

    def about(self, step: int) -> dict:
        """What a checkpoint says about itself; refuses what is none of ours."""
        place = self.folder / str(step)
        self._check_sizes(step)
        try:
            about = self._manager.restore(step, args=ocp.args.Composite(about=ocp.args.JsonRestore()))["about"]
        except Exception as error:  # whatever Orbax and TensorStore raise on foreign folders
            raise PastaError(f"{place}: no checkpoint of this program ({_line(error)}); {_MEND}") from None
        if not isinstance(about, dict) or about.get("format") != FORMAT:
            raise PastaError(f"{place}: no checkpoint of this program; {_MEND}")
        return about

    def restore(self, step: int, like):
        """The state at a step. `like` has its shapes, dtypes and shardings (arrays, or jax.ShapeDtypeStruct)."""
        place = self.folder / str(step)
        about = self.about(step)
        wanted, sums = flat(like), about["sums"]
        try:
            there = dict(self._manager.item_metadata(step)["state"].items())
        except Exception as error:
            raise PastaError(f"{place}: not a whole checkpoint ({_line(error)}); {_MEND}") from None
        for name in sorted(wanted.keys() | there.keys()):
            has, wants = (tree.get(name) for tree in (there, wanted))
            if has is None or wants is None or (tuple(has.shape), has.dtype) != (tuple(wants.shape), wants.dtype):
                raise PastaError(
                    f"{place}: {name} is {_describe(has)} there and {_describe(wants)} here: "
                    "it belongs to another model or training; give another workdir"
                )
        shapes = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding) for name, leaf in wanted.items()
        }
        try:
            args = ocp.args.Composite(state=ocp.args.StandardRestore(shapes))
            restored = self._manager.restore(step, args=args)["state"]
        except Exception as error:
            raise PastaError(f"{place}: not a whole checkpoint ({_line(error)}); {_MEND}") from None
        for name, found in bit_sums(restored).items():
            if int(found) != sums[name]:
                raise PastaError(f"{place}: {name} is not as it was saved; {_MEND}")
        return jax.tree.unflatten(jax.tree.structure(like), [restored[name] for name in wanted])


def _sizes(place: Path) -> dict[str, int]:
    """Of the files in its folders; those beside them Orbax still writes at the very end."""
    return {
        str(path.relative_to(place)): path.stat().st_size for path in sorted(place.glob("*/**/*")) if path.is_file()
    }


_MEND = "delete that folder to go on from the one before"


def flat(tree) -> dict:
    """Leaves by their path; names, not classes, are what a checkpoint holds."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


@jax.jit
def bit_sums(tree) -> dict:
    """For each leaf the sum of its bits as whole numbers, modulo 2^32: the same on every mesh."""

    def one(leaf):
        bits = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[leaf.dtype.itemsize]
        return jnp.sum(lax.bitcast_convert_type(leaf, bits).astype(jnp.uint32), dtype=jnp.uint32)

    return {name: one(leaf) for name, leaf in flat(tree).items()}


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _describe(leaf) -> str:
    return "missing" if leaf is None else f"{leaf.dtype}{list(leaf.shape)}"
