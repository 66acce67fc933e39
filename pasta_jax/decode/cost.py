"""What a loop's steps cost by the rows that they compute, measured with the loop's own program."""

import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.decode.admission import no_prices
from pasta_jax.decode.interpreter import run
from pasta_jax.decode.state import LIVE, UNUSED, DecodeState, LoopSpec
from pasta_jax.device import width
from pasta_jax.device.platform import machine
from pasta_jax.models.kernels.cpu import library
from pasta_jax.models.sharding import mesh_of
from pasta_jax.weights.model import Model

PROMPT = 128  # tokens in each lane before the measured steps, or a quarter of its slots
ROUNDS = (5, 20)  # of all sizes: at least, and at most
SECONDS = 6.0  # after which no further round begins
STEPS = 2  # of a measurement: a chunk feeds twice, even if it samples its end at once


def prices_of(model: Model, state: DecodeState, spec: LoopSpec) -> tuple[DecodeState, np.ndarray]:
    """Milliseconds of a step by spec.priced_rows, and the state, whose lanes are not live before and after.

    Measured where it was not yet. The program must be compiled; what is measured is part of no answer.
    """
    about = {
        "machine": machine(),
        "cores": library.cores(),
        "versions": [jax.__version__, library.version()],
        "model": model.identity,
        "parameters": str(jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), model.params)),
        "program": repr(dataclasses.replace(spec, topics=None)),
        "rows": spec.priced_rows,
        "topics": spec.topics is not None,
        "lanes": [state.lanes, state.pool.slots],
    }
    if mesh := mesh_of(model.params):
        about["mesh"] = dict(mesh.shape)  # of the same devices, another one has other prices
    held = [state]

    def measure() -> dict[int, float]:
        least = {(size, steps): float("inf") for size in spec.priced_rows for steps in (0, STEPS)}
        began = time.perf_counter()
        for round in range(ROUNDS[1]):
            for size, steps in least:
                rows = size if spec.packed else size * state.lanes
                held[0], ms = _timed(model, held[0], spec, rows, steps)
                least[size, steps] = min(least[size, steps], ms)
            if round + 1 >= ROUNDS[0] and time.perf_counter() - began > SECONDS:
                break
        held[0] = replaced(held[0], live=False)
        return {size: max(1e-3, (least[size, STEPS] - least[size, 0]) / STEPS) for size in spec.priced_rows}

    ms = width.width_of(about, measure).ms
    return held[0], np.array([ms[size] for size in spec.priced_rows], np.float32)


def _timed(model: Model, state: DecodeState, spec: LoopSpec, rows: int, steps: int) -> tuple[DecodeState, float]:
    """Milliseconds of a call with so many steps of so many rows."""
    state = jax.block_until_ready(_running(state, spec, rows))
    began = time.perf_counter()
    state = run(model.params, state, np.int32(steps), np.bool_(False), config=model.config, spec=spec, script=None)
    jax.block_until_ready(state)
    return state, 1e3 * (time.perf_counter() - began)


def _running(state: DecodeState, spec: LoopSpec, rows: int) -> DecodeState:
    """The state with as many chunks running, in all lanes alike; their mains wait at a [SYNC] for them.

    If these are more than may run beside main, the mains write a topic, which they can't end with the answer.
    """
    lanes, threads = state.threads.status.shape
    prompt = min(PROMPT, state.pool.slots // 4)
    mains = rows > lanes * (spec.rows - 1)
    chunks, main = (rows - lanes, spec.tags.promise) if mains else (rows, spec.tags.sync)
    chunks_B = np.array([chunks // lanes + (lane < chunks % lanes) for lane in range(lanes)], np.int32)
    runs_B, thread_M, slot_S = mains | (chunks_B > 0), np.arange(threads), np.arange(state.pool.slots)
    runs_BxM = runs_B[:, None] & (thread_M[None, :] <= chunks_B[:, None])
    state = replaced(state, live=runs_B, topic=0 if mains else -1, spawned=chunks_B, prices=no_prices(spec.priced_rows))
    threads = replaced(
        state.threads,
        status=np.where(runs_BxM, LIVE, UNUSED),
        token=np.where(thread_M == 0, main, spec.stop_ids[0]),
        position=prompt,
        main=prompt,
        **dict.fromkeys(("epoch", "count", "closed", "tens"), 0),
    )
    pool = replaced(
        state.pool,
        fill=np.where(runs_B, prompt, 0),
        main=slot_S + 1,
        position=slot_S,
        **dict.fromkeys(("chunk", "epoch", "token", "step"), 0),
    )
    request = replaced(state.request, limit=state.pool.slots)
    drafts = state.drafts and replaced(state.drafts, allowed=False, count=0)
    return dataclasses.replace(state, threads=threads, pool=pool, request=request, drafts=drafts)


def replaced(fields, **changes: np.ndarray | float):
    """A dataclass of arrays with some replaced, in the form of those that they replace: no program is compiled."""

    def placed(name: str, value: np.ndarray | float) -> jax.Array:
        old = getattr(fields, name)
        new = jnp.array(np.broadcast_to(value, old.shape), old.dtype)  # a copy: the loop overwrites its state
        return jax.device_put(new, old.sharding) if old.committed else new

    return dataclasses.replace(fields, **{name: placed(name, value) for name, value in changes.items()})
