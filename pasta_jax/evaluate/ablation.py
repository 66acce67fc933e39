"""Decoding with one of its rules broken, to see what the rule is worth: the oracle, with a lie told to it."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from pasta_jax.decode.generate import DecodeConfig, Request, positions_for
from pasta_jax.decode.reference import Answer, Tape, answer, legal, pick, uncached
from pasta_jax.decode.trace import Trace, spell
from pasta_jax.models.weights import Model

ABLATIONS = (
    "none",
    "no_sync",  # main may not write [SYNC], so it never reads a chunk
    "sync_unseen",  # it waits, and still reads no chunk
    "all_seen",  # every thread reads all that was fed before, siblings and open chunks too
)


def decode_broken(model: Model, requests: Sequence[Request], settings: DecodeConfig, ablation: str) -> list[Trace]:
    """The answers, greedy or sampled as asked. Slow: all that was fed is computed anew in every step."""
    tokenizer = model.tokenizer
    runs = [answer(request, settings, tokenizer, model.config.context, positions_for(model)) for request in requests]
    waiting = {index: next(run) for index, run in enumerate(runs)}
    traces: dict[int, Trace] = {}
    while waiting:
        tapes = [broken(tape, ablation) for tape, _ in waiting.values()]
        logits = uncached(model, tapes, batch=len(requests))
        for row, (index, (_, asks)) in enumerate(list(waiting.items())):
            request, tokens = requests[index], []
            for ask in asks:
                allowed = legal(ask.place, not request.sequential, tokenizer, logits.shape[-1])
                allowed[tokenizer.tags.sync] &= ablation != "no_sync"
                tokens.append(pick(logits[row, ask.slot], allowed, request.sampling, ask.thread, ask.number))
            try:
                waiting[index] = runs[index].send(tokens)
            except StopIteration as stop:
                traces[index] = trace_of(model, request, settings, waiting.pop(index)[0], stop.value)
    return [traces[index] for index in range(len(requests))]


def broken(tape: Tape, ablation: str) -> Tape:
    """The tape with what each token sees made wrong."""
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


def trace_of(model: Model, request: Request, settings: DecodeConfig, tape: Tape, done: Answer) -> Trace:
    """The oracle's books as a trace, without times."""
    prompt, tokenizer = len(request.prompt_ids), model.tokenizer
    columns = {
        name: np.array(getattr(tape, name)[prompt:], np.int32) for name in ("token", "thread", "step", "position")
    }
    return Trace(
        tags=tokenizer.tags,
        model=model.name,
        prompt=tokenizer.decode(request.prompt_ids),
        prompt_ids=request.prompt_ids,
        rows=settings.rows,
        policy=positions_for(model).policy,
        replayed=False,
        **columns,
        text=spell(tokenizer, columns["token"], columns["thread"]),
        closed=(0, *done.closed),
        finish=done.finish,
        steps=done.steps,
        rounds=(),
    )
