"""How an engine begins: with programs compiled; if its device loop can't be built, nobody waits for it for ever."""

import dataclasses
import queue
import threading
import time

import pytest

from pasta_jax.decode import engine as engines
from pasta_jax.decode.engine import Engine, open_engine
from pasta_jax.decode.request import Result
from pasta_jax.decode.seat import begin_guests
from pasta_jax.decode.settings import Room
from pasta_jax.errors import PastaError
from tests.decode.test_engine import CONFIG, LANES, WAITING, Client, ask
from tests.helpers.traces import tiny_model

pytestmark = pytest.mark.usefixtures("few_programs")


def test_what_waits_for_a_loop_that_cannot_be_built_ends_with_the_reason():
    """Also if it was cancelled meanwhile: a chat's Ctrl-C waits for the end."""
    may_fail, items = threading.Event(), [queue.Queue(), queue.Queue()]

    def create():
        may_fail.wait()
        raise MemoryError("no room")

    engine = Engine(create, LANES, WAITING)
    engine.start(wait=False)
    numbers = [engine.submit(ask("a"), 4, one.put) for one in items]
    engine.cancel(numbers[0])
    may_fail.set()
    for one in items:
        [error] = one.get(timeout=20)
        assert str(error) == "decoding can't begin: MemoryError: no room"
        assert one.empty()


def test_an_engine_whose_loop_cannot_be_built_does_not_start():
    engine = Engine(lambda: 1 / 0, LANES, WAITING)
    with pytest.raises(ZeroDivisionError):
        engine.start()


@pytest.mark.slow
def test_an_engine_for_a_model_can_be_warm(monkeypatch):
    monkeypatch.setattr(engines, "PREFILL_CHUNKS", (16,))
    compiled = begin_guests._cache_size()
    engine = open_engine(tiny_model(), CONFIG, WAITING, topics=False, warm_up=True, guests=Room(8, 8))
    assert engine.load.tokens == 0
    for _ in range(6000):
        if begin_guests._cache_size() > compiled:
            break
        time.sleep(0.01)
    assert begin_guests._cache_size() == compiled + 1, "the first structured answer would keep all others waiting"
    assert isinstance(Client(engine, ask("x")).end(), Result)
    engine.close(drain=True)
    with pytest.raises(PastaError, match=r"^config\.decoding\.slots: 0; set the tokens"):
        open_engine(tiny_model(), dataclasses.replace(CONFIG, slots=0), WAITING, topics=False, warm_up=False)
