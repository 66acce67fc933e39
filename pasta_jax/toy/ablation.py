"""Decoding with one rule broken, to measure what the rule contributes: the oracle with a wrong mask or grammar."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from pasta_jax.decode.generate import positions_for
from pasta_jax.decode.request import Request
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.decode.trace import Trace
from pasta_jax.oracle.choice import Tape
from pasta_jax.oracle.decoding import sampled, trace_of
from pasta_jax.weights.model import Model

ABLATIONS = (
    "none",
    "no_sync",  # main cannot write [SYNC], so it never sees a chunk
    "sync_unseen",  # main waits for chunks, but does not see them
    "all_seen",  # every thread sees all tokens fed before, including siblings and open chunks
)


def decode_broken(model: Model, requests: Sequence[Request], config: DecodeConfig, ablation: str) -> list[Trace]:
    """Answer all requests. Slow: every step recomputes all fed tokens."""
    if ablation == "no_sync":
        requests = [dataclasses.replace(request, syncs=False) for request in requests]
    answers = sampled(model, requests, config, see=lambda tape: broken(tape, ablation))
    about = model.tokenizer, model.name, config.rows, positions_for(model).policy
    return [trace_of(answer, request, *about) for answer, request in zip(answers, requests, strict=True)]


def broken(tape: Tape, ablation: str) -> Tape:
    """The tape with its mask changed by an ablation."""
    if ablation == "sync_unseen":
        thread = np.zeros(len(tape.sees), int)
        thread[: len(tape)] = tape.thread
        in_main = thread == 0
        return dataclasses.replace(tape, sees=tape.sees & (in_main[None, :] | (thread[:, None] == thread[None, :])))
    if ablation == "all_seen":
        step = np.full(len(tape.sees), -1)
        step[: len(tape)] = tape.step
        in_prompt = step == 0
        before = step[None, :] <= step[:, None]
        return dataclasses.replace(tape, sees=np.where(in_prompt[:, None], tape.sees, before))
    return tape
