"""SIGHUP under load: adapters that have changed are read again, no answer mixes two, a damaged one changes nothing."""

import contextlib
import os
import signal
import threading
from collections import defaultdict
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from pasta_jax.files import remote
from pasta_jax.serve import reload as reloading
from pasta_jax.serve import replicas
from pasta_jax.serve import run as running
from pasta_jax.serve.settings import ServeSettings
from tests.helpers.serving import Server, saved_adapters, text_of

MODELS = ("talkative", "talkative:one", "talkative:two")


def body(model: str, **changes: object) -> dict:
    asked = {"model": model, "messages": [{"role": "user", "content": "birds crow 7"}], "max_tokens": 200, "seed": 3}
    return asked | {"temperature": 1.0} | changes


def test_what_waits_for_new_weights_is_decoded_by_their_rules(monkeypatch):
    service, ends, seen = Mock(adapters={"m:one": "old"}), [], []
    service.name, service.settings.adapters = "m", ("one=x",)
    service.engine.exchange = lambda params, numbers, done: ends.append(done)

    @contextlib.contextmanager
    def at_once():
        yield
        seen.append(dict(service.adapters))
        ends[0]()  # the answers that ran with the old weights have ended

    service.engine.at_once = at_once
    new = SimpleNamespace(name="one", number=1)
    monkeypatch.setattr(reloading, "exchanged", lambda model, text, old: (model, new))
    reloading.reload(service, Mock(), [SimpleNamespace(name="one", number=1, old=True)], lambda now: "new")
    assert seen == [{"m:one": "new"}]


def test_what_is_at_gs_is_fetched_again(tmp_path):
    remote.local(tmp_path)
    assert remote.local.cache_info().currsize
    service = SimpleNamespace(settings=SimpleNamespace(adapters=()))
    reloading.reload(service, Mock(), (), Mock())
    assert not remote.local.cache_info().currsize


@pytest.mark.parametrize("count", [1, 2])
def test_a_hangup_before_a_server_serves_is_answered_once_it_does(monkeypatch, count):
    """It would have ended the process."""
    former = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    signal.signal(signal.SIGHUP, lambda *_: None)
    settings = ServeSettings(replicas=count, adapters=("one=x",))
    module, reload = (replicas if count > 1 else running), Mock()
    monkeypatch.setattr(module, "entrance", lambda _: (os.kill(os.getpid(), signal.SIGHUP), (None, Mock()))[1])
    monkeypatch.setattr(module, "announce", Mock())
    monkeypatch.setattr(module, "guarded", Mock())
    monkeypatch.setattr(module, "serve", lambda app, listening, limits, started, reload: started())
    monkeypatch.setattr(running, "app_of", Mock())
    monkeypatch.setattr(running, "opened", lambda _: (Mock(), reload))
    monkeypatch.setattr(replicas, "connected", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(replicas, "outcome", lambda *_: replicas.Started("http://127.0.0.1:1", 1, "model"))
    monkeypatch.setattr(replicas, "Actors", lambda *_: Mock(reload=reload))
    monkeypatch.setattr(replicas.asyncio, "create_task", Mock())
    try:
        module.run(settings)
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    reload.assert_called_once_with()


@pytest.mark.slow  # starts a server process
def test_adapters_are_exchanged_under_load(folder, tmp_path):
    first, second = (saved_adapters(folder, tmp_path / str(seed), seed) for seed in (0, 10))
    weights = first["one"] / "adapter_model.safetensors"
    with Server(folder, adapters=first, log=False) as server:
        old = {model: server.text(**body(model)) for model in MODELS}
        seen, over = defaultdict(list), threading.Event()

        def client(model: str) -> None:
            while not over.is_set():
                seen[model].append(server.text(**body(model)))

        clients = [threading.Thread(target=client, args=(model,)) for model in MODELS]
        for each in clients:
            each.start()
        streamed = []
        stream = threading.Thread(
            target=lambda: streamed.extend(server.request("POST", "/v1/chat/completions", body(MODELS[1], stream=True)))
        )
        stream.start()
        while not server.metric("pasta_lanes_in_use"):
            pass
        said = len(server.lines)
        assert server.hang_up("no adapter") == "no adapter has changed\n"
        weights.write_bytes((second["one"] / weights.name).read_bytes())
        assert server.hang_up("read again") == "read again: one\n"
        new = {model: server.text(**body(model)) for model in MODELS}
        over.set()
        for each in (*clients, stream):
            each.join()

        assert new[MODELS[1]] != old[MODELS[1]]
        assert {model: {*texts} for model, texts in seen.items() if model != MODELS[1]} == {
            model: {old[model]} for model in MODELS if model != MODELS[1]
        }
        ordered = seen[MODELS[1]]
        switch = ordered.count(old[MODELS[1]])
        assert ordered == [old[MODELS[1]]] * switch + [new[MODELS[1]]] * (len(ordered) - switch)
        assert text_of(streamed[2]) in (old[MODELS[1]], new[MODELS[1]])

        weights.write_bytes(weights.read_bytes()[:-9])
        line = server.hang_up("one stays as it was")
        assert str(first["one"]) in line
        assert line.endswith("save or fetch it again\n")
        assert {model: server.text(**body(model)) for model in MODELS} == new
        assert len(server.lines) == said + 3
        assert server.stop() == 0
