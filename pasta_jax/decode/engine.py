"""A thread that decodes for many clients: a bounded queue of requests in, events out, cancelling, an orderly end."""

import contextlib
import dataclasses
import itertools
import math
import threading
import time
import traceback
from collections.abc import Callable, Collection, Sequence

from pasta_jax.decode.device_loop import DeviceLoop
from pasta_jax.decode.generate import loop_spec, require_memory
from pasta_jax.decode.prefill import PREFILL_CHUNKS
from pasta_jax.decode.request import Event, Guest, Request, Result
from pasta_jax.decode.settings import DecodeConfig, Room
from pasta_jax.errors import PastaError, one_line, place_of
from pasta_jax.models.parameters import Params
from pasta_jax.progress import say
from pasta_jax.weights.model import Model

RATE_S = 5.0  # seconds of work over which the rate is an average

Item = Event | Result | PastaError  # a request's last item is a Result, or the error that ended it
Deliver = Callable[[Sequence[Item]], None]  # called in the engine's thread, with what one round brought


class QueueFull(PastaError):
    """As many requests wait as may."""


class EngineClosed(PastaError):
    """The engine accepts no more requests."""


class Cancelled(PastaError):
    """The request was cancelled before its first token."""


@dataclasses.dataclass(frozen=True)
class Load:
    """What an engine is doing now, and what it has done."""

    running: int  # requests that have a lane
    waiting: int
    lanes: int
    rounds: int
    tokens: int
    busy_s: float  # spent in rounds
    rate: float  # tokens per second, in the last seconds of work


@dataclasses.dataclass(frozen=True)
class _Exchange:
    params: Params
    adapters: frozenset[int]
    done: Callable[[], None]


@dataclasses.dataclass
class _Job:
    request: Request
    round_steps: int
    deliver: Deliver
    has_items: bool = False  # it was delivered some, so it can't begin again


