"""Decode requests: any number of prompts over a few lanes, as a list of results or as a stream of events."""

import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np

from pasta_jax.decode.grammar import tags_of
from pasta_jax.decode.held import Admission, HeldPrompts
from pasta_jax.decode.interpreter import Script, run
from pasta_jax.decode.lane_log import SHORT, LaneLog, Snapshot
from pasta_jax.decode.prefill import admit, begin_copied, copy_slots, pieces, prefill, release
from pasta_jax.decode.request import DecodeConfig, Event, Request, Result
from pasta_jax.decode.state import DecodeState, RequestFields, Rules, empty_state
from pasta_jax.decode.topics import topic_ids
from pasta_jax.device import compilation_cache, devices
from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import PREDICTED, Positions
from pasta_jax.models.kernels.pool_tpu import TILE
from pasta_jax.models.parameters import Params, is_stacked
from pasta_jax.models.sharding import create_on_mesh_of
from pasta_jax.weights.model import Model

PREFIXES = (128, 192, 256, 384, *(512 << n for n in range(16)))  # runs of slots that attention may read
POOL = 256  # fewest slots of a pool; each next size is twice as large
CPU_PIECE, PIECE = 64, 256  # tokens of a prompt written at once; an accelerator needs more to be busy


def generate(model: Model, requests: Sequence[Request], config: DecodeConfig) -> list[Result]:
    """Answer all requests; results in the order of the requests."""
    results = (item for item in stream(model, requests, config, round_steps=256) if isinstance(item, Result))
    return sorted(results, key=lambda result: result.request)


def stream(
    model: Model,
    requests: Sequence[Request],
    config: DecodeConfig,
    round_steps: int,
    script: Script | None = None,
) -> Iterator[Event | Result]:
    """Yield events as tokens are fed, read from the device every `round_steps` steps, and each result when it is ready.

    Requests that cannot be answered are refused by the call itself, before the first item. Requests beyond the lanes
    wait; a lane is refilled as soon as its request ends, without affecting the other lanes. A prompt whose beginning a
    lane already holds copies it from there: several answers to one prompt cost one prefill. With a script (replay.py),
    every request needs a lane of its own and follows its program.
    """
    if script is not None and config.lanes < len(requests):
        raise PastaError(f"lanes {config.lanes}: a replay needs one lane per program; set lanes to {len(requests)}")
    if not requests:
        return iter(())
    slots = slots_for(model, requests, config)
    with_topics = [request for request in requests if not request.sequential]
    lanes = min(config.lanes, len(requests))
    rules = rules_for(
        model,
        dataclasses.replace(config, lanes=lanes),
        slots,
        sequential=not with_topics,
        topics=any(request.max_topic_words or request.distinct_topics for request in with_topics),
    )
    require_memory(model, lanes, slots)
    return _stream(model, requests, rules, lanes, slots, round_steps, script)


def _stream(
    model: Model,
    requests: Sequence[Request],
    rules: Rules,
    lanes: int,
    slots: int,
    round_steps: int,
    script: Script | None,
) -> Iterator[Event | Result]:
    loop = DeviceLoop(model, rules, lanes, slots, script)
    for number, request in enumerate(requests):
        loop.submit(number, request, round_steps)
    while loop.is_busy:
        yield from loop.round()


@dataclasses.dataclass(frozen=True)
class _Waiting:
    """A request that has no lane yet."""

    number: int
    request: Request
    round_steps: int


