"""Run the application on a socket until the process is told to stop: then drain, and return."""

import asyncio
import contextlib
import functools
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from pasta_jax.errors import PastaError
from pasta_jax.progress import say
from pasta_jax.serve.connection import Connection
from pasta_jax.serve.settings import Limits

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ABORT_S = 0.2  # for refusals to be sent, if all ends at once


class _Server(uvicorn.Server):
    """uvicorn's, but a signal is answered by draining alone: uvicorn would raise it again at the end."""

    on_started: Callable[[], None]
    on_hangup: Callable[[], None] | None  # None: SIGHUP does what it does to any process

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # a replica's (replicas.py), which is killed
            yield
            return
        loop = asyncio.get_running_loop()
        handlers = dict.fromkeys(SIGNALS, self._stop)
        if self.on_hangup is not None:
            handlers[signal.SIGHUP] = self.on_hangup
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_started()

    def _stop(self) -> None:
        if self.force_exit:
            return
        at_once = self.force_exit = self.should_exit
        self.should_exit = True
        if at_once:  # since Python 3.12, uvicorn waits for connections even so
            for task in list(self.server_state.tasks):
                task.cancel()
            asyncio.get_running_loop().call_later(ABORT_S, self._abort)
        say("stopping at once" if at_once else "stopping: running answers finish; once more to stop at once")

    def _abort(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens at an address; port 0 is any free one."""
    listening = None
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio turns Nagle's algorithm off only where the protocol is stated; it would hold back each small write.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()  # two sockets that don't listen may be bound to one port
    except (OSError, UnicodeError) as error:  # the latter for a host that is no name
        if listening is not None:
            listening.close()
        reason = getattr(error, "strerror", None) or "not a host"
        raise PastaError(f"{host}:{port}: {reason}; choose another --config.host or --config.port") from None
    return listening


def url_of(listening: socket.socket) -> str:
    """The address of a socket that listens."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def hangups() -> list[int]:
    """The SIGHUPs from now on until `serve` has a handler of its own: they would end the process."""
    found: list[int] = []
    signal.signal(signal.SIGHUP, lambda number, _: found.append(number))
    return found


def key_from(variable: str) -> str | None:
    """The key in an environment variable; None if no variable is named."""
    if not variable:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise PastaError(
            f"config.key_variable: {variable} is not set in the environment; set it to the key, or clear it"
        )
    return key


def serve(
    app: ASGIApp,
    listening: socket.socket,
    limits: Limits,
    started: Callable[[], None],
    reload: Callable[[], None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, then until the responses that have begun are sent, for `drain_s` at most.

    SIGHUP calls `reload`, if there is one.
    """
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # its lines quote what clients send
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=functools.partial(Connection, limits),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(limits.drain_s)),
    )
    server = _Server(config)
    server.on_started, server.on_hangup = started, reload
    asyncio.run(server.serve([listening]))
