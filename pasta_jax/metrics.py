"""What a run says of itself: JSON lines in its folder, a line of progress on stdout, TensorBoard events on request.

A run that goes on from step n keeps the lines up to n and writes the rest again, so that the file is that of one run.
"""

import json
import os
import time
from pathlib import Path

from pasta_jax.events import EventFile

FILE = "metrics.jsonl"
SHOWN = ("loss", "grad_norm", "learning_rate", "tokens_per_s", "mfu", "held_out/loss")


class Metrics:
    """The figures of one run."""

    def __init__(self, folder: Path, start: int, steps: int, tensorboard: bool):
        """`start`: steps already done; what was written for later ones is dropped."""
        self.steps = steps
        self.start = start
        self._path = folder / FILE
        folder.mkdir(parents=True, exist_ok=True)
        kept = [line for line in read_lines(self._path) if line["step"] <= start]
        unfinished = self._path.with_name(f".{FILE}.{os.getpid()}")
        unfinished.write_text("".join(json.dumps(line) + "\n" for line in kept))
        os.replace(unfinished, self._path)
        self._file = self._path.open("a")
        self._events = EventFile(folder / "tensorboard", start + 1) if tensorboard else None
        self._began = time.monotonic()

    def write(self, step: int, values: dict[str, float]) -> None:
        """One line for a step."""
        print(json.dumps({"step": step, **values}), file=self._file, flush=True)
        if self._events is not None:
            self._events.write(step, values)
        print(self._progress(step, values), flush=True)

    def close(self) -> None:
        self._file.close()
        if self._events is not None:
            self._events.close()

    def _progress(self, step: int, values: dict[str, float]) -> str:
        shown = {name: value for name, value in values.items() if name in SHOWN or name.startswith("probe/")}
        said = "  ".join(f"{name} {value:.4g}" for name, value in shown.items())
        left = (time.monotonic() - self._began) / max(step - self.start, 1) * (self.steps - step)
        return f"step {step}/{self.steps}  {said}  [{_clock(left)} left]"


def read_lines(path: Path) -> list[dict]:
    """The lines of a metrics file; one that was cut off in the middle is not there."""
    lines = []
    for line in path.read_text().split("\n")[:-1] if path.is_file() else []:
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return lines


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
