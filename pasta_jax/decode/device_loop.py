"""Lanes on a device and the requests that wait for one: everything is decoded here, in rounds of some steps."""

import dataclasses
import time
from collections import deque
from collections.abc import Collection, Iterator

import jax
import numpy as np

from pasta_jax.automata.vocabulary import pieces
from pasta_jax.decode.cost import prices_of, replaced
from pasta_jax.decode.guests import install, no_guests, padded
from pasta_jax.decode.interpreter import Script, run
from pasta_jax.decode.lane_log import SHORT, UNREAD, LaneLog, Snapshot
from pasta_jax.decode.prefill import Prefill, release
from pasta_jax.decode.prefix_cache import PrefixCache
from pasta_jax.decode.request import Event, Request, Result
from pasta_jax.decode.state import LoopSpec, max_threads, new_state
from pasta_jax.device import compilation_cache
from pasta_jax.models.parameters import Params
from pasta_jax.models.transformer import rows_are_alone
from pasta_jax.weights.model import Model

BETWEEN = 64  # tokens of prompts, at least, between two rounds
# Of so many tokens, the share that must have been drafts: below it, looking for them takes more time than they save,
# and the next so many tokens have none. With eight clients, a fifth gains 5%, a tenth nothing (dev/log, 2026-11-28).
JUDGED, KEPT, REST = 128, 0.12, 1024
MANY, STEPS_OF_MANY = 64, 32  # lanes, and steps of their rounds: a lane that has ended waits for half of these
FIRST_STEPS, ROUND_S = 16, 1.0  # of the first UNREAD round, and what each later one takes


