"""Train in a folder: resume from its newest checkpoint, write metrics and checkpoints, save when stopped."""

import contextlib
import dataclasses
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from pasta_jax.checkpoint import Checkpoints, Provenance
from pasta_jax.errors import PastaError
from pasta_jax.metrics import Metrics
from pasta_jax.progress import say
from pasta_jax.train.loop import Run, train
from pasta_jax.train.state import Params, TrainState


@dataclasses.dataclass(frozen=True)
class Keep:
    """Which checkpoints stay on disk."""

    newest: Annotated[int, msgspec.Meta(ge=1)]  # how many of the newest
    every: Annotated[int, msgspec.Meta(ge=0)]  # keep those at multiples of this many steps permanently; 0: none


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

    The folder holds checkpoints/ and metrics.jsonl. A checkpoint from training on other data is refused.
    """
    with contextlib.closing(Checkpoints(folder / "checkpoints", provenance, keep.newest, keep.every)) as checkpoints:
        latest = checkpoints.latest()
        if latest is not None:
            if checkpoints.about(latest)["data"] != provenance["data"]:
                raise PastaError(f"{folder}: was started on other data; use another folder, or the original data")
            state = checkpoints.restore(latest, state)
            say(f"resuming from step {latest} of {run.steps}")
        with contextlib.closing(Metrics(folder, int(state.step), run.steps, tensorboard)) as metrics:
            state = train(run, state, frozen, metrics, checkpoints, stopping)
            result = Fit(state, int(state.step), run.steps, metrics.latest)
    if not result.complete:
        say(f"stopped at step {result.step} of {run.steps}, saved; rerun the command to resume")
    return result


@contextlib.contextmanager
def until_sigterm() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGTERM has arrived, which no longer ends the process at once.

    For the main thread; the former handler is restored at the end.
    """
    received = []
    former = signal.signal(signal.SIGTERM, lambda *_: received.append(True))
    try:
        yield lambda: bool(received)
    finally:
        signal.signal(signal.SIGTERM, former)
