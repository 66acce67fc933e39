"""The same training step by transformers on torch: AdamW with a clipped gradient.

Over all parameters in float32, or by peft over an adapter beside a base in bfloat16, with all activations kept: the
fastest of its settings.
"""

import contextlib
import resource
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
from pasta_jax.models.kernels.cpu.library import cores
from pasta_jax.weights.model import Model


@contextlib.contextmanager
def step_runner(
    model: Model, rows: int, length: int, steps: int, clip: float, rank: int, peak_gb: dict[str, float]
) -> Iterator[Runner]:
    """Steps over random tokens with the plain causal mask, as in a training loop; `peak_gb` gets their memory.

    They are taken in a process of their own, with memory as torch has it: this one's is tuned for our steps.
    """
    numbers = map(str, (model.tokenizer.vocab_size, rows, length, steps, rank, clip))
    command = [sys.executable, "-m", __name__, str(exported(model.name)), *numbers]
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


def answer_each_line(folder: str, vocab: int, rows: int, length: int, steps: int, rank: int, clip: float) -> None:
    """Take steps for each line of stdin, and print the milliseconds of one and the peak of memory in GB."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(cores())
    dtype = torch.bfloat16 if rank else torch.float32
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).train()
    if rank:
        from peft import LoraConfig, get_peft_model

        theirs = get_peft_model(theirs, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"))
    trained = [parameter for parameter in theirs.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)
    token = torch.from_numpy(np.random.default_rng(0).integers(0, vocab, (rows, length)))

    def step() -> None:
        theirs(input_ids=token, labels=token, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in sys.stdin:
        step()  # warm-up
        began = time.perf_counter()
        for _ in range(steps):
            step()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        print(1e3 * (time.perf_counter() - began) / steps, peak, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the command that started this one says so
    path, *sizes, limit = sys.argv[1:]
    answer_each_line(path, *map(int, sizes), float(limit))
