"""Several replicas of a server behind one address (front.py): each is an actor of Ray, checked, and replaced when lost.

A replica that doesn't answer is killed, and a new actor takes its place: the same for a process that has ended, hangs
or can't decode any more, and for a machine that was lost. Ray's own restarts are for the first of these.
"""

import asyncio
import contextlib
import dataclasses
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Collection
from types import ModuleType
from typing import Any, NamedTuple

from starlette.types import ASGIApp, Receive, Scope, Send

from pasta_jax.errors import PastaError, brief
from pasta_jax.progress import doing, quiet, say
from pasta_jax.runs.ray import connected, outcome
from pasta_jax.serve import log
from pasta_jax.serve.app import app_of
from pasta_jax.serve.demand import Demand
from pasta_jax.serve.front import Front, Replica
from pasta_jax.serve.run import announce, entrance, guarded, opened
from pasta_jax.serve.server import bound, hangups, serve, url_of
from pasta_jax.serve.settings import ServeSettings

CHECK_S = 1.0  # between two checks of a replica, and of whether they are enough
AGAIN_S = 5.0  # after a start that failed


class Started(NamedTuple):
    """What a replica says of itself."""

    url: str
    process: int
    name: str  # of the model


class Server:
    """An actor: the process of one replica."""

    def __init__(self, number: int):
        self._number = number

    def __repr__(self) -> str:  # Ray writes it before each line of the process
        return f"replica {self._number}"

    def start(self, settings: ServeSettings, key: str, node: str) -> "Started":
        """Load, compile, serve in a thread: on loopback where the front is, which is the `node`."""
        import ray

        is_there = ray.get_runtime_context().get_node_id() == node
        listening = bound("127.0.0.1" if is_there else ray.util.get_node_ip_address(), 0)
        service, self._reload = opened(settings)
        app = guarded(named_by_front(app_of(service)), service.metrics.responses, key, settings, listening)
        started = threading.Event()
        threading.Thread(target=self._serve, args=(app, listening, settings, started)).start()
        started.wait()
        return Started(url_of(listening), os.getpid(), service.name)

    def reload(self) -> None:
        """Read the adapters again."""
        self._reload()

    def _serve(self, app: ASGIApp, listening: socket.socket, settings: ServeSettings, started: threading.Event) -> None:
        try:
            serve(app, listening, settings.limits, started.set)
        finally:
            os._exit(1)  # so that it is replaced


def named_by_front(app: ASGIApp) -> ASGIApp:
    """The application, whose requests have the ids that the front tells clients."""

    async def named(scope: Scope, receive: Receive, send: Send) -> None:
        own = log.record()
        own.id = dict(scope["headers"]).get(b"x-request-id", own.id.encode()).decode("latin-1")
        await app(scope, receive, send)

    return named


