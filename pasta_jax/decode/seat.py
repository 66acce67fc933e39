"""Guests take their places: their own prompts are written after the one they share, all in the same chunks."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.decode.drafts import without_next
from pasta_jax.decode.request import Request
from pasta_jax.decode.rows import see_pool
from pasta_jax.decode.state import DONE, LIVE, RUNNING, DecodeState, LoopSpec
from pasta_jax.lang.structure import Place
from pasta_jax.models.adapters import choose
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.parameters import Params
from pasta_jax.models.pool import put
from pasta_jax.models.transformer import Cache, trunk


@dataclasses.dataclass(frozen=True, eq=False)
class Seat:
    """The tokens of all guests but for the last of each, which the first step feeds: arrays [N], guest after guest."""

    token: np.ndarray
    guest: np.ndarray  # its thread
    position: np.ndarray
    request: Request

    @staticmethod
    def of(request: Request) -> "Seat":
        """The seats of a request's guests."""
        after, counts = len(request.prompt_ids), [len(guest.ids) - 1 for guest in request.guests]
        return Seat(
            token=np.array([id for guest in request.guests for id in guest.ids[:-1]], np.int32),
            guest=np.repeat(np.arange(1, 1 + len(counts), dtype=np.int32), counts),
            position=np.concatenate([np.arange(after, after + n, dtype=np.int32) for n in [0, *counts]]),
            request=request,
        )

    def first(self, threads: int) -> dict[str, np.ndarray]:
        """Each thread's status, first token to feed, its position, and state; arrays [threads]."""
        guests = self.request.guests
        columns = {
            "status": [LIVE] * len(guests),
            "token": [guest.ids[-1] for guest in guests],
            "position": [len(self.request.prompt_ids) + len(guest.ids) - 1 for guest in guests],
            "state": [guest.state for guest in guests],
        }
        rest = [0] * (threads - 1 - len(guests))
        return {
            name: np.array([DONE * (name == "status"), *column, *rest], np.int32) for name, column in columns.items()
        }


@functools.partial(jax.jit, static_argnames=("config", "spec"), donate_argnames="state")
def seat(
    params: Params,
    state: DecodeState,
    lane: jax.Array,
    tokens_P: jax.Array,
    guest_P: jax.Array,
    position_P: jax.Array,
    count: jax.Array,
    prompt_length: jax.Array,
    config: TransformerConfig,
    spec: LoopSpec,
) -> DecodeState:
    """Write the first `count` of these tokens to the next slots of a lane, each as a token of its guest's thread."""
    length, fill = tokens_P.shape[0], state.pool.fill[lane]
    index_P = jnp.arange(length)
    slot_P = jnp.where(index_P < count, fill + index_P, state.pool.slots)
    main_P = jnp.broadcast_to(prompt_length, length)
    pool = put(state.pool, (lane,), fill=fill + count)
    integers = {"position": position_P, "token": tokens_P, "step": 0}
    pool = put(pool, (lane, slot_P), chunk=guest_P, epoch=0, main=main_P, **integers)
    one = jax.tree.map(lambda field: field[lane][None], dataclasses.replace(pool, kv=()))
    # Tokens of one thread see each other whatever their order; here several are written at once.
    earlier_PxS = jnp.arange(pool.slots)[None, :] <= slot_P[:, None]
    see_1xPxS = see_pool(one, Place(guest_P[None], jnp.zeros_like(guest_P)[None], main_P[None])) & earlier_PxS[None]
    cache = Cache(pool.kv, slot_P[None], lanes=lane[None], prefixes=spec.prefixes, fill=fill + length)
    own = choose(params, jnp.broadcast_to(state.request.adapter[lane], length))
    _, kv = trunk(own, config, tokens_P[None], position_P[None], see_1xPxS, one.position, cache)
    return dataclasses.replace(state, pool=dataclasses.replace(pool, kv=kv))


@functools.partial(jax.jit, donate_argnames="state")
def begin_guests(
    state: DecodeState, lane: jax.Array, prompt_length: jax.Array, first: dict[str, jax.Array]
) -> DecodeState:
    """Let the guests of a lane begin."""
    states_M = first["state"]
    rest = {name: first[name] for name in ("status", "token", "position")}
    threads = put(state.threads, (lane,), main=prompt_length, epoch=0, count=0, closed=0, **rest)
    guests = put(state.guests, (lane,), state=states_M, chars=0)
    state = put(state, (lane,), live=True, finish=RUNNING, spawned=guests.count[lane])
    return dataclasses.replace(state, threads=threads, guests=guests, drafts=without_next(state.drafts))
