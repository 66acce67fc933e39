"""An engine goes on with other parameters between two rounds: no answer has both, and no program is compiled."""

import threading

import pytest

from pasta_jax.decode.device_loop import DeviceLoop
from pasta_jax.decode.engine import Cancelled, open_engine
from pasta_jax.decode.interpreter import run
from pasta_jax.errors import PastaError
from pasta_jax.weights.beside import exchanged, with_adapters
from tests.decode import test_engine
from tests.decode.test_engine import CONFIG, WAITING, Client, answered, ask
from tests.weights.test_beside import base, named, saved

pytestmark = pytest.mark.usefixtures("few_programs")
gate = test_engine.gate


class Changing:
    """A model with two adapters, of which the first changes."""

    def __init__(self, folder):
        folders = {name: folder / name for name in ("one", "two")}
        for seed, path in enumerate(folders.values()):
            saved(path, seed, 3, ("qkv", "down"))
        self.text, other = named(folders, *folders)
        self.model, (one, _) = with_adapters(base(), [self.text, other])
        saved(folders["one"], 7, 3, ("qkv", "down"))
        self.changed, _ = exchanged(self.model, self.text, one)
        self.engine = open_engine(self.model, CONFIG, WAITING, topics=False, warm_up=False)
        self.done = threading.Event()

    def exchange(self) -> None:
        self.engine.exchange(self.changed.params, {1}, self.done.set)


def test_an_exchange_waits_for_answers_with_its_adapter_and_later_ones_wait_for_it(tmp_path, gate):
    there = Changing(tmp_path)
    mine, others = ask("x" * 40, 60, adapter=1), ask("y" * 20, 60, adapter=2)
    old, other = (Client(there.engine, request, round_steps=1) for request in (mine, others))
    gate.allow(3)
    old.next(), other.next()
    programs = run._cache_size()
    there.exchange()
    left, later, base_only = (Client(there.engine, request) for request in (mine, mine, ask("z" * 20)))
    there.engine.cancel(left.number)
    gate.allow(2)
    assert isinstance(left.end(), Cancelled)
    assert not there.done.is_set()
    closing = threading.Thread(target=there.engine.close, args=(True,))
    closing.start()
    gate.open()
    closing.join()
    assert there.done.is_set()
    assert run._cache_size() == programs
    for client, request, model in (
        (old, mine, there.model),
        (later, mine, there.changed),
        (other, others, there.model),
        (base_only, ask("z" * 20), there.model),
    ):
        result = client.end()
        assert (result.text, result.copied) == (answered(request, model).text, 0)
    assert answered(mine, there.model).text != answered(mine, there.changed).text
    assert not any({old.number, later.number} <= {*running} for running in gate.seen)


def test_what_was_exchanged_outlives_a_failure(tmp_path, monkeypatch):
    there = Changing(tmp_path)
    there.exchange()
    assert there.done.wait(60)
    mine, held = ask("x" * 40, 60, adapter=1), DeviceLoop.advance
    monkeypatch.setattr(DeviceLoop, "advance", lambda self: list(held(self)) and 1 / 0)
    assert isinstance(Client(there.engine, mine).end(), PastaError)
    monkeypatch.setattr(DeviceLoop, "advance", held)
    assert Client(there.engine, mine).end().text == answered(mine, there.changed).text
    there.engine.close(drain=False)
