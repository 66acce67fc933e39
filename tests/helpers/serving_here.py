"""A server in this process, whose parts a test may replace, and OpenAI's client of it."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import openai
import pytest
import uvicorn

from pasta_jax.decode.engine import open_engine
from pasta_jax.decode.request import template
from pasta_jax.decode.settings import DecodeConfig, RequestSettings
from pasta_jax.serve.app import app_of
from pasta_jax.serve.metrics import Metrics
from pasta_jax.serve.service import Service
from pasta_jax.serve.settings import Limits, ServeSettings
from pasta_jax.weights.model import Model
from tests.helpers.few_programs import decode_with_few_programs


@contextlib.contextmanager
def client_of(model: Model) -> Iterator[openai.OpenAI]:
    """A client of a model that is served sequentially, with four rows for the fields of an answer."""
    with pytest.MonkeyPatch.context() as patch:
        decode_with_few_programs(patch)
        decoding = DecodeConfig(lanes=2, rows=4, slots=512)
        settings = ServeSettings(decoding=decoding, limits=Limits(automaton_states=1024, automaton_masks=256))
        engine = open_engine(model, decoding, 8, topics=True, warm_up=False, guests=settings.limits.room)
        own = template(RequestSettings(max_tokens=40), model.defaults, sequential=True)
        service = Service(model.name, model, engine, Metrics(engine), settings, own)
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app_of(service), log_config=None, lifespan="off", ws="none"))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as client:
            yield client
        server.should_exit = True
        thread.join()
        engine.close(drain=False)
