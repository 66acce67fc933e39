"""The same training step by transformers on torch: all parameters, float32, AdamW with a clipped gradient."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np

from pasta_jax.benchmark.peers import exported
from pasta_jax.benchmark.steps import Runner
from pasta_jax.device.malloc import without_large_pages
from pasta_jax.errors import PastaError
from pasta_jax.weights.model import Model


@contextlib.contextmanager
def transformers_step_runner(model: Model, rows: int, length: int, steps: int, clip: float) -> Iterator[Runner]:
    """Steps over random tokens with the plain causal mask, as in a training loop.

    They are taken in a process of their own, with memory as torch has it: this one's is tuned for our steps.
    """
    numbers = map(str, (model.tokenizer.vocab_size, rows, length, steps, clip))
    command = [sys.executable, "-m", __name__, str(exported(model)), *numbers]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=without_large_pages(), **pipes) as process:

        def once() -> float:
            with contextlib.suppress(BrokenPipeError):
                print(file=process.stdin, flush=True)
            milliseconds = process.stdout.readline()
            if not milliseconds:
                raise PastaError(f"transformers: its process ended with exit code {process.wait()}; see above")
            return float(milliseconds)

        yield once


def answer_each_line(folder: str, vocab: int, rows: int, length: int, steps: int, clip: float) -> None:
    """Take steps for each line of stdin, and print the milliseconds of one."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(os.cpu_count() or 1)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-5, fused=True)
    token = torch.from_numpy(np.random.default_rng(0).integers(0, vocab, (rows, length)))

    def step() -> None:
        theirs(token, labels=token, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in sys.stdin:
        step()  # warm-up
        began = time.perf_counter()
        for _ in range(steps):
            step()
        print(1e3 * (time.perf_counter() - began) / steps, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the command that started this one says so
    path, *sizes, limit = sys.argv[1:]
    answer_each_line(path, *map(int, sizes), float(limit))