class DeviceLoop:
    """Lanes on a device and the requests that wait for one: everything is decoded here, in rounds of some steps.

    It belongs to one thread, which submits, cancels and calls `round`; engine.py is such a thread for many clients. A
    round is as long as the most impatient of its requests allows. While one of them is read as it grows (SHORT), a
    round writes a single piece of a new prompt, so that a long prompt does not interrupt the others.
    """

    def __init__(self, model: Model, rules: Rules, lanes: int, slots: int, script: Script | None = None):
        compilation_cache.make_room()
        self._model, self._rules, self._script = model, rules, script
        self._waiting: deque[_Waiting] = deque()
        self._logs: list[LaneLog | None] = [None] * lanes
        self._held = HeldPrompts(lanes, rules.piece)
        self._writes: deque[Callable[[DecodeState], DecodeState]] = deque()  # the pieces of a prompt that is written
        self._written_lane = -1  # the lane of that prompt
        self._snapshot: Snapshot | None = None
        stacked, topics = is_stacked(model.params), rules.topics is not None
        self._state = create_on_mesh_of(
            model.params, empty_state, model.config, lanes, slots, model.dtype, stacked, False, topics
        )
        self._run(0)  # compiles, so that no request's clock runs meanwhile

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
        self._waiting.append(_Waiting(number, request, round_steps))

    def cancel(self, number: int) -> Result | None:
        """Forget a request and free its lane, between two rounds; its result up to here, if it has begun."""
        self._waiting = deque(item for item in self._waiting if item.number != number)
        lane = next((lane for lane, log in enumerate(self._logs) if log and log.number == number), None)
        if lane is None:
            return None
        log, self._logs[lane] = self._logs[lane], None
        if lane == self._written_lane:
            self._writes.clear()
            self._written_lane = -1
            return None
        self._state = release(self._state, np.int32(lane))
        return log.result(self._snapshot, lane, cut=True)

    def round(self) -> Iterator[Event | Result]:
        """Give free lanes to waiting requests, decode, and yield what came of it."""
        self._fill()
        written = self._written_lane
        self._run(min(log.next_steps for lane, log in enumerate(self._logs) if log and lane != written))
        self._snapshot = snapshot = Snapshot.of(self._state)
        for lane, log in enumerate(self._logs):
            if log is None or lane == self._written_lane:
                continue
            log.record_time(int(snapshot.steps[lane]))
            yield from log.events(snapshot, lane)
            if not snapshot.live[lane]:
                yield log.result(snapshot, lane)
                self._logs[lane] = None

    def _run(self, steps: int) -> None:
        until_lane_ends = np.bool_(len(self._waiting) > 0)
        self._state = run(
            self._model.params,
            self._state,
            np.int32(steps),
            until_lane_ends,
            config=self._model.config,
            rules=self._rules,
            script=self._script,
        )

    def _fill(self) -> None:
        while self._writes or (self._waiting and None in self._logs):
            if not self._writes:
                self._admit()
            before = compilation_cache.seconds()
            self._state = jax.block_until_ready(self._writes.popleft()(self._state))
            compiling = compilation_cache.seconds() - before  # a prompt of a new length; counts for no request
            for log in filter(None, self._logs):
                log.started += compiling
            lane = self._written_lane
            if not self._writes:
                log = self._logs[lane]
                self._held.hold(lane, log.request.prompt_ids)
                self._written_lane = -1
                log.record_time(step=0)
            others = [log for at, log in enumerate(self._logs) if log and at != lane]
            if any(log.round_steps <= SHORT for log in others):
                return

    def _admit(self) -> None:
        """Give a free lane to the first waiting request."""
        item, replayed = self._waiting.popleft(), self._script is not None
        free = [lane for lane, log in enumerate(self._logs) if log is None]
        admission = self._held.admit(item.request.prompt_ids, free, may_copy=not replayed)
        lane = self._written_lane = admission.lane
        self._logs[lane] = LaneLog(
            item.number, item.request, self._model, self._rules, replayed, item.round_steps, admission.copied
        )
        first = int(self._script.tokens[lane, 0]) if replayed else -1
        self._writes.extend(writes(self._model, admission, item.request, self._rules, first))


def require_memory(model: Model, lanes: int, slots: int) -> None:
    """Refuse a pool that the machine cannot hold."""
    state = functools.partial(empty_state, model.config, lanes, slots, model.dtype, is_stacked(model.params))
    devices.require(jax.eval_shape(state), f"{lanes} lanes of {slots} slots", "lower lanes or slots")


def rules_for(model: Model, config: DecodeConfig, slots: int, sequential: bool, topics: bool = False) -> Rules:
    """The constants of a compiled loop. Answers without tags need one row only. `topics`: with rules for topics."""
    if config.rows < 2 and not sequential:
        raise PastaError("rows 1: chunks need a row besides main's; set rows to 2 or more, or decode sequentially")
    rows = 1 if sequential else config.rows
    tokenizer, all_rows = model.tokenizer, config.lanes * rows
    packed = tuple(sorted({*(count for count in config.packed if count < all_rows), all_rows}))
    return Rules(
        tags=tokenizer.tags,
        stop_ids=tuple(tokenizer.stop_ids),
        vocab=max(tokenizer.vocab_size, tokenizer.tags.end),
        rows=rows,
        widths=tuple(sorted({1, rows, *(width for width in config.widths if width < rows)})),
        prefixes=tuple(length for length in PREFIXES if length < slots),
        positions=positions_for(model),
        piece=config.piece or (CPU_PIECE if _platform(model.params) == "cpu" else PIECE),
        packed=packed if config.packed and config.lanes > 1 else (),
        kernel=config.kernel and slots % TILE == 0 and _platform(model.params) == "tpu",
        topics=topic_ids(tokenizer) if topics else None,
    )


