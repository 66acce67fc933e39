"""Programs replayed on the interpreter, and what it computed for each of their tokens."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from pasta_jax.decode.interpreter import run
from pasta_jax.decode.replay import blocks_of, prepare
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.decode.state import DecodeState
from pasta_jax.lang.tags import TagIds
from pasta_jax.models.transformer import logits
from pasta_jax.weights.model import Model

logits_of = jax.jit(logits, static_argnames="config")


@dataclasses.dataclass(frozen=True)
class Replay:
    """One program's run: every fed token in slot order, beginning with the prompt's."""

    token: np.ndarray  # [N]
    thread: np.ndarray  # [N]
    step: np.ndarray  # [N]
    position: np.ndarray  # [N]
    linear: np.ndarray  # [N]: index of the token in prompt + linear response
    hidden: np.ndarray  # [N, E]: final hidden states
    steps: int


def replay(
    model: Model, prompts: Sequence[Sequence[int]], programs: Sequence[Sequence[int]], config: DecodeConfig
) -> list[tuple[Replay, np.ndarray]]:
    """Run all programs at once, one per lane, with their tokens forced; each with its logits [N, V]."""
    state, spec, script = prepare(model, prompts, programs, config, keep_hidden=True)
    state = run(model.params, state, np.int32(2**30), np.False_, config=model.config, spec=spec, script=script)
    replays = []
    for lane, (prompt, ids) in enumerate(zip(prompts, programs, strict=True)):
        one = replayed(state, lane, prompt, ids, model.tokenizer.tags)
        logits_NxV = logits_of(model.params, config=model.config, x_BxTxE=state.hidden[lane, : len(one.token)][None])[0]
        replays.append((one, np.asarray(logits_NxV)))
    return replays


def replayed(state: DecodeState, lane: int, prompt: Sequence[int], ids: Sequence[int], tags: TagIds) -> Replay:
    """Read one lane back and find the place of each slot's token in linear order."""
    pool = state.pool
    fill = int(pool.fill[lane])
    token, thread, step, position, hidden = (
        np.asarray(field[lane, :fill]) for field in (pool.token, pool.chunk, pool.step, pool.position, state.hidden)
    )
    chunk = np.zeros(len(prompt) + len(ids), np.int32)
    for number, block in enumerate(blocks_of(ids, tags), start=1):
        chunk[len(prompt) + block.start : len(prompt) + block.stop] = number
    linear = np.zeros(fill, np.int32)
    for number in range(int(chunk.max()) + 1):
        slots = np.flatnonzero(thread == number)
        linear[slots] = np.flatnonzero(chunk == number)[: len(slots)]
    return Replay(token, thread, step, position, linear, hidden, int(state.step[lane]))
