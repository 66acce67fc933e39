"""One connection of a client: how many there may be, and how long a request's head or a stalled reader may take.

uvicorn has no limit on connections that send nothing, or half a head, or that stop reading: each would hold a file
descriptor until the server can accept no other.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from pasta_jax.serve.settings import Limits


class Connection(H11Protocol):
    """uvicorn's protocol, which is aborted where a client exceeds a limit."""

    def __init__(self, limits: Limits, **uvicorns: Any):
        super().__init__(**uvicorns)
        self._limits = limits
        self._head: asyncio.TimerHandle | None = None  # until the head of the next request has arrived
        self._reading: asyncio.TimerHandle | None = None  # while the client reads too slowly for our buffer

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            transport.abort()
        else:
            self._head = self.loop.call_later(self._limits.head_s, transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            _cancel(self._head)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and self.conn.their_state is h11.IDLE:
            _cancel(self._head)
            self._head = self.loop.call_later(self._limits.head_s, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading = self.loop.call_later(self._limits.stall_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._reading)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        _cancel(self._head)
        _cancel(self._reading)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