class Engine:
    """Owns a device loop. All methods may be called from any thread; only `start`, `wait` and `close` take time.

    `create` builds the loop, in the engine's thread: also a new one if a round fails, since a failed program has
    consumed its state. The requests that have begun then end with an error; those that wait are decoded. `warm_up`
    compiles the next program while nobody waits, before the first request or after others; False: there is none.
    """

    def __init__(
        self,
        create: Callable[[], DeviceLoop],
        lanes: int,
        most_waiting: int,
        warm_up: Callable[[DeviceLoop], bool] = lambda _: False,
    ):
        self._create, self._most, self._warm_up = create, lanes + most_waiting, warm_up
        self._lanes = lanes
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._jobs: dict[int, _Job] = {}  # not ended
        self._new: list[int] = []  # not passed to the loop: submitted since the last round, or held by an exchange
        self._cancelled: list[int] = []
        self._exchange: _Exchange | None = None  # not done yet
        self._params: Params | None = None  # the last one's; None: the loop has those it was created with
        self._closing = False
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._load = Load(0, 0, lanes, 0, 0, 0.0, 0.0)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self, wait: bool = True) -> None:
        """Start the thread, which first compiles its programs, and wait for them unless the caller does that later."""
        self._thread.start()
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait until the programs are compiled; raises what kept them from it."""
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    def at_once(self) -> contextlib.AbstractContextManager:
        """What is submitted within it has the same parameters, whatever is exchanged."""
        return self._changed

    def submit(self, request: Request, round_steps: int, deliver: Deliver, accepted: bool = False) -> int:
        """Queue a request; its number. `deliver` gets its items, and must neither block nor raise.

        `accepted`: it goes on with a request that was, so that a full queue doesn't refuse it.
        """
        with self._changed:
            if self._failure is not None:
                raise EngineClosed("decoding has ended, and the log says why; start the server again")
            if self._closing:
                raise EngineClosed("no more requests are accepted: the server is stopping; try again when it is back")
            if len(self._jobs) >= self._most and not accepted:
                raise QueueFull(
                    f"all {self._lanes} lanes are busy and {self._most - self._lanes} requests wait; try again later"
                )
            number = next(self._numbers)
            self._jobs[number] = _Job(request, round_steps, deliver)
            self._new.append(number)
            self._changed.notify()
            return number

    def cancel(self, number: int) -> None:
        """End a request before the next round; its last item is its result up to there, or Cancelled if it has none.

        Nothing happens if the request has ended.
        """
        with self._changed:
            if number in self._jobs:
                self._cancelled.append(number)
                self._changed.notify()

    def close(self, drain: bool) -> None:
        """Accept no more requests, finish or with drain=False cancel those that have not ended, and end the thread."""
        with self._changed:
            self._closing = True
            if not drain:
                self._cancelled += self._jobs
            self._changed.notify()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def exchange(self, params: Params, adapters: Collection[int], done: Callable[[], None]) -> None:
        """Go on with parameters that differ in these adapters only, between two rounds: no answer has both.

        Requests for one of them that the loop already has end first; later ones wait for that, and begin after `done`,
        which is called in the engine's thread and must not raise. One exchange at a time.
        """
        with self._changed:
            self._exchange = _Exchange(params, frozenset(adapters), done)
            self._changed.notify()

    @property
    def is_alive(self) -> bool:
        """Whether requests are decoded."""
        return self._thread.is_alive() and self._failure is None

    @property
    def load(self) -> Load:
        """As of the last round, but for the number of waiting requests, which is exact."""
        with self._changed:
            waiting = len(self._jobs) - self._load.running
            return dataclasses.replace(self._load, waiting=max(waiting, 0))

    def _run(self) -> None:
        try:
            loop = self._create()
            while self._is_unwanted and self._warm_up(loop):
                pass
        except BaseException as error:
            with self._changed:
                self._failure, jobs = error, [*self._jobs]
            for number in jobs:  # they came while it was compiled
                self._end(number, PastaError(one_line(f"decoding can't begin: {type(error).__name__}: {error}")))
            return
        finally:
            self._started.set()
        while loop is not None:
            try:
                if self._is_unwanted and self._warm_up(loop):
                    continue
                if not self._take(loop):
                    return
                began, is_round = time.perf_counter(), loop.is_busy  # it also wakes for an exchange, say
                first = list(loop.begin()) if is_round else []
                self._deliver(first)
                items = list(loop.advance()) if loop.is_busy else []
            except Exception as error:
                loop = self._replace(loop, error)
                continue
            self._count(loop, (*first, *items), time.perf_counter() - began if is_round else 0.0)
            self._deliver(items)

    @property
    def _is_unwanted(self) -> bool:
        """Whether nobody waits for it: neither a request, nor an exchange, nor `close`."""
        return not (self._jobs or self._exchange or self._closing)

    def _take(self, loop: DeviceLoop) -> bool:
        """Wait for work and pass what has changed to the loop; False at the end."""
        with self._changed:
            while not (self._new or self._cancelled or self._exchange or loop.is_busy or self._closing):
                self._changed.wait()
            cancelled = tuple(self._cancelled)
            held = self._exchange.adapters if self._exchange else ()
            jobs = {number: self._jobs[number] for number in self._new}
            jobs = {number: job for number, job in jobs.items() if job.request.adapter not in held}
            self._new = [number for number in self._new if number not in jobs]
        for number, job in jobs.items():
            loop.submit(number, job.request, job.round_steps)
        for number in cancelled:
            if number in self._jobs:
                self._end(number, loop.cancel(number) or Cancelled("cancelled before its first token"))
            with self._changed:
                self._cancelled.remove(number)  # not before: if cancelling fails, it is left to the next loop
        self._exchange_if_free(loop)
        self._count(loop, (), 0.0)
        return loop.is_busy or bool(self._new) or not self._closing

    def _exchange_if_free(self, loop: DeviceLoop) -> None:
        """Exchange the parameters if no request that the loop has uses what changes."""
        with self._changed:
            used = {job.request.adapter for number, job in self._jobs.items() if number not in self._new}
            if self._exchange is None or used & self._exchange.adapters:
                return
            exchange, self._exchange = self._exchange, None
        loop.exchange(exchange.params, exchange.adapters)
        self._params = exchange.params
        exchange.done()

    def _deliver(self, items: Sequence[Event | Result]) -> None:
        """Hand each request what a round brought it."""
        by_number: dict[int, list[Item]] = {}
        for item in items:
            by_number.setdefault(item.request, []).append(item)
        for number, mine in by_number.items():
            job = self._jobs[number]
            job.has_items = True
            if isinstance(mine[-1], Result):
                with self._changed:
                    del self._jobs[number]
            job.deliver(mine)

    def _end(self, number: int, item: Result | PastaError) -> None:
        with self._changed:
            deliver = self._jobs.pop(number).deliver
            if number in self._new:
                self._new.remove(number)
        deliver([item])

    def _count(self, loop: DeviceLoop, items: Sequence[Event | Result], seconds: float) -> None:
        with self._changed:
            load, tokens = self._load, sum(isinstance(item, Event) for item in items)
            weight = 1 - math.exp(-seconds / RATE_S)
            rate = load.rate + weight * (tokens / seconds - load.rate) if seconds else load.rate
            self._load = dataclasses.replace(
                load,
                running=len(loop.running),
                rounds=load.rounds + bool(seconds),
                tokens=load.tokens + tokens,
                busy_s=load.busy_s + seconds,
                rate=rate,
            )

    def _replace(self, failed: DeviceLoop, error: Exception) -> DeviceLoop | None:
        """A new loop after a failure, with the requests that had not begun; None if it cannot be built."""
        reason = one_line(f"decoding failed: {type(error).__name__}; ask again")
        say(f"error: decoding failed: {type(error).__name__} at {place_of(error)}")  # a message may quote a prompt
        with self._changed:
            begun = {number for number, job in self._jobs.items() if job.has_items}
            held = begun | ({*failed.running} & {*self._jobs})  # a program that failed to compile runs for no request
        failed.drop()  # two pools may not fit
        traceback.clear_frames(error.__traceback__)  # which hold the old one too
        try:
            loop = self._create()
        except BaseException as again:
            say(f"error: decoding can't go on: {type(again).__name__} at {place_of(again)}; start the server again")
            with self._changed:
                self._failure, held = again, {*self._jobs}
                self._load = dataclasses.replace(self._load, running=0)
            loop = None
        for number in held:
            self._end(number, PastaError(reason))
        if loop is not None:
            if self._params is not None:
                loop.exchange(self._params, ())
            with self._changed:
                jobs = {number: job for number, job in self._jobs.items() if number not in self._new}
            for number, job in jobs.items():
                loop.submit(number, job.request, job.round_steps)
        return loop


def open_engine(
    model: Model,
    config: DecodeConfig,
    most_waiting: int,
    topics: bool,
    warm_up: bool,
    shares_prompts: bool = True,
    wait: bool = True,
    guests: Room | None = None,
) -> Engine:
    """A running engine for a model; `config.slots` is the room of each request. `topics`: with rules for topics.

    With `warm_up`, prompts of all lengths find their programs compiled; what a request interrupts goes on after it.
    If it is not to `wait`, the caller does that. Unless it `shares_prompts`, every prompt is computed, whatever the
    lanes hold.
    """
    if not config.slots:
        raise PastaError("config.decoding.slots: 0; set the tokens that a request may take, its prompt included")
    # Fields of an answer may take more slots than the context, since each has positions of its own.
    slots = config.slots if guests is not None else min(config.slots, model.config.context)
    spec = loop_spec(model, config, slots, sequential=config.rows == 1, topics=topics, guests=guests, extras=True)
    require_memory(model, config.lanes, slots)

    def create() -> DeviceLoop:
        return DeviceLoop(model, spec, config.lanes, slots, shares_prompts=shares_prompts)

    def next_program(loop: DeviceLoop) -> bool:
        if not lengths:
            return False
        length, seats = lengths.pop()
        ids = (length % spec.vocab,) * length  # begins as no other does
        fields = (Guest((*ids, 0)),) if seats else ()
        loop.submit(-1, Request(ids[:1] if seats else ids, 1, sequential=True, guests=fields), 1)
        while loop.is_busy:
            list(loop.round())
        return True

    most = min(slots - 1, spec.prefill_chunk)
    every = [length for length in PREFILL_CHUNKS if length <= most] if warm_up else []
    # From the longest, which most prompts need; the second time, it is copied. At last, a structured field begins.
    lengths = [(length, False) for length in sorted([*every, *every[-1:]])]
    if every and guests is not None and every[0] + 4 < slots:
        lengths.insert(0, (every[0], True))
    engine = Engine(create, config.lanes, most_waiting, next_program)
    engine.start(wait)
    return engine
