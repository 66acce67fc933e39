"""Programs compiled by JAX: kept for later runs in the user's cache folder; how long it takes."""

import contextlib
import dataclasses
import functools
import os
import re
import shutil
import threading
import time
import warnings
from pathlib import Path
from typing import Any

from pasta_jax.errors import PastaError
from pasta_jax.files import packages
from pasta_jax.files.atomic import check_writable
from pasta_jax.progress import Progress, doing, say

MOST_BYTES = 2 << 30  # of the folder; the programs that were not used for longest are deleted
MAPPINGS = Path("/proc/self/maps")  # of this process's memory, a line each; Linux only
MOST_MAPPINGS = 50_000  # of the 65,530 that Linux gives a process

DAMAGED = re.compile(r"Error reading persistent compilation cache entry for '(\w+)'")

# JAX reports the begin of each phase as a scalar and its end as a duration, both under one name.
PHASES = tuple(
    f"/jax/core/compile/{phase}_duration" for phase in ("jaxpr_trace", "jaxpr_to_mlir_module", "backend_compile")
)

_lock = threading.RLock()  # of what threads that compile share; within it, that of displays is taken, never the reverse


def keep() -> None:
    """Set the environment of JAX's persistent compilation cache, which JAX reads when it is imported.

    JAX_COMPILATION_CACHE_DIR chooses another folder. Nothing is kept if it is empty, or with
    JAX_ENABLE_COMPILATION_CACHE=0.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    try:
        folder = _writable()
    except PastaError as error:
        say(f"compiled programs are not kept for later runs: {error}")
        return
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(MOST_BYTES))
    # JAX fails to write to a limited folder in which a program lacks the file with its time of use, as after a kill
    # between the two writes or when a run set no limit. An empty file is the oldest time.
    for program in folder.glob("*-cache"):
        with contextlib.suppress(OSError):  # another user's
            program.with_name(program.name.removesuffix("-cache") + "-atime").touch()
    _replace_damaged(folder)


def _writable() -> Path:
    """The folder of kept programs. JAX would warn at each program that it can't lock the folder or write there."""
    folder = packages.cache_dir() / "xla"
    try:
        check_writable(folder)
        with (folder / ".lockfile").open("ab"):
            pass
    except OSError as error:
        raise PastaError(f"cache {folder}: {error.strerror}; set PASTA_JAX_CACHE to a writable folder") from None
    return folder


def _replace_damaged(folder: Path) -> None:
    """Delete a program that JAX can't read, which a full disk may have cut off: it would not replace it."""
    show = warnings.showwarning

    def shown(message: Warning | str, *rest: Any, **options: Any) -> None:
        if (program := DAMAGED.match(str(message))) is None:
            show(message, *rest, **options)
            return
        say(f"{folder}: the kept program {program[1]} is damaged and is compiled again")
        for entry in folder.glob(f"{program[1]}-*-cache"):
            with contextlib.suppress(OSError):
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    warnings.showwarning = shown


def announce() -> None:
    """From now on, display it while programs compile. JAX must have its environment already."""
    _compiling()


def make_room(most: int = MOST_MAPPINGS) -> None:
    """Forget the compiled programs of this process once they take most of its memory mappings.

    A large one takes more than a thousand, and XLA ends the process at the first program that finds none.
    """
    import jax

    if MAPPINGS.exists() and MAPPINGS.read_bytes().count(b"\n") > most:
        jax.clear_caches()


def seconds() -> float:
    """How long this process has traced, lowered and compiled programs, or loaded kept ones, since the first call."""
    return _compiling().seconds


def clock() -> float:
    """Seconds of a clock that stops while programs are compiled or loaded."""
    return time.perf_counter() - seconds()


@dataclasses.dataclass
class _Compiling:
    seconds: float = 0.0
    depth: int = 0  # phases that run: tracing a program may trace and compile another
    shown: Progress | None = None


def _compiling() -> _Compiling:
    """The sum over JAX's phases in this process."""
    with _lock:
        return _registered()


@functools.cache
def _registered() -> _Compiling:
    """The sum over JAX's phases, which listeners update and display. A phase within another, or another thread's
    meanwhile, counts once."""
    import jax.monitoring

    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    is_kept = folder and jax.config.jax_enable_compilation_cache
    what = f"compiling, kept for later runs in {folder}" if is_kept else "compiling"
    state = _Compiling()

    def begin(event: str, *_: float, **__: str) -> None:
        if event not in PHASES:
            return
        with _lock:
            if not state.depth:
                state.shown = doing(what)
            state.depth += 1

    def end(event: str, *_: float, **__: str) -> None:
        if event not in PHASES:
            return
        with _lock:
            if state.depth:
                state.depth -= 1
                if not state.depth:
                    state.seconds += state.shown.elapsed
                    state.shown.close()

    jax.monitoring.register_scalar_listener(begin)
    jax.monitoring.register_event_duration_secs_listener(end)
    return state
