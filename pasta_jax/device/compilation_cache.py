"""Programs compiled by JAX: kept for later runs in the user's cache folder; how long it takes."""

import contextlib
import dataclasses
import functools
import os
import time
from pathlib import Path

from pasta_jax.errors import PastaError
from pasta_jax.files import packages
from pasta_jax.progress import doing, say

MOST_BYTES = 2 << 30  # of the folder; the programs that were not used for longest are deleted
MAPPINGS = Path("/proc/self/maps")  # of this process's memory, a line each; Linux only
MOST_MAPPINGS = 50_000  # of the 65,530 that Linux gives a process

# JAX reports the begin of each phase as a scalar and its end as a duration, both under one name.
XLA = "/jax/core/compile/backend_compile_duration"
PHASES = ("/jax/core/compile/jaxpr_trace_duration", "/jax/core/compile/jaxpr_to_mlir_module_duration", XLA)


def keep() -> None:
    """Set the environment of JAX's persistent compilation cache, which JAX reads when it is imported.

    JAX_COMPILATION_CACHE_DIR chooses another folder. Nothing is kept if it is empty, or with
    JAX_ENABLE_COMPILATION_CACHE=0.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    try:
        folder = packages.cache_dir() / "xla"
    except PastaError as error:
        say(f"compiled programs are not kept for later runs: {error}")
        return
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(MOST_BYTES))
    # JAX fails to write to a limited folder in which a program lacks the file with its time of use, as after a kill
    # between the two writes or when a run set no limit. An empty file is the oldest time.
    for program in folder.glob("*-cache"):
        program.with_name(program.name.removesuffix("-cache") + "-atime").touch()


@functools.cache
def announce() -> None:
    """From now on, display it when a program compiles for long. JAX must have its environment already."""
    import jax.monitoring

    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    what = f"compiling, kept for later runs in {folder}" if folder else "compiling"
    running = contextlib.ExitStack()

    def begin(event: str, _: float, **__: str) -> None:
        if event == XLA:
            running.enter_context(doing(what))

    def end(event: str, *_: float, **__: str) -> None:
        if event == XLA:
            running.close()

    jax.monitoring.register_scalar_listener(begin)
    jax.monitoring.register_event_duration_secs_listener(end)


def make_room(most: int = MOST_MAPPINGS) -> None:
    """Forget the compiled programs of this process once they take most of its memory mappings.

    A large one takes more than a thousand, and XLA ends the process at the first program that finds none.
    """
    import jax

    if MAPPINGS.exists() and MAPPINGS.read_bytes().count(b"\n") > most:
        jax.clear_caches()


def seconds() -> float:
    """How long this process has traced, lowered and compiled programs, or loaded kept ones, since the first call."""
    return _spent().seconds


@dataclasses.dataclass
class _Spent:
    seconds: float = 0.0
    depth: int = 0  # phases that run: tracing a program may trace and compile another
    began: float = 0.0


@functools.cache
def _spent() -> _Spent:
    """The sum over JAX's phases, kept up to date by listeners. A phase within another counts once."""
    import jax.monitoring

    spent = _Spent()

    def begin(event: str, *_: float, **__: str) -> None:
        if event in PHASES:
            if not spent.depth:
                spent.began = time.perf_counter()
            spent.depth += 1

    def end(event: str, *_: float, **__: str) -> None:
        if event in PHASES and spent.depth:
            spent.depth -= 1
            if not spent.depth:
                spent.seconds += time.perf_counter() - spent.began

    jax.monitoring.register_scalar_listener(begin)
    jax.monitoring.register_event_duration_secs_listener(end)
    return spent
