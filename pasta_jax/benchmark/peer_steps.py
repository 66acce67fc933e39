"""Training steps of transformers on torch, for peer_training.py. Imports nothing of ours: its memory is theirs.

Over all parameters in float32, or by peft over an adapter beside a base in bfloat16, with all activations kept: the
fastest of its settings.
"""

import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM


def answer_each_line(
    folder: str, vocab: int, rows: int, length: int, steps: int, rank: int, threads: int, clip: float
) -> None:
    """Take steps for each line of stdin, and print the milliseconds of one and the peak of memory in GB."""
    torch.set_num_threads(threads)
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
        print(1e3 * (time.perf_counter() - began) / steps, peak_gb(), flush=True)


def peak_gb() -> float:
    """The peak of this process's memory. The system's `ru_maxrss` begins with that of the process that started it."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024 / 1e9


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the command that started this one says so
    path, *sizes, limit = sys.argv[1:]
    answer_each_line(path, *map(int, sizes), float(limit))
