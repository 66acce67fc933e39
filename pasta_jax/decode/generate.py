"""Decode requests: any number of prompts over a few lanes, as a list of results or as a stream of events."""

import dataclasses
import functools
import time
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from pasta_jax import compiled, memory
from pasta_jax.decode.interpreter import Script, run
from pasta_jax.decode.prefill import admit, copy_prompt, pieces, prefill
from pasta_jax.decode.sampling import Sampling
from pasta_jax.decode.state import DecodeState, RequestFields, Rules, empty_state
from pasta_jax.decode.topics import topic_ids
from pasta_jax.decode.trace import Trace, spell, spell_next
from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import PREDICTED, Positions
from pasta_jax.models.layers import is_stacked
from pasta_jax.models.tokenizer import Detokenizer
from pasta_jax.models.weights import Model
from pasta_jax.ranges import Lanes, SlotsOrNone, Threads, Widths
from pasta_jax.sharding import create_on_mesh_of

PREFIXES = (128, 192, 256, 384, *(512 << n for n in range(16)))  # runs of slots that attention may read
POOL = 256  # fewest slots of a pool; each next size is twice as large


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    """How requests are decoded together. Another value compiles another program."""

    lanes: Lanes  # requests decoded at a time
    rows: Threads  # threads of a request decoded at a time, main included
    slots: SlotsOrNone  # tokens a request can hold, its prompt included; 0: as many as the requests need
    widths: Widths = ()  # a step computes 1 row, all, or the fewest of these that hold its running threads

    def __post_init__(self):
        if any(width < 1 for width in self.widths):
            raise PastaError(f"widths {self.widths}: each must be at least 1")
        for name in ("lanes", "rows"):
            if getattr(self, name) < 1:
                raise PastaError(f"{name} {getattr(self, name)}: must be at least 1")
        if self.slots < 0:
            raise PastaError(f"slots {self.slots}: must be at least 1, or 0 for as many as the requests need")


@dataclasses.dataclass(frozen=True)
class Request:
    """One prompt, as ids, and how to answer it."""

    prompt_ids: tuple[int, ...]
    max_tokens: int  # tokens of the answer that may be fed, tags included
    sampling: Sampling
    sequential: bool  # no tags: the baseline
    max_topic_tokens: int
    max_chunk_tokens: int
    text: str | None = None  # the prompt as traces show it; None: its ids decoded
    name: str = ""  # of the prompt in errors; empty: "prompt N", N counted from 0
    max_topic_words: int = 0  # 0: no limit
    distinct_topics: bool = False  # True: no topic spells an earlier one (topics.py)


@dataclasses.dataclass(frozen=True)
class Event:
    """One token of a request, reported when it is fed; `text` is what it adds to its thread (trace.spell_next)."""

    request: int
    thread: int
    token: int
    step: int
    text: str


