"""The engine: events and results as from `generate`, a bounded queue, cancelling, failures, an orderly end."""

import dataclasses
import queue
import re
import threading
from collections.abc import Iterator

import pytest

from pasta_jax.decode import device_loop
from pasta_jax.decode import generate as decoding
from pasta_jax.decode import prefill as prefilling
from pasta_jax.decode.device_loop import DeviceLoop
from pasta_jax.decode.engine import Cancelled, Engine, EngineClosed, QueueFull
from pasta_jax.decode.request import Event, Request, Result
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.errors import PastaError
from pasta_jax.weights.model import Model
from pasta_jax.weights.rules import Rules
from tests.helpers.traces import tiny_model

pytestmark = pytest.mark.usefixtures("few_programs")
LANES, SLOTS, WAITING = 2, 256, 3
CONFIG = DecodeConfig(lanes=LANES, rows=3, slots=SLOTS, prefill_chunk=16)
LONG = 200  # tokens that take longer than a test's next line


def ask(prompt: str, tokens: int = 24, **changes) -> Request:
    rules = Rules(temperature=1.0, seed=len(prompt), max_topic_tokens=4, max_chunk_tokens=10)
    return dataclasses.replace(Request(tuple(prompt.encode()), tokens, sequential=False, rules=rules), **changes)


def loop() -> DeviceLoop:
    spec = decoding.loop_spec(tiny_model(), CONFIG, SLOTS, sequential=False)  # as replaced by few_programs
    return DeviceLoop(tiny_model(), spec, LANES, SLOTS)


def answered(request: Request, model: Model | None = None) -> Result:
    """By `generate`, in as many lanes as the engine has: the same program."""
    return decoding.generate(model or tiny_model(), [request] * LANES, CONFIG)[0]


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine(loop, LANES, WAITING)
    engine.start()
    yield engine
    engine.close(drain=False)


class Gate:
    """Holds the device loop before each round, unless so many rounds were allowed or the gate is open."""

    def __init__(self, monkeypatch):
        self._is_open, self._rounds, round_of = False, threading.Semaphore(0), DeviceLoop.begin
        self.seen: list[list[int]] = []  # the requests with a lane when each round began

        def held(loop):
            assert self._is_open or self._rounds.acquire(timeout=60)
            self.seen.append(loop.running)
            return round_of(loop)

        monkeypatch.setattr(DeviceLoop, "begin", held)

    def allow(self, rounds: int) -> None:
        self._rounds.release(rounds)

    def open(self) -> None:
        self._is_open = True
        self.allow(1)  # the one that waits


