"""The same training step by transformers on torch: all parameters, float32, AdamW with a clipped gradient."""

import os
import time

import numpy as np

from pasta_jax.benchmark.peers import exported
from pasta_jax.benchmark.steps import Runner
from pasta_jax.models.weights import Model


def transformers_step_runner(model: Model, rows: int, length: int, steps: int, clip: float) -> Runner:
    """Steps over random tokens with the plain causal mask, as in a training loop."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(os.cpu_count() or 1)
    theirs = AutoModelForCausalLM.from_pretrained(exported(model), dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-5, fused=True)
    token = torch.from_numpy(np.random.default_rng(0).integers(0, model.tokenizer.vocab_size, (rows, length)))

    def step() -> None:
        theirs(token, labels=token, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def once() -> float:
        step()  # warm-up
        began = time.perf_counter()
        for _ in range(steps):
            step()
        return 1e3 * (time.perf_counter() - began) / steps

    return once
