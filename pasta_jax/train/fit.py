"""Train in a folder: resume from its newest checkpoint, write metrics and checkpoints, save when stopped."""

import contextlib
import dataclasses
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import jax

from pasta_jax.errors import PastaError
from pasta_jax.progress import say
from pasta_jax.runs.checkpoint import Checkpoints, Provenance
from pasta_jax.runs.metrics import Metrics
from pasta_jax.runs.processes import agreed
from pasta_jax.train.loop import Run, train
from pasta_jax.train.settings import Keep
from pasta_jax.train.state import Params, TrainState

STDERR = 2  # its file descriptor
Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True)
class Fit:
    """Where a training run ended."""

    state: TrainState
    step: int
    steps: int  # of the whole run
    metrics: dict[str, float]  # the latest value of each

    @property
    def complete(self) -> bool:
        """False if the run was stopped before its last step; the same call resumes it."""
        return self.step == self.steps


def fit(
    folder: Path,
    run: Run,
    state: TrainState,
    frozen: Params | None,
    provenance: Provenance,
    keep: Keep,
    tensorboard: bool,
    stopping: Callable[[], bool],
) -> Fit:
    """Train to the last step or until `stopping()`. `state` is that before the first step, placed on its devices.

    Its memory is taken over or freed. The folder holds checkpoints/ and metrics.jsonl. A checkpoint from training on
    other data, or of an adapter beside other weights, is refused.
    """
    with contextlib.closing(Checkpoints(folder / "checkpoints", provenance, keep.newest, keep.every)) as checkpoints:
        latest = checkpoints.latest()
        if latest is not None:
            about = checkpoints.about(latest)
            if about["data"] != provenance["data"]:
                raise PastaError(f"{folder}: was started on other data; use another folder, or the original data")
            if about.get("base", provenance["base"]) != provenance["base"]:  # older checkpoints have none
                raise PastaError(
                    f"{folder}: was started beside other weights; use another folder, or the model of then"
                )
            like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), state)
            for leaf in jax.tree.leaves(state):  # the caller still refers to them: both states would be in memory
                leaf.delete()
            state = checkpoints.restore(latest, like)
            say(f"resuming from step {latest} of {run.steps}")
        start = int(state.step)
        written = folder if jax.process_index() == 0 else None
        with contextlib.closing(Metrics(written, start, run.steps, tensorboard)) as metrics:
            state = train(run, state, frozen, metrics, checkpoints, agreed(stopping))
            result = Fit(state, int(state.step), run.steps, metrics.latest)
    if not result.complete:
        say(f"stopped at step {result.step} of {run.steps}, saved; rerun the command to resume")
    return result


Watch = Callable[[], AbstractContextManager[Callable[[], bool]]]  # yields a function that returns whether to stop


@contextlib.contextmanager
def unwatched() -> Iterator[Callable[[], bool]]:
    """Train to the end."""
    yield lambda: False


class StopSignal:
    """The SIGINT or SIGTERM that stopped a training run, if any."""

    def __init__(self):
        self.number: int | None = None

    @property
    def exit_code(self) -> int:
        """Of a run that was stopped before its end, as shells report a process that a signal ended: 130 or 143.

        143 too where another process of the run got the signal: whoever watches this one must see no success.
        """
        return 128 + (self.number or signal.SIGTERM)

    def finished(self, result: Value | None) -> Value:
        """A run's result; if it has none, since it was stopped, end the process with the exit code."""
        if result is None:
            sys.exit(self.exit_code)
        return result

    @contextlib.contextmanager
    def watch(self) -> Iterator[Callable[[], bool]]:
        """Yield a function that returns whether a signal has arrived; a second one ends the process at once.

        For the main thread; the former handlers are restored at the end. A signal that the process was started to
        ignore stays ignored: shells start background jobs so, because Ctrl-C is meant for the one in the foreground.
        A thread reads the signals: Python calls handlers between two steps only, and a step may take minutes.
        """
        numbers = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) is not signal.SIG_IGN]
        receive, send = os.pipe()
        os.set_blocking(send, False)

        def note(number: int, _: object = None) -> None:
            self.number = self.number or number

        def read() -> None:
            seen = 0
            while number := os.read(receive, 1)[0]:
                if number not in numbers:
                    continue
                seen += 1
                if seen > 1:
                    os._exit(128 + number)
                note(number)
                message = f"{signal.Signals(number).name}: saving and stopping; a second signal ends without saving\n"
                with contextlib.suppress(OSError):
                    os.write(STDERR, message.encode())  # print would fail if it interrupted another print

        former = {number: signal.signal(number, note) for number in numbers}
        other = signal.set_wakeup_fd(send)
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            yield lambda: self.number is not None
        finally:
            signal.set_wakeup_fd(other)
            for number, handler in former.items():
                signal.signal(number, handler)
            os.write(send, b"\0")
            reader.join()
            os.close(receive)
            os.close(send)