@pytest.fixture
def gate(monkeypatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open()


class Client:
    """Submits a request and collects its items."""

    def __init__(self, engine: Engine, request: Request, round_steps: int = 4, accepted: bool = False):
        self._items: queue.Queue = queue.Queue()
        self.events: list[Event] = []
        self.number = engine.submit(request, round_steps, self._items.put, accepted)

    def next(self) -> Result | PastaError | None:
        """Read what one round brought; the last item, if that was it."""
        *events, last = self._items.get(timeout=60)
        self.events += events
        if isinstance(last, Event):
            self.events.append(last)
            return None
        return last

    def end(self) -> Result | PastaError:
        """Read to the end."""
        while (last := self.next()) is None:
            pass
        return last


@pytest.mark.slow
def test_many_clients_get_what_each_would_get_alone(engine):
    requests = [
        ask(prompt, sequential=number == 3) for number, prompt in enumerate(("a", "bc", "def", "ghij", "a" * 30))
    ]
    alone = [decoding.generate(tiny_model(), [request], CONFIG)[0] for request in requests]
    clients = [
        Client(engine, request, round_steps=steps) for request, steps in zip(requests, (1, 5, 64, 4, 64), strict=True)
    ]
    for client, expected in zip(clients, alone, strict=True):
        result = client.end()
        assert result.text == expected.text
        assert [event.token for event in client.events] == expected.trace.token.tolist()
        assert [event.step for event in client.events] == expected.trace.step.tolist()
        assert {event.request for event in client.events} <= {client.number}
    assert engine.load.running == engine.load.waiting == 0
    assert engine.load.tokens == sum(len(result.trace.token) for result in alone)


def test_a_full_queue_refuses_and_recovers(engine, gate):
    clients = [Client(engine, ask("x", LONG), round_steps=1) for _ in range(LANES + WAITING)]
    with pytest.raises(QueueFull, match=f"all {LANES} lanes are busy and {WAITING} requests wait; try again later"):
        Client(engine, ask("x"))
    clients.append(Client(engine, ask("x", LONG), round_steps=1, accepted=True))  # of a request that was
    for client in clients[1:]:
        engine.cancel(client.number)
    gate.open()
    assert isinstance(clients[-1].end(), Cancelled)  # it had no lane yet
    assert isinstance(Client(engine, ask("x")).end(), Result)


def test_a_cancelled_request_frees_its_lane_at_the_next_round(engine, gate):
    cancelled, other = (Client(engine, ask(prompt, LONG), round_steps=1) for prompt in ("x", "yy"))
    gate.allow(3)
    for client in (cancelled, other):
        client.next()
    third = Client(engine, ask("zzz", LONG), round_steps=1)
    engine.cancel(cancelled.number)
    gate.allow(1)  # it waits already, with the cancelled request
    result = cancelled.end()
    seen = len(gate.seen)
    gate.allow(1)
    third.next()
    assert all(cancelled.number not in running for running in gate.seen[seen:])
    gate.open()
    assert 0 < len(result.trace.token) < LONG
    assert result.finish_reason == "length"
    assert [event.token for event in cancelled.events] == result.trace.token.tolist()
    assert result.trace.program().strip() == result.text
    for client in (other, third, cancelled):  # nothing happens to one that has ended
        engine.cancel(client.number)
    assert isinstance(other.end(), Result)


def test_a_cancelled_lane_leaves_no_trace_in_the_next_answer(engine):
    expected = answered(ask("the same"))
    for prompt in ("the same", "another", "the same"):
        client = Client(engine, ask(prompt, LONG), round_steps=1)
        client.next()
        engine.cancel(client.number)
        client.end()
        assert Client(engine, ask("the same")).end().trace.token.tolist() == expected.trace.token.tolist()


def test_a_long_prompt_is_written_between_the_rounds_of_others(monkeypatch):
    """A few tokens at a time, here one chunk, while somebody reads; at once if nobody does."""
    log = []
    monkeypatch.setattr(device_loop, "BETWEEN", 16)
    write, run = prefilling.write, device_loop.run
    monkeypatch.setattr(prefilling, "write", lambda *a, **k: log.append("chunk") or write(*a, **k))
    monkeypatch.setattr(device_loop, "run", lambda *a, **k: log.append("run") or run(*a, **k))
    requests = {0: ask("x", LONG), 1: ask("y" * 60)}
    texts = {}
    for round_steps, expected in (
        (4, "chunk chunk run chunk run chunk run chunk run"),
        (64, "chunk chunk chunk chunk chunk run"),
    ):
        device = loop()
        for number, request in requests.items():
            device.submit(number, request, round_steps)
        log.clear()
        items = []
        while device.is_busy:
            items += device.round()
        assert " ".join(log).startswith(expected)
        texts[round_steps] = {item.request: item.text for item in items if isinstance(item, Result)}
    assert texts[4] == texts[64]


def test_the_first_token_is_reported_before_its_step_if_somebody_waits_for_it():
    for round_steps, ends in ((4, [1, 5, 9]), (20, [20, 40, 60])):
        device = loop()
        device.submit(0, ask("x", LONG, sequential=True), round_steps)
        events = list(device.begin())
        assert [event.step for event in events] == [1] * (round_steps == 4)
        for end in ends:
            events += device.round()
            assert events[-1].step == end
        assert [event.token for event in events] == device.cancel(0).trace.token.tolist()


def test_an_answer_that_has_ended_waits_for_no_other():
    device = loop()
    device.submit(0, ask("x", 3, sequential=True), 64)
    device.submit(1, ask("yy", LONG, sequential=True), 64)
    items = list(device.round())
    assert [item.request for item in items if isinstance(item, Result)] == [0]
    assert max(item.step for item in items if isinstance(item, Event)) < 8


def test_of_many_lanes_several_ended_ones_wait_for_the_round(monkeypatch):
    """Each round reads all lanes: with many, one would end every few steps."""
    rounds, texts = {}, {}
    usual = device_loop.MANY
    for many in (usual, 2):
        monkeypatch.setattr(device_loop, "MANY", many)
        device, rounds[many], results = loop(), 0, {}
        for number in range(8):
            device.submit(number, ask(str(number), 6 + number, sequential=True), 256)
        while device.is_busy:
            rounds[many] += 1
            results |= {item.request: item.text for item in device.round() if isinstance(item, Result)}
        texts[many] = results
    assert texts[2] == texts[usual]
    assert 1 < rounds[2] < rounds[usual]


def test_a_prompt_that_is_being_written_can_be_cancelled(monkeypatch):
    monkeypatch.setattr(device_loop, "BETWEEN", 16)
    device = loop()
    device.submit(0, ask("x", LONG), 1)
    list(device.round())
    device.submit(1, ask("y" * 60), 1)
    list(device.round())
    assert sorted(device.running) == [0, 1]
    assert device.cancel(1) is None
    assert device.running == [0]
    device.submit(2, ask("y" * 60), 1)
    results = {}
    while device.is_busy:
        results |= {item.request: item for item in device.round() if isinstance(item, Result)}
    assert results[2].text == answered(ask("y" * 60)).text


@pytest.mark.parametrize("when", ["in a round", "after all answers of a round", "cancelling"])
def test_a_failure_ends_the_requests_that_have_begun_and_no_others(engine, gate, monkeypatch, when):
    clients = [Client(engine, ask(prompt, LONG), round_steps=1) for prompt in ("x", "yy")]
    gate.allow(2)
    for client in clients:
        client.next()
    waiting = Client(engine, ask("zzz"))
    name = "cancel" if when == "cancelling" else "advance"
    held = getattr(DeviceLoop, name)

    def fails(self, *arguments):
        monkeypatch.setattr(DeviceLoop, name, held)
        if when == "cancelling":
            held(self, *arguments)
        while when == "after all answers of a round" and {client.number for client in clients} & {*self.running}:
            list(held(self))
        raise RuntimeError("a secret of a prompt")

    monkeypatch.setattr(DeviceLoop, name, fails)
    if when == "cancelling":
        engine.cancel(clients[0].number)
    gate.open()
    for client in clients:
        assert str(client.end()) == "decoding failed: RuntimeError; ask again"
        assert len(client.events) < LONG
    assert waiting.end().text == answered(ask("zzz")).text
    assert engine.is_alive


def test_an_engine_that_cannot_start_again_refuses_and_says_why(gate, monkeypatch, capsys):
    first = loop()
    loops = [first]
    engine = Engine(loops.pop, LANES, WAITING)
    engine.start()
    held = DeviceLoop.advance
    monkeypatch.setattr(DeviceLoop, "advance", lambda self: 1 / 0 if engine.load.running else held(self))
    clients = [Client(engine, ask("x", LONG)) for _ in range(3)]
    gate.open()
    assert all(isinstance(client.end(), PastaError) for client in clients)
    assert (engine.is_alive, engine.load.running) == (False, 0)
    with pytest.raises(EngineClosed, match="the log says why"):
        Client(engine, ask("x"))
    engine.close(drain=True)
    assert first._state is None, "two pools may not fit into memory"
    failed, ended = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"error: decoding failed: ZeroDivisionError at \S+test_engine\.py:\d+", failed)
    assert re.fullmatch(r"error: decoding can't go on: IndexError at \S+:\d+; start the server again", ended)


