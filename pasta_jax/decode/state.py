"""The whole state of decoding as plain data on the device: lanes (requests), their threads, and the pool they write to.

Letters: B lanes, M threads a lane (thread 0 is main, thread k is chunk k), S slots, R rows a step.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.pool import Pool, empty_pool

# status of a thread
UNUSED, LIVE, ENDED, DONE = range(4)  # ENDED: [/ASYNC] is sampled but not yet fed
# finish of a lane
RUNNING, STOP, LENGTH = range(3)
FINISH_NAMES = {STOP: "stop", LENGTH: "length"}
# how a thread came to its end
OPEN, OWN, BUDGET = range(3)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Threads:
    """Every thread of every lane; [B, M] each. Threads of a lane are numbered in spawn order."""

    status: jax.Array  # int32: UNUSED, LIVE, ENDED, DONE
    token: jax.Array  # int32: sampled (or, [ASYNC], inserted) and to be fed next
    position: jax.Array  # int32: the position of that token
    main: jax.Array  # int32: main tokens fed before it; a chunk's: at its promise
    epoch: jax.Array  # int32: [SYNC]s fed when the thread began; main's is the lane's current epoch
    count: jax.Array  # int32: tokens sampled in this thread, the number that its next draw folds in
    closed: jax.Array  # int32: OPEN, OWN (sampled its end), BUDGET (the interpreter closed it)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DecodeState:
    """Everything the loop carries. A lane that is not live feeds nothing and stays as it is."""

    pool: Pool
    threads: Threads
    live: jax.Array  # bool [B]: a request is being decoded
    finish: jax.Array  # int32 [B]: RUNNING, STOP, LENGTH
    step: jax.Array  # int32 [B]: steps since the prefill
    prompt: jax.Array  # int32 [B]: tokens of the prompt
    limit: jax.Array  # int32 [B]: slots the request may fill, its prompt included
    spawned: jax.Array  # int32 [B]: chunks so far
    topic: jax.Array  # int32 [B]: topic tokens of the promise that main is writing; -1 outside of one
    highest: jax.Array  # int32 [B]: greatest position fed so far
    # What the request asked for; arrays, so that nothing recompiles when they change.
    tags_allowed: jax.Array  # bool [B]: False decodes sequentially
    max_topic: jax.Array  # int32 [B]: topic tokens before the promise must close
    max_chunk: jax.Array  # int32 [B]: content tokens before the interpreter closes a chunk
    seed: jax.Array  # uint32 [B]
    temperature: jax.Array  # float32 [B]
    top_k: jax.Array  # int32 [B]
    top_p: jax.Array  # float32 [B]
    prompted: jax.Array  # [B, E]: what the model made of the prompt's last token; copies of the prompt go on from it
    hidden: jax.Array | None  # [B, S, E]: what the model made of each slot's token, where it is kept; see replay.py

    @property
    def lanes(self) -> int:
        """B."""
        return self.live.shape[0]


def max_threads(slots: int) -> int:
    """M: main and as many chunks as a pool can hold, since each takes at least [PROMISE], [/PROMISE:n] and [ASYNC]."""
    return 1 + slots // 3


def empty_state(
    config: TransformerConfig, lanes: int, slots: int, dtype, stacked: bool, keep_hidden: bool = False
) -> DecodeState:
    """No lane live."""

    def full(shape, value, dtype=jnp.int32):
        return jnp.full(shape, value, dtype)

    per_thread = {field.name: full((lanes, max_threads(slots)), 0) for field in dataclasses.fields(Threads)}
    return DecodeState(
        pool=empty_pool(config, lanes, slots, dtype, stacked),
        threads=Threads(**per_thread),
        live=full(lanes, False, jnp.bool),
        finish=full(lanes, RUNNING),
        step=full(lanes, 0),
        prompt=full(lanes, 0),
        limit=full(lanes, 0),
        spawned=full(lanes, 0),
        topic=full(lanes, -1),
        highest=full(lanes, -1),
        tags_allowed=full(lanes, False, jnp.bool),
        max_topic=full(lanes, 0),
        max_chunk=full(lanes, 0),
        seed=full(lanes, 0, jnp.uint32),
        temperature=full(lanes, 0, jnp.float32),
        top_k=full(lanes, 0),
        top_p=full(lanes, 1, jnp.float32),
        prompted=full((lanes, config.embed), 0, dtype),
        hidden=full((lanes, slots, config.embed), 0, dtype) if keep_hidden else None,
    )