class Actors:
    """The processes of the replicas."""

    def __init__(self, ray: ModuleType, settings: ServeSettings, key: str):
        # The front closes a connection after each request, and a replica may see it later.
        limits = dataclasses.replace(settings.limits, connections=2 * settings.limits.connections)
        # Clients are checked, and their requests logged, by the front.
        own = dict(replicas=1, hosts=(), origins=(), log=False, limits=limits)
        self._ray, self._key, self._settings = ray, key, dataclasses.replace(settings, **own)
        self._node = ray.get_runtime_context().get_node_id()
        taken = {"num_cpus": settings.ray.cpus, "num_gpus": settings.ray.gpus}
        chips = {"TPU": settings.ray.tpus} if settings.ray.tpus else {}
        self._server = ray.remote(Server).options(**taken, resources=chips, scheduling_strategy="SPREAD")
        self._running: dict[int, Any] = {}

    def start(self, number: int) -> Any:
        """Start the process of a number; a reference to what it says then."""
        self._running[number] = self._server.remote(number)
        return self._running[number].start.remote(self._settings, self._key, self._node)

    def stop(self, number: int) -> None:
        """End the process of a number, if it has one."""
        if former := self._running.pop(number, None):
            self._ray.kill(former)

    def reload(self) -> None:
        """Have all read their adapters again; one that starts reads them anyway."""
        for one in self._running.values():
            one.reload.remote()

    async def keep(self, replica: Replica) -> None:
        """As long as this process serves: start a replica that is wanted, check it, end one that no longer is."""
        while True:
            if replica.client is None:
                if replica.is_wanted:
                    await self._begin(replica)
            elif not replica.is_wanted and not replica.requests:
                await self._end(replica, "no longer needed")
            elif not await replica.is_healthy():
                await self._end(replica, "lost")
                continue
            await asyncio.sleep(CHECK_S)

    async def _begin(self, replica: Replica) -> None:
        say(f"replica {replica.number}: starts")
        try:
            started = await self.start(replica.number)
        except self._ray.exceptions.RayError as error:
            if replica.is_wanted:
                replica.has_failed = True
                say(f"replica {replica.number}: did not start: {brief(error)}")
                await asyncio.sleep(AGAIN_S)
            self.stop(replica.number)
        else:
            replica.enter(started.url, started.process)

    async def _end(self, replica: Replica, why: str) -> None:
        say(f"replica {replica.number}: {why}")
        await replica.leave()
        self.stop(replica.number)

    async def scale(self, replicas: Collection[Replica], settings: ServeSettings) -> None:
        """As long as this process serves: want one more replica, or one fewer, as requests need them."""
        demand = Demand(settings, time.monotonic())
        while True:
            await asyncio.sleep(CHECK_S)
            wanted = [one for one in replicas if one.is_wanted]
            change = demand.change(time.monotonic(), wanted)
            if change > 0:  # rather one that hasn't ended yet
                others = [one for one in replicas if not one.is_wanted]
                more = min(others, key=lambda one: (one.client is None, one.number))
                more.is_wanted, more.has_failed = True, False
            elif change < 0:
                dropped = max(wanted, key=lambda one: (one.client is None, one.number))  # rather one that isn't there
                dropped.is_wanted = False
                if dropped.client is None:  # it may start no sooner than its cluster has room
                    self.stop(dropped.number)


def run(settings: ServeSettings) -> None:
    """Start all replicas, then serve until the process is told to stop."""
    count, most, inner = settings.replicas, settings.most_replicas, secrets.token_hex()
    if 0 < settings.scaling.most < count:
        raise PastaError(f"config.scaling.most={settings.scaling.most}: fewer than config.replicas={count}")
    hung_up = hangups() if settings.adapters else []
    key, listening = entrance(settings)
    cluster = dataclasses.replace(settings.ray, workers=most)
    starting = doing("starting a replica" if count == 1 else f"starting {count} replicas")
    asked = f"config.replicas={count}" if count > 1 else f"config.scaling.most={most}"
    with contextlib.closing(listening), starting, connected(cluster, asked, count) as ray:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # Ray's would abort
        actors = Actors(ray, settings, inner)
        found = [outcome(ray, actors.start(0))]  # alone: others find what it compiles and measures
        if not isinstance(found[0], PastaError):
            found += [outcome(ray, one) for one in [actors.start(number) for number in range(1, count)]]
        if errors := [one for one in found if isinstance(one, PastaError)]:
            raise errors[0]
        starting.close()
        front = Front(settings, inner, found[0].name)
        for replica, one in zip(front.replicas, found, strict=False):  # others may follow
            replica.enter(one.url, one.process)
        kept = []

        def started() -> None:
            kept.extend(asyncio.create_task(actors.keep(replica)) for replica in front.replicas)
            if most > count:
                kept.append(asyncio.create_task(actors.scale(front.replicas, settings)))
            announce(found[0].name, listening)
            if hung_up:  # what has changed may have been read before
                actors.reload()

        own = dataclasses.replace(settings, spans="")  # replicas send them: they know what an answer took
        app = guarded(front.app, front.responses, key, own, listening)
        with quiet():
            serve(app, listening, settings.limits, started, actors.reload if settings.adapters else None)
    say("stopped")
