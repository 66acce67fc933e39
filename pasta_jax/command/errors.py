"""How a command ends: one line on stderr and an exit code, whatever stopped it; a defect's traceback goes to a file."""

import contextlib
import errno
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator

from pasta_jax.command.console import as_typed
from pasta_jax.errors import PastaError, one_line
from pasta_jax.files.atomic import disk_is_full

# Errors of a path that the user named, wherever the first access to it is.
UNUSABLE = {errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EROFS}
DEFECT, INTERRUPTED = 1, 130  # exit codes; a PastaError has its own


def explain(command: Callable[[], None]) -> None:
    """Run a command to its end, stdout included; an exception becomes one line and an exit code."""
    try:
        try:
            with _interrupts_kept():
                command()
        except SystemExit as end:
            if isinstance(end.__context__, BrokenPipeError):  # rich exits where it cannot print
                raise end.__context__ from None
            _flush()  # here, since at the interpreter's exit a full disk could not be explained
            raise
        _flush()
    except PastaError as error:
        _exit(f"error: {as_typed(str(error))}", error.exit_code)
    except KeyboardInterrupt:
        _exit("\ninterrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of stdout has exited, as `| head` does
        _drop_stdout()
    except Exception as error:
        # Files that a command writes are named in a PastaError; what remains is stdout.
        if isinstance(error, OSError) and error.filename is None and disk_is_full(error):
            _exit("error: stdout: the disk is full; free some space, or write to another disk", PastaError.exit_code)
        if isinstance(error, OSError) and error.filename is not None and error.errno in UNUSABLE:
            _exit(f"error: {one_line(str(error.filename))}: {error.strerror}; use another path", PastaError.exit_code)
        is_memory = isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)  # the latter is XLA's
        problem = "out of memory" if is_memory else "unexpected"
        text = one_line(f"{problem}: {type(error).__name__}: {' '.join(str(error).split())}")
        _exit(f"error: {text}; {_written(traceback.format_exc())}", DEFECT)


@contextlib.contextmanager
def _interrupts_kept() -> Iterator[None]:
    """Send a Ctrl-C again that Python dropped: what garbage collections raise is ignored, and JAX has a call there."""
    former, timers = sys.unraisablehook, []

    def again(ignored: "sys.UnraisableHookArgs") -> None:
        if ignored.exc_type is not KeyboardInterrupt:
            former(ignored)
            return
        # Later and from another thread: whatever is raised in here is ignored too.
        timer = threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        timer.daemon = True
        timer.start()
        timers.append(timer)

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = former
        for timer in timers:  # one that is still due comes too late
            timer.cancel()


def _flush() -> None:
    if sys.stdout is not None:  # as with `>&-`
        sys.stdout.flush()


def _written(text: str) -> str:
    """Write a traceback to a new file; where it is."""
    try:
        number, path = tempfile.mkstemp(prefix="pasta_jax-error-", suffix=".txt")
        with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{' '.join(sys.argv)}\n{text}")
    except OSError as error:
        return f"its traceback cannot be written ({error.strerror})"
    return f"its traceback is in {path}"


def _exit(line: str, code: int) -> None:
    _drop_stdout()
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)
    sys.exit(code)


def _drop_stdout() -> None:
    """Write what is buffered if that is possible, and nothing more: the interpreter would try again at its exit."""
    with contextlib.suppress(OSError, ValueError):
        _flush()
        return
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
