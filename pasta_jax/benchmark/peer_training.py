"""The same training step by transformers on torch: AdamW with a clipped gradient.

It runs in a process of its own (peer_steps.py), with memory as torch has it: this one's is tuned for our steps.
"""

import contextlib
import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from pasta_jax.benchmark.peers import exported
from pasta_jax.benchmark.steps import Runner
from pasta_jax.device.malloc import without_large_pages
from pasta_jax.errors import PastaError
from pasta_jax.models.kernels.cpu.library import cores
from pasta_jax.weights.model import Model


@contextlib.contextmanager
def step_runner(
    model: Model, rows: int, length: int, steps: int, clip: float, rank: int, peak_gb: dict[str, float]
) -> Iterator[Runner]:
    """Steps over random tokens with the plain causal mask, as in a training loop; `peak_gb` gets their memory."""
    numbers = map(str, (model.tokenizer.vocab_size, rows, length, steps, rank, cores(), clip))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:  # what it holds is not our step's
        folder = apart.submit(exported, model.name).result()
    command = [sys.executable, "-m", "pasta_jax.benchmark.peer_steps", str(folder), *numbers]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=without_large_pages(), **pipes) as process:

        def once() -> float:
            with contextlib.suppress(BrokenPipeError):
                print(file=process.stdin, flush=True)
            figures = process.stdout.readline().split()
            if not figures:
                raise PastaError(f"transformers: its process ended with exit code {process.wait()}; see above")
            peak_gb["transformers"] = round(float(figures[1]), 2)
            return float(figures[0])

        yield once