class DeviceLoop:
    """The lanes, their requests and what waits.

    It belongs to one thread, which submits, cancels and calls `round`, or its two parts; engine.py is such a thread for
    many clients. A round is as long as the most impatient of its requests allows. While one of them is read as it grows
    (SHORT), only BETWEEN tokens of new prompts are computed between two rounds, so that a long prompt does not
    interrupt the others. An UNREAD round takes about ROUND_S, as Python sees a Ctrl-C at its end only. When a lane is
    filled again doesn't depend on that; where it would, with MANY lanes, where drafts of several lanes are judged after
    each round, and where several processes must run equal rounds, their length is fixed.
    `prices` are DecodeState's where forks are admitted or drafts are fed; None: measured.
    """

    def __init__(
        self,
        model: Model,
        spec: LoopSpec,
        lanes: int,
        slots: int,
        script: Script | None = None,
        shares_prompts: bool = True,
        prices: np.ndarray | None = None,
    ):
        compilation_cache.make_room()
        self._model, self._spec, self._script = model, spec, script
        self._waiting: deque[tuple[int, Request, int]] = deque()  # as submitted
        self._logs: list[LaneLog | None] = [None] * lanes
        self._reuses_answers = rows_are_alone(model.params, model.config)
        self._prefixes = PrefixCache(lanes, 1 if self._reuses_answers else spec.prefill_chunk)
        self._may_copy = shares_prompts and script is None
        self._prefill: Prefill | None = None  # of the prompt that is being written
        self._prefilled = 0  # chunks of it
        self._snapshot: Snapshot | None = None
        prices_count = len(spec.priced_rows) if spec.priced or spec.drafts else 0
        flags = dict(topics=spec.topics is not None, drafts=spec.drafts, extras=spec.extras, prices=prices_count)
        self._state = new_state(model, lanes, slots, **flags)
        if spec.guests is not None:
            words = pieces(model.tokenizer, model.config.vocab)
            guests = no_guests(lanes, max_threads(slots), spec.guests, words)
            self._state = dataclasses.replace(self._state, guests=guests)
        self._automata = [""] * lanes  # the key of each lane's
        self._pace = FIRST_STEPS  # steps of ROUND_S
        # Several lanes may fill the steps, so that drafts don't pay: a program without them, and rounds that take it.
        self._plain, self._rest, self._judged = None, 0, np.zeros(2, int)
        if spec.drafts and lanes > 1 and script is None:
            self._plain = dataclasses.replace(spec, drafts=0, drafter=False, digits=())
            self._run(0, plain=True)
        self._run(0)  # compiles, so that no request's clock runs meanwhile
        if self._state.prices is not None:
            if prices is None:
                self._state, prices = prices_of(model, self._state, spec)
            self._state = replaced(self._state, prices=prices)

    @property
    def is_busy(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._waiting) or any(self._logs)

    @property
    def running(self) -> list[int]:
        """The numbers of the requests that have a lane."""
        return [log.number for log in self._logs if log is not None]

    def submit(self, number: int, request: Request, round_steps: int) -> None:
        """Add a request, whose events have this number; see `slots_for` for whether it fits."""
        self._waiting.append((number, request, round_steps))

    def drop(self) -> None:
        """Give up its memory, after a failure."""
        self._state = self._prefill = None

    def cancel(self, number: int) -> Result | None:
        """Forget a request and free its lane, between two rounds; its result up to here, if it has begun."""
        self._waiting = deque(item for item in self._waiting if item[0] != number)
        lane = next((lane for lane, log in enumerate(self._logs) if log and log.number == number), None)
        if lane is None:
            return None
        log, self._logs[lane] = self._logs[lane], None
        if lane == self._written_lane:
            self._prefill = None
            return None
        self._state = release(self._state, np.int32(lane))
        return log.result(self._snapshot, lane, cut=True)

    def exchange(self, params: Params, adapters: Collection[int]) -> None:
        """Go on with other parameters of equal shapes, which differ in these adapters only. No request has one."""
        self._model = dataclasses.replace(self._model, params=params)
        self._prefixes.forget(adapters)

    def round(self) -> Iterator[Event | Result]:
        """Give free lanes to waiting requests, decode, and yield what came of it."""
        yield from self.begin()
        yield from self.advance()

    def begin(self) -> Iterator[Event]:
        """Give free lanes to waiting requests, and yield the first tokens that somebody waits for."""
        lanes = self._fill()
        logs = [self._logs[lane] for lane in lanes]
        if not any(log.is_awaited for log in logs):
            return
        live, sampled = jax.device_get((self._state.live, self._state.threads.token))
        for lane, log in zip(lanes, logs, strict=True):
            if log.is_awaited and live[lane]:
                yield log.first(int(sampled[lane, 0]))

    def advance(self) -> Iterator[Event | Result]:
        """Decode, and yield what came of it; after `begin`."""
        plain, began = self._rest > 0, time.perf_counter()
        read = {lane: log for lane, log in enumerate(self._logs) if log and lane != self._written_lane}
        steps = min(log.next_steps for log in read.values())
        if steps >= UNREAD and self._plain is None and len(self._logs) < MANY and jax.process_count() == 1:
            steps = self._pace
        self._run(steps, plain)
        scored = any(log is not None and log.request.scored for log in self._logs)
        self._snapshot = snapshot = Snapshot.of(self._state, scored)
        done = max(int(snapshot.steps[lane]) - log.step for lane, log in read.items())
        self._pace = paced(done, time.perf_counter() - began)
        if self._plain is not None:
            self._judge(sum(log.growth(snapshot, lane) for lane, log in read.items()), plain)
        for lane, log in read.items():
            log.record_time(int(snapshot.steps[lane]))
            yield from log.events(snapshot, lane)
            if not snapshot.live[lane]:
                yield log.result(snapshot, lane)
                self._logs[lane] = None
                if self._reuses_answers:
                    self._prefixes.hold(lane, log.request.prompt_ids, log.request.adapter, log.in_order(snapshot, lane))

    def _judge(self, growth: np.ndarray, plain: bool) -> None:
        """Decide whether the next rounds have drafts, after one of so many tokens and, among them, kept drafts."""
        if plain:
            self._rest -= growth[0]
            return
        self._judged += growth
        tokens, kept = self._judged
        if tokens >= JUDGED:
            self._rest, self._judged = REST * int(kept < KEPT * tokens), np.zeros(2, int)

    def _run(self, steps: int, plain: bool = False) -> None:
        spec, drafts = self._spec, self._state.drafts
        if plain:
            spec, drafts = self._plain, replaced(drafts, count=0)
            self._state = dataclasses.replace(self._state, drafts=None)
        others = len(self._waiting) + sum(log is not None for log in self._logs)
        until_lane_ends = np.bool_(others > 1)  # an answer that has ended waits for no other
        if len(self._logs) >= MANY:  # one ends every few steps, and the host would read all of them each time
            steps, until_lane_ends = min(steps, STEPS_OF_MANY), np.False_
        self._state = run(
            self._model.params,
            self._state,
            np.int32(steps),
            until_lane_ends,
            config=self._model.config,
            spec=spec,
            script=self._script,
        )
        if plain:
            self._state = dataclasses.replace(self._state, drafts=drafts)

    @property
    def _written_lane(self) -> int:
        """The lane whose prompt is being written; -1: none."""
        return -1 if self._prefill is None else self._prefill.admission.lane

    def _fill(self) -> list[int]:
        """Compute prompts; the lanes that begin."""
        computed, begun = 0, []
        while self._prefill or (self._waiting and None in self._logs):
            prefill = self._prefill or self._admit()
            before = compilation_cache.seconds()
            self._state = jax.block_until_ready(prefill.step(self._state, self._prefilled))
            computed += prefill.computes(self._prefilled)
            self._prefilled += 1
            compiling = compilation_cache.seconds() - before  # a prompt of a new length; counts for no request
            for log in filter(None, self._logs):
                log.started += compiling
            lane = self._written_lane
            if self._prefilled == prefill.steps:
                self._prefixes.hold(lane, prefill.request.prompt_ids, prefill.request.adapter)
                self._prefill = None
                self._logs[lane].record_time(step=0)
                begun.append(lane)
            others = [log for at, log in enumerate(self._logs) if log and at != lane]
            if computed >= BETWEEN and any(log.round_steps <= SHORT for log in others):
                break
        return begun

    def _admit(self) -> Prefill:
        """Give a free lane to the first waiting request."""
        (number, request, round_steps), replayed = self._waiting.popleft(), self._script is not None
        free = [lane for lane, log in enumerate(self._logs) if log is None]
        admission = self._prefixes.admit(request.prompt_ids, free, self._may_copy, request.adapter)
        self._logs[admission.lane] = LaneLog(
            number, request, self._model, self._spec, replayed, round_steps, admission.copied
        )
        if request.automaton is not None and request.automaton.key != self._automata[admission.lane]:
            table, lane = padded(request.automaton, self._spec.guests), np.int32(admission.lane)
            self._state = dataclasses.replace(self._state, guests=install(self._state.guests, lane, table))
            self._automata[admission.lane] = request.automaton.key
        first = int(self._script.tokens[admission.lane, 0]) if replayed else -1
        self._prefill, self._prefilled = Prefill(self._model, admission, request, self._spec, first), 0
        return self._prefill


def paced(done: int, seconds: float) -> int:
    """Steps of a round of ROUND_S, if they take as long as so many did."""
    return max(1, min(UNREAD, int(ROUND_S * done / seconds)))
