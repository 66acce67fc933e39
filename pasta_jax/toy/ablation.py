"""Decoding with one rule broken, to measure what the rule contributes: the oracle with a wrong mask or grammar."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from pasta_jax.decode.generate import positions_for
from pasta_jax.decode.reference import Answer, answer, uncached
from pasta_jax.decode.reference_choice import Tape, choose
from pasta_jax.decode.request import Request
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.decode.trace import Trace, spell
from pasta_jax.weights.model import Model

ABLATIONS = (
    "none",
    "no_sync",  # main cannot write [SYNC], so it never sees a chunk
    "sync_unseen",  # main waits for chunks, but does not see them
    "all_seen",  # every thread sees all tokens fed before, including siblings and open chunks
)


def decode_broken(model: Model, requests: Sequence[Request], config: DecodeConfig, ablation: str) -> list[Trace]:
    """Answer all requests. Slow: every step recomputes all fed tokens."""
    tokenizer = model.tokenizer
    runs = [answer(request, config, tokenizer, model.config.context, positions_for(model)) for request in requests]
    waiting = {index: next(run) for index, run in enumerate(runs)}
    traces: dict[int, Trace] = {}
    forbidden = [tokenizer.tags.sync] if ablation == "no_sync" else []
    while waiting:
        tapes = [broken(tape, ablation) for tape, _ in waiting.values()]
        logits = uncached(model, tapes, batch=len(requests))
        for row, (index, (_, queries)) in enumerate(list(waiting.items())):
            request = requests[index]
            tokens = [choose(logits[row], tapes[row], query, request, tokenizer, forbidden) for query in queries]
            try:
                waiting[index] = runs[index].send(tokens)
            except StopIteration as stop:
                traces[index] = trace_of(model, request, config, waiting.pop(index)[0], stop.value)
    return [traces[index] for index in range(len(requests))]


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


def trace_of(model: Model, request: Request, config: DecodeConfig, tape: Tape, result: Answer) -> Trace:
    """The oracle's answer as a trace, without times."""
    prompt, tokenizer = len(request.prompt_ids), model.tokenizer
    columns = {
        name: np.array(getattr(tape, name)[prompt:], np.int32) for name in ("token", "thread", "step", "position")
    }
    return Trace(
        tags=tokenizer.tags,
        model=model.name,
        prompt=tokenizer.decode(request.prompt_ids) if request.text is None else request.text,
        prompt_ids=request.prompt_ids,
        rows=config.rows,
        policy=positions_for(model).policy,
        replayed=False,
        **columns,
        text=spell(tokenizer, columns["token"], columns["thread"]),
        closed=(0, *result.closed),
        finish=result.finish,
        steps=result.steps,
        rounds=(),
    )
