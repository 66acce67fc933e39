"""Serve a model over HTTP as OpenAI's API, until the process is told to stop. See configs/serve.py."""

import dataclasses

from starlette.middleware.cors import CORSMiddleware

from pasta_jax.decode.engine import open_engine
from pasta_jax.decode.generate import require_rows
from pasta_jax.decode.request import Request, template
from pasta_jax.lang.structure import Positions
from pasta_jax.models.sharding import decoding_mesh
from pasta_jax.progress import doing, quiet, say
from pasta_jax.serve.app import app_of
from pasta_jax.serve.guard import Guard, is_loopback
from pasta_jax.serve.metrics import Metrics
from pasta_jax.serve.reload import reloader
from pasta_jax.serve.server import bound, key_from, serve
from pasta_jax.serve.service import Service
from pasta_jax.serve.settings import ServeSettings
from pasta_jax.weights.beside import Beside, with_adapters
from pasta_jax.weights.rules import Defaults
from pasta_jax.weights.source import load


def template_for(settings: ServeSettings, positions: Positions | None, defaults: Defaults) -> Request:
    """The defaults of requests for weights that were trained with these positions, and are meant to be sampled so."""
    sequential = positions is None if settings.request.sequential is None else settings.request.sequential
    require_rows(settings.decoding, sequential)
    return template(settings.request, defaults, sequential)


def run(settings: ServeSettings) -> None:
    """Load, compile, serve."""
    key = key_from(settings.key_variable)
    listening = bound(settings.host, settings.port)  # before loading, so that a port in use is known at once
    host, port = listening.getsockname()[:2]
    if not is_loopback(host) and key is None:
        say(f"{host}: anyone who reaches this machine may use the model; set --config.key_variable to require a key")
    mesh = decoding_mesh(settings.mesh)
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
    app = Guard(app_of(service), service.metrics, key, is_loopback(host), settings)
    if settings.origins:  # browsers ask before they send a page's request, without the key
        app = CORSMiddleware(app, settings.origins, allow_methods=["GET", "POST"], allow_headers=["*"])
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    with quiet():  # a server that nobody calls is silent
        serve(
            app,
            listening,
            settings.limits,
            started=lambda: say(f"serving {service.name} at http://{address}, the API under /v1; stop with Ctrl-C"),
            reload=reloader(service, beside, template_with) if beside else None,
        )
    engine.close(drain=False)
    say("stopped")
