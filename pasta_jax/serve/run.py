"""Serve a model over HTTP as OpenAI's API, until the process is told to stop. See configs/serve.py."""

import dataclasses
import os
import signal
import socket
from collections.abc import Callable

from prometheus_client import Counter
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from pasta_jax.decode.engine import open_engine
from pasta_jax.decode.generate import require_rows
from pasta_jax.decode.request import Request, template
from pasta_jax.decode.settings import refuse_idle_drafter
from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import Positions
from pasta_jax.models.sharding import decoding_mesh, sharing_rows
from pasta_jax.progress import doing, quiet, say
from pasta_jax.serve.app import app_of
from pasta_jax.serve.guard import Guard, is_loopback
from pasta_jax.serve.metrics import Metrics
from pasta_jax.serve.reload import reloader
from pasta_jax.serve.server import bound, hangups, key_from, serve, url_of
from pasta_jax.serve.service import Service
from pasta_jax.serve.settings import ServeSettings
from pasta_jax.serve.spans import require_installed
from pasta_jax.weights.beside import Beside, require_loadable, with_adapters
from pasta_jax.weights.rules import Defaults
from pasta_jax.weights.source import load


def template_for(settings: ServeSettings, positions: Positions | None, defaults: Defaults) -> Request:
    """The defaults of requests for weights that were trained with these positions, and are meant to be sampled so."""
    sequential = positions is None if settings.request.sequential is None else settings.request.sequential
    require_rows(settings.decoding, sequential)
    return template(settings.request, defaults, sequential)


def run(settings: ServeSettings) -> None:
    """Load, compile, serve."""
    if os.getpid() == 1:  # a container's first process would ignore it until it serves
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    hung_up = hangups() if settings.adapters else []
    key, listening = entrance(settings)  # before loading, so that a port in use is known at once
    service, reload = opened(settings)
    app = guarded(app_of(service), service.metrics.responses, key, settings, listening)

    def started() -> None:
        announce(service.name, listening)
        if reload and hung_up:  # what has changed may have been read before
            reload()

    with quiet():  # a server that nobody calls is silent
        serve(app, listening, settings.limits, started, reload)
    service.engine.close(drain=False)
    say("stopped")


def entrance(settings: ServeSettings) -> tuple[str | None, socket.socket]:
    """The key that clients must send, and the socket that listens to them."""
    key = key_from(settings.key_variable)
    if settings.spans:
        require_installed()
    listening = bound(settings.host, settings.port)
    if not is_loopback(host := listening.getsockname()[0]) and key is None:
        say(f"{host}: anyone who reaches this machine may use the model; set --config.key_variable to require a key")
    return key, listening


def opened(settings: ServeSettings) -> tuple[Service, Callable[[], None] | None]:
    """The model, loaded, with its engine; and what reads its adapters again, if it has some beside it."""
    if settings.adapters and (merged := settings.model.adapter):
        raise PastaError(
            f"config.adapters: beside config.model.adapter={merged!r}, which is merged into the weights; "
            f"set config.model.adapter to '', and add 'own={merged}' to config.adapters to serve it too"
        )
    refuse_idle_drafter(settings.model.drafter, settings.decoding)
    mesh, lanes = decoding_mesh(settings.mesh), settings.decoding.lanes
    if lanes % (devices := sharing_rows(mesh)):
        raise PastaError(f"config.decoding.lanes={lanes}: {devices} devices divide them; set a multiple of {devices}")
    require_loadable(settings.adapters, mesh)
    model = load(settings.model, only_decoding=True, mesh=mesh)
    own = template_for(settings, model.positions, model.defaults)
    name = settings.name or model.name
    model, beside = with_adapters(model, settings.adapters)

    def template_with(one: Beside) -> Request:
        return dataclasses.replace(template_for(settings, one.positions, one.defaults), adapter=one.number)

    with doing("compiling"):
        engine = open_engine(
            model,
            settings.decoding,
            settings.limits.queue,
            topics=True,
            warm_up=settings.warm_up,
            shares_prompts=settings.share_prompts,
            guests=settings.limits.room if mesh is None else None,
        )
    service = Service(
        name=name,
        model=model,
        engine=engine,
        metrics=Metrics(engine),
        settings=settings,
        template=own,
        adapters={f"{name}:{one.name}": template_with(one) for one in beside},
    )
    return service, reloader(service, beside, template_with) if beside else None


EXPOSED = "x-request-id", "retry-after"  # headers that pages may read


def guarded(
    app: ASGIApp, responses: Counter, key: str | None, settings: ServeSettings, listening: socket.socket
) -> ASGIApp:
    """The application as clients reach it."""
    app = Guard(app, responses, key, is_loopback(listening.getsockname()[0]), settings)
    if settings.origins:  # browsers ask before they send a page's request, without the key
        app = CORSMiddleware(
            app, settings.origins, allow_methods=["GET", "POST"], allow_headers=["*"], expose_headers=EXPOSED
        )
    return app


def announce(name: str, listening: socket.socket) -> None:
    """Say where a model is served."""
    say(f"serving {name} at {url_of(listening)}, the API under /v1; stop with Ctrl-C")
