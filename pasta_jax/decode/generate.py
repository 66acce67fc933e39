"""The public door: prompts in, results or a stream of events out; any number of requests over a few lanes."""

import dataclasses
import time
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from pasta_jax.decode.interpreter import Script, run
from pasta_jax.decode.prefill import admit, copy_prompt, pieces, prefill
from pasta_jax.decode.sampling import Sampling
from pasta_jax.decode.state import DecodeState, RequestFields, Rules, empty_state
from pasta_jax.decode.trace import Trace, spell, spell_next
from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import PREDICTED, Positions
from pasta_jax.models.layers import is_stacked
from pasta_jax.models.tokenizer import Detokenizer
from pasta_jax.models.weights import Model
from pasta_jax.sharding import create_on_mesh_of

PREFIXES = (128, 192, 256, 384, *(512 << n for n in range(16)))  # runs of slots that attention may read
POOL = 256  # fewest slots of a pool; each next size is twice as large


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    """What is compiled in: changing any of it compiles another loop."""

    lanes: int  # requests decoded at a time
    rows: int  # threads of a request decoded at a time, main included
    slots: int  # tokens a request can hold, its prompt included; 0: as many as the requests need
    widths: tuple[int, ...] = ()  # a step computes 1 row, all, or the fewest of these that hold its running threads

    def __post_init__(self):
        if any(width < 1 for width in self.widths):
            raise PastaError(f"widths {self.widths}: each must be at least 1")
        for name in ("lanes", "rows"):
            if getattr(self, name) < 1:
                raise PastaError(f"{name} {getattr(self, name)}: it must be at least 1")


@dataclasses.dataclass(frozen=True)
class Request:
    """One prompt, as ids, and how to answer it."""

    prompt_ids: tuple[int, ...]
    max_tokens: int  # tokens of the answer that may be fed, tags included
    sampling: Sampling
    sequential: bool  # no tags: the baseline
    max_topic_tokens: int
    max_chunk_tokens: int


@dataclasses.dataclass(frozen=True)
class Event:
    """One token of a request as it is fed; `text` is what it adds to its thread (trace.spell_next)."""

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


def generate(model: Model, requests: Sequence[Request], settings: DecodeConfig) -> list[Result]:
    """Answer all requests; results in the order of the requests."""
    finished = (item for item in stream(model, requests, settings, round_steps=256) if isinstance(item, Result))
    return sorted(finished, key=lambda result: result.request)


def stream(
    model: Model,
    requests: Sequence[Request],
    settings: DecodeConfig,
    round_steps: int,
    script: Script | None = None,
) -> Iterator[Event | Result]:
    """Events as tokens are fed, looked at every `round_steps` steps, and each request's result when it is finished.

    Requests beyond the lanes wait; a lane is refilled as soon as its request ends, without touching its neighbours.
    A prompt that a lane already holds is copied from there: several answers to one prompt cost one prefill.
    With a script (replay.py) every request needs a lane of its own, and says what the script says.
    """
    if not requests:
        return
    if script is not None and settings.lanes < len(requests):
        raise PastaError(f"lanes {settings.lanes}: a replay needs one a program; give {len(requests)}")
    slots = slots_for(model, requests, settings)
    rules = rules_for(model, settings, slots, sequential=all(request.sequential for request in requests))
    dtype = model.dtype
    stacked = is_stacked(model.params)
    wide = min(settings.lanes, len(requests))
    state = create_on_mesh_of(model.params, empty_state, model.config, wide, slots, dtype, stacked)
    waiting = list(enumerate(requests))[::-1]
    lanes: list[_Lane | None] = [None] * state.lanes
    held: list[tuple[int, ...]] = [()] * state.lanes  # the prompt in each lane's first slots, also of one that is done

    def go_on(state: DecodeState, steps: int) -> DecodeState:
        until_lane_ends = np.bool_(len(waiting) > 0)
        return run(
            model.params, state, np.int32(steps), until_lane_ends, config=model.config, rules=rules, script=script
        )

    state = go_on(state, 0)  # compiles, so that no request's clock runs meanwhile
    while waiting or any(lanes):
        for index in range(state.lanes):
            if lanes[index] is None and waiting:
                number, request = waiting.pop()
                lanes[index] = _Lane(number, request, model, rules)
                first = -1 if script is None else int(script.tokens[index, 0])
                source = held.index(request.prompt_ids) if request.prompt_ids in held and script is None else -1
                state = jax.block_until_ready(start(model, state, index, request, rules, first, source))
                held[index] = request.prompt_ids
                lanes[index].look(step=0)
        state = go_on(state, round_steps)
        seen = _Seen.of(state)
        for index, lane in enumerate(lanes):
            if lane is None:
                continue
            lane.look(int(seen.steps[index]))
            yield from lane.events(seen, index)
            if not seen.live[index]:
                yield lane.result(seen, index)
                lanes[index] = None


