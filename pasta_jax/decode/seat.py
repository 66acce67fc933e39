"""Guests take their places: their own prompts are written after the one they share, all in the same chunks."""

import dataclasses
import functools

import jax
import numpy as np

from pasta_jax.decode.drafts import without_next
from pasta_jax.decode.request import Request
from pasta_jax.decode.state import DONE, LIVE, RUNNING, DecodeState
from pasta_jax.models.pool import put


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


@functools.partial(jax.jit, donate_argnames="state")
def begin_guests(
    state: DecodeState, lane: jax.Array, prompt_length: jax.Array, first: dict[str, jax.Array]
) -> DecodeState:
    """Let the guests of a lane begin, after the prompt that they share."""
    rest = {name: first[name] for name in ("status", "token", "position")}
    threads = put(state.threads, (lane,), main=prompt_length, epoch=0, count=0, closed=0, **rest)
    guests = put(state.guests, (lane,), state=first["state"], chars=0)
    state = put(state, (lane,), live=True, finish=RUNNING, spawned=guests.count[lane], highest=prompt_length - 1)
    return dataclasses.replace(state, threads=threads, guests=guests, drafts=without_next(state.drafts))