@dataclasses.dataclass(frozen=True)
class Result:
    """A finished request."""

    request: int
    text: str
    finish_reason: str
    trace: Trace


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
    wait; a lane is refilled as soon as its request ends, without affecting the other lanes. A prompt that a lane
    already holds is copied from there: several answers to one prompt cost one prefill. With a script (replay.py), every
    request needs a lane of its own and follows its program.
    """
    if script is not None and config.lanes < len(requests):
        raise PastaError(f"lanes {config.lanes}: a replay needs one lane per program; set lanes to {len(requests)}")
    if not requests:
        return iter(())
    slots = slots_for(model, requests, config)
    with_topics = [request for request in requests if not request.sequential]
    rules = rules_for(
        model,
        config,
        slots,
        sequential=not with_topics,
        topics=any(request.max_topic_words or request.distinct_topics for request in with_topics),
    )
    lanes = min(config.lanes, len(requests))
    state = functools.partial(empty_state, model.config, lanes, slots, model.dtype, is_stacked(model.params))
    memory.require(jax.eval_shape(state), f"{lanes} lanes of {slots} slots", "lower lanes or slots")
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
    stacked = is_stacked(model.params)
    state = create_on_mesh_of(
        model.params, empty_state, model.config, lanes, slots, model.dtype, stacked, False, rules.topics is not None
    )
    waiting = list(enumerate(requests))[::-1]
    logs: list[_LaneLog | None] = [None] * lanes
    prompts: list[tuple[int, ...]] = [()] * lanes  # the prompt in each lane's first slots, also after its request ended

    def run_steps(state: DecodeState, steps: int) -> DecodeState:
        until_lane_ends = np.bool_(len(waiting) > 0)
        return run(
            model.params, state, np.int32(steps), until_lane_ends, config=model.config, rules=rules, script=script
        )

    state = run_steps(state, 0)  # compiles, so that no request's clock runs meanwhile
    while waiting or any(logs):
        for lane in range(lanes):
            if logs[lane] is None and waiting:
                number, request = waiting.pop()
                logs[lane] = _LaneLog(number, request, model, rules, replayed=script is not None)
                first = -1 if script is None else int(script.tokens[lane, 0])
                can_copy = request.prompt_ids in prompts and script is None
                source = prompts.index(request.prompt_ids) if can_copy else -1
                before = compiled.seconds()
                state = jax.block_until_ready(start(model, state, lane, request, rules, first, source))
                compiling = compiled.seconds() - before  # a prompt of a new length; counts for no request
                for log in filter(None, logs):
                    log.started += compiling
                prompts[lane] = request.prompt_ids
                logs[lane].record_time(step=0)
        state = run_steps(state, round_steps)
        snapshot = _Snapshot.of(state)
        for lane, log in enumerate(logs):
            if log is None:
                continue
            log.record_time(int(snapshot.steps[lane]))
            yield from log.events(snapshot, lane)
            if not snapshot.live[lane]:
                yield log.result(snapshot, lane)
                logs[lane] = None


def rules_for(model: Model, config: DecodeConfig, slots: int, sequential: bool, topics: bool = False) -> Rules:
    """The constants of a compiled loop. Answers without tags need one row only. `topics`: with rules for topics."""
    if config.rows < 2 and not sequential:
        raise PastaError("rows 1: chunks need a row besides main's; set rows to 2 or more, or decode sequentially")
    rows = 1 if sequential else config.rows
    tokenizer = model.tokenizer
    return Rules(
        tags=tokenizer.tags,
        stop_ids=tuple(tokenizer.stop_ids),
        vocab=max(tokenizer.vocab_size, tokenizer.tags.end),
        rows=rows,
        widths=tuple(sorted({1, rows, *(width for width in config.widths if width < rows)})),
        prefixes=tuple(length for length in PREFIXES if length < slots),
        positions=positions_for(model),
        topics=topic_ids(tokenizer) if topics else None,
    )


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


def start(
    model: Model, state: DecodeState, lane: int, request: Request, rules: Rules, first: int = -1, source: int = -1
) -> DecodeState:
    """Put a request into a lane: write its prompt, or copy it from lane `source`, and sample its first token.

    In a replay, `first` is the first token instead.
    """
    prompt = np.asarray(request.prompt_ids, np.int32)
    lane_id = np.int32(lane)
    fields = RequestFields(
        prompt_length=np.int32(len(prompt)),
        limit=np.int32(min(len(prompt) + request.max_tokens, state.pool.slots, model.config.context)),
        tags_allowed=np.bool_(not request.sequential),
        max_topic=np.int32(request.max_topic_tokens),
        max_topic_words=np.int32(request.max_topic_words),
        distinct_topics=np.bool_(request.distinct_topics),
        max_chunk=np.int32(request.max_chunk_tokens),
        sampling=request.sampling.arrays(),
    )
    state = admit(state, lane_id, fields)
    if source >= 0:
        span = min(sum(pieces(len(prompt))[-1][::2]), state.pool.slots)
        return copy_prompt(model.params, state, lane_id, np.int32(source), span=span, config=model.config, rules=rules)
    for offset, count, padded in pieces(len(prompt)):
        tokens_P = np.zeros(padded, np.int32)
        tokens_P[:count] = prompt[offset : offset + count]
        state = prefill(
            model.params,
            state,
            lane_id,
            tokens_P,
            np.int32(offset),
            np.int32(count),
            np.int32(first),
            config=model.config,
            rules=rules,
        )
    return state


@dataclasses.dataclass(frozen=True)
class _Snapshot:
    """What the host reads back after a round."""

    live: np.ndarray
    finish: np.ndarray
    steps: np.ndarray
    fill: np.ndarray
    token: np.ndarray
    thread: np.ndarray
    step: np.ndarray
    position: np.ndarray
    closed: np.ndarray
    spawned: np.ndarray

    @staticmethod
    def of(state: DecodeState) -> "_Snapshot":
        pool = state.pool
        lanes = (state.live, state.finish, state.step, pool.fill)
        tokens = (pool.token, pool.chunk, pool.step, pool.position)
        return _Snapshot(*jax.device_get((*lanes, *tokens, state.threads.closed, state.spawned)))


class _LaneLog:
    """The host's view of the request in a lane: slots reported, times, and each thread's incomplete character."""

    def __init__(self, number: int, request: Request, model: Model, rules: Rules, replayed: bool):
        self.number = number
        self.request = request
        self.model = model
        self.rules = rules
        self.replayed = replayed
        self.reported = len(request.prompt_ids)
        self.detokenizers: dict[int, Detokenizer] = {}
        self.started = time.perf_counter()
        self.rounds: dict[int, float] = {}

    def record_time(self, step: int) -> None:
        """Record when the host learned that this step was done."""
        self.rounds[step] = round(1000 * (time.perf_counter() - self.started), 3)

    def events(self, snapshot: _Snapshot, lane: int) -> Iterator[Event]:
        """The tokens fed since the last call."""
        tokenizer = self.model.tokenizer
        fill = int(snapshot.fill[lane])
        columns = (snapshot.thread, snapshot.token, snapshot.step)
        for slot in range(self.reported, fill):
            thread, token, step = (int(column[lane, slot]) for column in columns)
            detokenizer = self.detokenizers.setdefault(thread, Detokenizer(tokenizer))
            yield Event(self.number, thread, token, step, spell_next(detokenizer, tokenizer.tags, token))
        self.reported = fill

    def result(self, snapshot: _Snapshot, lane: int) -> Result:
        """The result of the request, which has ended."""
        tokenizer, request = self.model.tokenizer, self.request
        prompt, fill = len(request.prompt_ids), int(snapshot.fill[lane])
        token, thread, step, position = (
            field[lane, prompt:fill].copy()
            for field in (snapshot.token, snapshot.thread, snapshot.step, snapshot.position)
        )
        trace = Trace(
            tags=tokenizer.tags,
            model=self.model.name,
            prompt=tokenizer.decode(request.prompt_ids) if request.text is None else request.text,
            prompt_ids=tuple(request.prompt_ids),
            rows=self.rules.rows,
            policy=self.rules.positions.policy,
            replayed=self.replayed,
            token=token,
            thread=thread,
            step=step,
            position=position,
            text=spell(tokenizer, token, thread),
            closed=tuple(snapshot.closed[lane, : snapshot.spawned[lane] + 1].tolist()),
            finish=int(snapshot.finish[lane]),
            steps=int(snapshot.steps[lane]),
            rounds=tuple(self.rounds.items()),
        )
        return Result(self.number, trace.program().strip(), trace.finish_reason, trace)
