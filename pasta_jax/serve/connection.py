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
        self._head: asyncio.TimerHandle | None = None  # while no request is answered: until a head has arrived
        self._reading: asyncio.TimerHandle | None = None  # while the client reads too slowly for our buffer

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            transport.abort()
        else:
            self._head = self.loop.call_later(self._limits.head_s, transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_answering:  # else what arrived is the rest of a body that nobody reads
            _cancel(self._head)

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # the rest of a body is malformed whose request is answered already
            self.transport.abort()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        _cancel(self._head)
        if not self._is_answering:  # the next request may have been there already
            seconds = self._limits.stall_s if self.transport.is_closing() else self._limits.head_s
            self._head = self.loop.call_later(seconds, self.transport.abort)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

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