def rules_for(model: Model, settings: DecodeConfig, slots: int, sequential: bool) -> Rules:
    """The fixed part of a compiled loop. Answers without tags need one row only."""
    if settings.rows < 2 and not sequential:
        raise PastaError("rows 1: chunks need a row beside main's; give 2 or more, or decode sequentially")
    rows = 1 if sequential else settings.rows
    tokenizer = model.tokenizer
    return Rules(
        tags=tokenizer.tags,
        stop_ids=tuple(tokenizer.stop_ids),
        vocab=max(tokenizer.vocab_size, tokenizer.tags.end),
        rows=rows,
        widths=tuple(sorted({1, rows, *(width for width in settings.widths if width < rows)})),
        prefixes=tuple(length for length in PREFIXES if length < slots),
        positions=positions_for(model),
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


def slots_for(model: Model, requests: Sequence[Request], settings: DecodeConfig) -> int:
    """Slots a lane needs, rounded up so that few programs are compiled; refuses prompts that cannot be answered."""
    longest = 0
    for number, request in enumerate(requests):
        length = len(request.prompt_ids)
        if length == 0:
            raise PastaError(f"prompt {number}: it is empty; write a question")
        if request.max_tokens < 1:
            raise PastaError(f"prompt {number}: max_tokens is {request.max_tokens}; give 1 or more")
        room = min(model.config.context, settings.slots or model.config.context)
        if length >= room:
            raise PastaError(
                f"prompt {number}: it has {length} tokens, the {'pool' if room == settings.slots else 'model'} holds "
                f"{room}, its answer included; shorten it{' or raise slots' if room == settings.slots else ''}"
            )
        longest = max(longest, min(length + request.max_tokens, room))
    if settings.slots:
        return settings.slots
    slots = POOL
    while slots < longest:
        slots *= 2
    return slots


def start(
    model: Model, state: DecodeState, lane: int, request: Request, rules: Rules, first: int = -1, source: int = -1
) -> DecodeState:
    """Put a request into a lane: its prompt is written, or copied from the lane `source`, and its first token sampled
    (or, replaying, given)."""
    prompt = np.asarray(request.prompt_ids, np.int32)
    lane_id = np.int32(lane)
    fields = RequestFields(
        prompt_length=np.int32(len(prompt)),
        limit=np.int32(min(len(prompt) + request.max_tokens, state.pool.slots, model.config.context)),
        tags_allowed=np.bool_(not request.sequential),
        max_topic=np.int32(request.max_topic_tokens),
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
class _Seen:
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
    def of(state: DecodeState) -> "_Seen":
        pool = state.pool
        lanes = (state.live, state.finish, state.step, pool.fill)
        tokens = (pool.token, pool.chunk, pool.step, pool.position)
        return _Seen(*jax.device_get((*lanes, *tokens, state.threads.closed, state.spawned)))


class _Lane:
    """The host's view of the request in a lane: how far it has been told, and each thread's unfinished character."""

    def __init__(self, number: int, request: Request, model: Model, rules: Rules):
        self.number = number
        self.request = request
        self.model = model
        self.rules = rules
        self.told = len(request.prompt_ids)
        self.detokenizers: dict[int, Detokenizer] = {}
        self.began = time.perf_counter()
        self.rounds: dict[int, float] = {}

    def look(self, step: int) -> None:
        """Note when the host saw that this step was done."""
        self.rounds[step] = round(1000 * (time.perf_counter() - self.began), 3)

    def events(self, seen: _Seen, lane: int) -> Iterator[Event]:
        tokenizer = self.model.tokenizer
        fill = int(seen.fill[lane])
        for slot in range(self.told, fill):
            thread, token, step = int(seen.thread[lane, slot]), int(seen.token[lane, slot]), int(seen.step[lane, slot])
            detokenizer = self.detokenizers.setdefault(thread, Detokenizer(tokenizer))
            yield Event(self.number, thread, token, step, spell_next(detokenizer, tokenizer.tags, token))
        self.told = fill

    def result(self, seen: _Seen, lane: int) -> Result:
        tokenizer, request = self.model.tokenizer, self.request
        prompt, fill = len(request.prompt_ids), int(seen.fill[lane])
        token, thread, step, position = (
            field[lane, prompt:fill].copy() for field in (seen.token, seen.thread, seen.step, seen.position)
        )
        trace = Trace(
            tags=tokenizer.tags,
            model=self.model.name,
            prompt=tokenizer.decode(request.prompt_ids),
            prompt_ids=tuple(request.prompt_ids),
            rows=self.rules.rows,
            policy=self.rules.positions.policy,
            replayed=False,
            token=token,
            thread=thread,
            step=step,
            position=position,
            text=spell(tokenizer, token, thread),
            closed=tuple(seen.closed[lane, : seen.spawned[lane] + 1].tolist()),
            finish=int(seen.finish[lane]),
            steps=int(seen.steps[lane]),
            rounds=tuple(self.rounds.items()),
        )
        return Result(self.number, trace.program().strip(), trace.finish_reason, trace)
