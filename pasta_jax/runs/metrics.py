"""Metrics of a run: JSON lines in its folder, a progress line on stdout, TensorBoard events on request.

A run that resumes from step n keeps the lines up to n and rewrites the rest, as if it had never stopped.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path

from pasta_jax.errors import PastaError
from pasta_jax.files import atomic, jsonl
from pasta_jax.files.validated import Count, typed
from pasta_jax.progress import Progress, clock, say, show

FILE = "metrics.jsonl"
PRINTED = ("loss", "grad_norm", "learning_rate", "tokens_per_s", "mfu", "held_out/loss")
_FIX = "not a line of metrics"
FLUSH_S = 1  # TensorBoard's file lags at most this far behind


@dataclasses.dataclass(frozen=True)
class _Step:
    """What every line has."""

    step: Count


class Metrics:
    """The metrics of one run; without a folder, as another process writes them, only the newest are kept."""

    def __init__(self, folder: Path | None, start: int, steps: int, tensorboard: bool):
        """`start`: steps already done. Lines of later steps, from a run that was killed, are dropped."""
        self.steps = steps
        self.start = start
        self.latest: dict[str, float] = {}  # the newest value of every metric
        self._file = self._events = self._progress = None
        if folder is None:
            return
        path = folder / FILE
        earlier = [line for line in read_lines(path) if line["step"] <= start]
        self._file = atomic.reopen(path, map(json.dumps, earlier))
        for line in earlier:
            self._update_latest(line)
        if tensorboard:
            from tensorboardX import SummaryWriter  # more than a second of imports that other runs don't need

            self._events = SummaryWriter(
                str(folder / "tensorboard"),
                purge_step=start + 1,
                flush_secs=FLUSH_S,
                filename_suffix=f".{os.getpid()}.{start}",  # names hold whole seconds: a quick resume would overwrite
            )
        self._progress = Progress("step", steps, start)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write one line, and one event per value."""
        self._update_latest(values)
        if self._file is None:
            return
        print(json.dumps({"step": step, **values}), file=self._file, flush=True)
        if self._events is not None:
            for tag, value in values.items():
                self._events.add_scalar(tag, value, step)
        show(self._line(step, values))

    def reach(self, step: int) -> None:
        """Note that a step is done, for the display of progress."""
        if self._progress is not None:
            self._progress.done = step

    def close(self) -> None:
        """Close the files; events still queued are written first."""
        for open_ in filter(None, (self._progress, self._file, self._events)):
            open_.close()

    def _update_latest(self, values: Mapping[str, float]) -> None:
        self.latest |= {name: value for name, value in values.items() if name != "step"}

    def _line(self, step: int, values: Mapping[str, float]) -> str:
        """The step, some of its values, and the time left, which is unknown before the first step."""
        printed = {name: value for name, value in values.items() if name in PRINTED or name.startswith("probe/")}
        text = "  ".join(f"{name} {value:.4g}" for name, value in printed.items())
        left = "unknown time"
        if step > self.start:
            left = clock(self._progress.elapsed / (step - self.start) * (self.steps - step))
        return "  ".join(filter(None, (f"step {step}/{self.steps}", text, f"[{left} left]")))


def read_lines(path: Path) -> list[dict[str, float]]:
    """Read a metrics file up to the first line that a crash damaged."""
    lines: list[dict[str, float]] = []
    try:
        for line in jsonl.parsed(jsonl.whole_lines(path), dict[str, int | float | None], path, _FIX):
            typed(line, _Step, f"{path}: line {len(lines) + 1}", _FIX)
            lines.append(line)
    except PastaError as error:
        say(f"{error}: this line and what follows it is dropped")
    return lines
