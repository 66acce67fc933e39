"""An engine whose device loop can't be built: nobody waits for it for ever."""

import queue
import threading

import pytest

from pasta_jax.decode.engine import Engine
from tests.decode.test_engine import LANES, WAITING, ask


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
