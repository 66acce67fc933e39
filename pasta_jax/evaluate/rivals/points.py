"""Points of one answer decoded in parallel: threads of one lane that share a prefix, each after its own beginning.

The prefix is written once, as main's tokens. A point is a thread of the interpreter that sees the prefix and itself
(lang/structure.py::visible), as a chunk sees main up to its promise. Main itself writes nothing: the caller wrote the
skeleton before. A point ends with the end of turn, where a chunk ends with [/ASYNC].
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.decode.generate import loop_spec
from pasta_jax.decode.interpreter import run
from pasta_jax.decode.next_token import next_of_one
from pasta_jax.decode.prefill import PREFILL_CHUNKS, start
from pasta_jax.decode.request import Request
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.decode.state import DONE, ENDED, LIVE, OWN, RUNNING, DecodeState, LoopSpec, new_state
from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import Place, visible
from pasta_jax.lang.tags import TagIds
from pasta_jax.models.attention import Cache
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.parameters import Params
from pasta_jax.models.pool import put
from pasta_jax.models.transformer import logits, trunk, uses_kernels
from pasta_jax.weights.model import Model
from pasta_jax.weights.rules import Rules

SLOTS = 2048  # fewest slots of the lane, more than most answers need, since each other number compiles a program


@dataclasses.dataclass(frozen=True)
class PointTags(TagIds):
    """The tags of a loop whose threads end with the end of turn."""

    end_of_turn: int

    @property
    def end_async(self) -> int:
        return self.end_of_turn


@dataclasses.dataclass(frozen=True, eq=False)
class Points:
    """What the threads wrote: arrays [N] in the order of the slots, without prompts and ends of turn."""

    token: np.ndarray
    thread: np.ndarray  # from 1
    step: np.ndarray  # from 1
    finished: tuple[bool, ...]  # by thread: it ended itself
    steps: int


def decode_points(
    model: Model,
    prefix: Sequence[int],
    beginnings: Sequence[Sequence[int]],
    rules: Rules,
    max_tokens: int,
    config: DecodeConfig,
) -> Points:
    """Continue every beginning after the prefix, in one pool."""
    longest = len(prefix) + max(map(len, beginnings)) + max_tokens
    if longest > model.config.context:
        raise PastaError(f"points: {longest} tokens, but the context is {model.config.context}; lower point_tokens")
    needed = len(prefix) + sum(len(ids) + max_tokens + 1 for ids in beginnings)
    slots = config.slots or SLOTS
    while slots < max(needed, 3 * (1 + len(beginnings))):  # a pool of S slots has S / 3 threads
        slots *= 2
    spec = dataclasses.replace(
        loop_spec(model, config, slots, sequential=False),
        tags=PointTags(model.tokenizer.tags.base, model.tokenizer.stop_ids[0]),
    )
    state = new_state(model, 1, slots)
    request = Request(
        prompt_ids=tuple(prefix),
        max_tokens=slots,  # of main, which writes none
        sequential=True,
        rules=dataclasses.replace(rules, end_stray_chunks=False, max_chunk_tokens=max_tokens),
    )
    state = start(model, state, 0, request, spec)
    for number, ids in enumerate(beginnings, start=1):
        tokens_P = np.zeros(next((size for size in PREFILL_CHUNKS if size >= len(ids)), len(ids)), np.int32)
        tokens_P[: len(ids)] = ids
        state = begin_point(
            model.params, state, np.int32(number), tokens_P, np.int32(len(ids)), config=model.config, spec=spec
        )
    state = run(model.params, state, np.int32(2**30), np.bool_(False), config=model.config, spec=spec)
    return _read(state, len(beginnings), spec)


@functools.partial(jax.jit, static_argnames=("config", "spec"), donate_argnames="state")
def begin_point(
    params: Params,
    state: DecodeState,
    number: jax.Array,
    tokens_P: jax.Array,
    count: jax.Array,
    config: TransformerConfig,
    spec: LoopSpec,
) -> DecodeState:
    """Write the first `count` of these tokens as thread `number` of lane 0, after the prefix; sample its next one."""
    length, pool = tokens_P.shape[0], state.pool
    prefix, fill = state.threads.position[0, 0], pool.fill[0]  # main began after the prefix
    index_P = jnp.arange(length)
    position_P = prefix + index_P
    slot_P = jnp.where(index_P < count, fill + index_P, pool.slots)

    pool = put(pool, (0,), fill=fill + count)
    integers = {"position": position_P, "token": tokens_P, "step": 0}
    pool = put(pool, (0, slot_P), chunk=number, epoch=0, main=prefix, **integers)
    # Tokens of one thread see each other whatever their order; here several are written at once.
    slot_S = jnp.arange(pool.slots)
    present_1xPxS = ((slot_S[None, :] <= slot_P[:, None]) & (slot_S < fill + count)[None, :])[None]
    place = Place(*(jnp.full((1, length), value) for value in (number, 0, prefix)))
    see_1xPxS = visible(present_1xPxS, place.queries(), pool.place.keys())
    cache = Cache(pool.kv, slot_P[None], prefixes=spec.prefixes, fill=fill + length)
    x_1xPxE, kv = trunk(params, config, tokens_P[None], position_P[None], see_1xPxS, pool.position, cache)

    x_1x1xE = jax.lax.dynamic_slice_in_dim(x_1xPxE, count - 1, 1, axis=1)
    state = dataclasses.replace(state, pool=dataclasses.replace(pool, kv=kv))
    logits_1xV = logits(params, config, x_1x1xE)[:, 0]
    token, _ = next_of_one(state, spec, logits_1xV, jnp.int32(0), fill + count - 1, uses_kernels(params))
    ends = token == spec.tags.end_async
    threads = put(
        put(state.threads, (0, 0), status=DONE),
        (0, number),
        status=jnp.where(ends, ENDED, LIVE),
        token=token,
        position=prefix + count,
        main=prefix,
        epoch=0,
        count=1,
        closed=jnp.where(ends, OWN, 0),
    )
    state = put(state, (0,), spawned=number, live=True, finish=RUNNING)
    return dataclasses.replace(state, threads=threads, request=put(state.request, (0,), limit=pool.slots))


def _read(state: DecodeState, points: int, spec: LoopSpec) -> Points:
    """What the threads fed."""
    pool = state.pool
    fields = (pool.token, pool.chunk, pool.step, pool.fill, state.threads.closed, state.step)
    token, thread, step, fill, closed, steps = (field[0] for field in jax.device_get(fields))
    written = (np.arange(len(token)) < fill) & (step > 0) & (token != spec.tags.end_async)
    finished = tuple((closed[1 : points + 1] == OWN).tolist())
    return Points(token[written], thread[written], step[written], finished, int(steps))