def _platform(params: Params) -> str:
    sharding = getattr(jax.tree.leaves(params)[0], "sharding", None)
    return "cpu" if sharding is None else next(iter(sharding.device_set)).platform


def positions_for(model: Model) -> Positions:
    """The positions a model decodes with: those it was trained with."""
    positions = model.positions or PREDICTED
    if positions.policy == "oracle":
        raise PastaError(
            f"{model.name}: trained with position policy oracle, whose lengths are unknown while decoding; "
            "train with another policy to decode"
        )
    return positions


def slots_for(model: Model, requests: Sequence[Request], config: DecodeConfig) -> int:
    """Slots per lane, rounded up so that few programs are compiled; refuses requests that cannot be answered."""
    room = min(model.config.context, config.slots or model.config.context)
    limit, remedy = ("pool", "shorten it or raise slots") if room == config.slots else ("context", "shorten it")
    longest = 0
    for number, request in enumerate(requests):
        name, length = request.name or f"prompt {number}", len(request.prompt_ids)
        if length == 0:
            raise PastaError(f"{name}: empty; write a question")
        if request.max_tokens < 1:
            raise PastaError(f"{name}: max_tokens is {request.max_tokens}; set it to 1 or more")
        if length >= room:
            raise PastaError(f"{name}: {length} tokens, but the {limit} of {room} must also hold the answer; {remedy}")
        longest = max(longest, min(length + request.max_tokens, room))
    if config.slots:
        return config.slots
    slots = POOL
    while slots < longest:
        slots *= 2
    return slots


def start(model: Model, state: DecodeState, lane: int, request: Request, rules: Rules, first: int = -1) -> DecodeState:
    """Put a request into a lane; see `writes`."""
    for write in writes(model, Admission(lane), request, rules, first):
        state = write(state)
    return state


def writes(
    model: Model, admission: Admission, request: Request, rules: Rules, first: int = -1
) -> Iterator[Callable[[DecodeState], DecodeState]]:
    """What puts a request into a lane, one piece of its prompt after another; what is copied comes with the first.

    The last one samples the first token, or in a replay takes `first`. The first one empties the lane.
    """
    prompt = np.asarray(request.prompt_ids, np.int32)
    lane, source, copied = (np.int32(value) for value in dataclasses.astuple(admission))

    def admitted(state: DecodeState) -> DecodeState:
        limit = min(len(prompt) + request.max_tokens, state.pool.slots, model.config.context)
        fields = RequestFields(
            prompt_length=np.int32(len(prompt)),
            limit=np.int32(limit),
            tags_allowed=np.int32(tags_of(request)),
            max_topic=np.int32(request.max_topic_tokens),
            max_topic_words=np.int32(request.max_topic_words),
            distinct_topics=np.bool_(request.distinct_topics),
            end_stray_chunks=np.bool_(request.end_stray_chunks),
            max_chunk=np.int32(request.max_chunk_tokens),
            sampling=request.sampling.arrays(),
        )
        state = admit(state, lane, fields)
        return copy_slots(state, lane, source, copied, piece=rules.piece) if copied else state

    def begun(state: DecodeState) -> DecodeState:
        return begin_copied(model.params, admitted(state), lane, config=model.config, rules=rules)

    def written(state: DecodeState, offset: int, count: int, padded: int) -> DecodeState:
        tokens_P = np.zeros(padded, np.int32)
        tokens_P[:count] = prompt[offset : offset + count]
        return prefill(
            model.params,
            state if offset > copied else admitted(state),
            lane,
            tokens_P,
            np.int32(offset),
            np.int32(count),
            np.int32(first),
            config=model.config,
            rules=rules,
        )

    if copied == len(prompt):
        yield begun
    for offset, count, padded in pieces(len(prompt), rules.piece):
        if offset >= copied:
            yield functools.partial(written, offset=offset, count=count, padded=padded)