def test_what_wakes_an_idle_engine_is_no_round(engine):
    for done in (threading.Event(), threading.Event()):  # the first is counted before the second is taken
        engine.exchange(tiny_model().params, (), done.set)
        assert done.wait(60)
    assert (engine.load.rounds, engine.load.busy_s) == (0, 0)


@pytest.mark.parametrize("drain", [True, False])
def test_closing_finishes_or_cancels_what_was_accepted(gate, drain):
    engine = Engine(loop, LANES, WAITING)
    engine.start()
    clients = [Client(engine, ask(prompt, 60), round_steps=1) for prompt in ("x", "yy", "zzz")]
    gate.allow(1)
    clients[0].next()
    closing = threading.Thread(target=engine.close, args=(drain,))
    closing.start()
    while not engine._closing:
        pass
    gate.open()
    closing.join()
    assert not engine.is_alive
    ends = [client.end() for client in clients]
    if drain:
        assert [end.text for end in ends] == [answered(ask(prompt, 60)).text for prompt in ("x", "yy", "zzz")]
    else:
        assert len(ends[0].trace.token) < 60
        assert isinstance(ends[2], Cancelled)
    with pytest.raises(EngineClosed):
        Client(engine, ask("x"))


def test_programs_are_compiled_whenever_nobody_waits():
    """A request interrupts this between two programs; once it has ended, this goes on."""
    programs, order = [*"abc"], []
    began, asked, warm = (threading.Event() for _ in range(3))

    def warm_up(_: DeviceLoop) -> bool:
        if not programs:
            warm.set()
            return False
        began.set()
        assert asked.wait(60)
        order.append(programs.pop(0))
        return True

    engine = Engine(loop, LANES, WAITING, warm_up)
    engine.start(wait=False)
    assert began.wait(60)
    engine.submit(ask("x"), 4, lambda items: order.extend(item for item in items if isinstance(item, Result)))
    asked.set()
    assert warm.wait(60)
    assert [one if isinstance(one, str) else "answer" for one in order] == ["a", "answer", "b", "c"]
    engine.close(drain=True)
