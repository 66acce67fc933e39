"""Programs compiled by JAX: kept for later runs in the user's cache folder; a line while one takes long."""

import functools
import os
import threading

from pasta_jax import assets
from pasta_jax.errors import PastaError
from pasta_jax.progress import say

MOST_BYTES = 2 << 30  # of the folder; the programs that were not used for longest are deleted
LONG_S = 3.0  # compiling for longer is announced


def keep() -> None:
    """Set the environment of JAX's persistent compilation cache, which JAX reads when it is imported.

    JAX_COMPILATION_CACHE_DIR chooses another folder. Nothing is kept if it is empty, or with
    JAX_ENABLE_COMPILATION_CACHE=0.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    try:
        folder = assets.cache_dir() / "xla"
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
    """From now on, print a line when a program compiles for long. JAX must have its environment already."""
    import jax.monitoring

    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    line = "compiling …" + (f" (kept for later runs in {folder})" if folder else "")
    timers: list[threading.Timer] = []

    def begin(event: str, **_: str | int) -> None:
        if event == "/jax/compilation_cache/compile_requests_use_cache":
            timer = threading.Timer(LONG_S, say, [line])
            timer.daemon = True
            timer.start()
            timers.append(timer)

    def end(event: str, duration: float, **_: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration" and timers:
            timers.pop().cancel()

    jax.monitoring.register_event_listener(begin)
    jax.monitoring.register_event_duration_secs_listener(end)
