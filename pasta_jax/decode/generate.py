"""Decode requests: any number of prompts over a few lanes, as a list of results or as a stream of events."""

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence

import jax

from pasta_jax.decode.device_loop import DeviceLoop
from pasta_jax.decode.guests import room_for
from pasta_jax.decode.interpreter import Script
from pasta_jax.decode.lane_log import UNREAD
from pasta_jax.decode.request import Event, Request, Result
from pasta_jax.decode.settings import DecodeConfig, Room
from pasta_jax.decode.state import LoopSpec, empty_state, slots_of_threads
from pasta_jax.decode.stop_texts import Reading
from pasta_jax.decode.topics import limits_topics, topic_ids
from pasta_jax.device import devices
from pasta_jax.errors import PastaError
from pasta_jax.lang.structure import PREDICTED, Positions
from pasta_jax.models.kernels.pool_tpu import TILE
from pasta_jax.models.parameters import Params, is_stacked
from pasta_jax.models.sharding import mesh_of, shardings, sharing_rows
from pasta_jax.tokenizers.tokenizer import Tokenizer
from pasta_jax.weights.model import Model

PREFIXES = (64, 128, 192, 256, 384, *(512 << n for n in range(16)))  # runs of slots that attention may read
STOP_STEPS = 16  # most steps that an answer with stop texts is decoded beyond one
DRAFTS = 7  # of a lane in a step, at most
MOST_SLOTS = 1 << 16  # of a request with guests, whose slots the model's context doesn't limit
POOL = 256  # fewest slots of a pool; each next size is twice as large
PREFILL_CHUNK = {"cpu": 64}  # tokens of a prompt computed at once, by platform
ACCELERATOR_CHUNK = 256  # it needs more to be busy


def generate(
    model: Model, requests: Sequence[Request], config: DecodeConfig, stops: Sequence[str] = ()
) -> list[Result]:
    """Answer all requests; results in the order of the requests."""
    steps = STOP_STEPS if stops else UNREAD
    results = (item for item in stream(model, requests, config, steps, stops=stops) if isinstance(item, Result))
    return sorted(results, key=lambda result: result.request)


def stream(
    model: Model,
    requests: Sequence[Request],
    config: DecodeConfig,
    round_steps: int,
    script: Script | None = None,
    stops: Sequence[str] = (),
) -> Iterator[Event | Result]:
    """Yield events as tokens are fed, read from the device every `round_steps` steps, and each result when it is ready.

    With UNREAD steps or more, it is read about every second. Requests that cannot be answered are refused by the call
    itself, before the first item. Requests beyond the lanes wait; a lane is refilled as soon as its request ends,
    without affecting the other lanes. A prompt whose beginning a lane already holds copies it from there: several
    answers to one prompt cost one prefill. With a script (replay.py), every request needs a lane of its own and follows
    its program. An answer ends before the first of `stops`, texts, in reading order; its trace may hold some tokens
    more, as the device decodes whole rounds.
    """
    if script is not None and config.lanes < len(requests):
        raise PastaError(f"lanes {config.lanes}: a replay needs one lane per program; set lanes to {len(requests)}")
    if script is not None:
        config = dataclasses.replace(config, forks="eager")
    if not requests:
        return iter(())
    slots = slots_for(model, requests, config)
    with_guests = [request for request in requests if request.guests]
    with_topics = [request for request in requests if not request.sequential]
    lanes = len(requests) if script is not None else lanes_for(model, len(requests), config)
    spec = loop_spec(
        model,
        dataclasses.replace(config, lanes=lanes),
        slots,
        sequential=not with_topics and (config.rows == 1 or not with_guests),
        topics=any(limits_topics(request.rules) for request in with_topics),
        guests=room_for([request.automaton for request in with_guests if request.automaton]) if with_guests else None,
        extras=any(request.bias or request.scored for request in requests),
    )
    require_memory(model, lanes, slots, "lower lanes or slots" if config.slots else "lower lanes or max_tokens")

    def items() -> Iterator[Event | Result]:
        loop = DeviceLoop(model, spec, lanes, slots, script)
        for number, request in enumerate(requests):
            loop.submit(number, request, round_steps)
        while loop.is_busy and not stops:
            yield from loop.round()
        readings = [Reading(spec.tags, stops) for _ in requests]
        while loop.is_busy:
            yield from _up_to_stop(loop, readings)

    return items()


def lanes_for(model: Model, requests: int, config: DecodeConfig) -> int:
    """The lanes for so many requests, on a mesh some more or fewer, which its devices share: else each has them all."""
    lanes = min(config.lanes, requests)
    sharing = sharing_rows(mesh_of(model.params))
    shared = lanes + -lanes % sharing
    if shared > config.lanes:
        shared = lanes - lanes % sharing
    return shared if lanes > 1 and shared else lanes


def _up_to_stop(loop: DeviceLoop, readings: Sequence[Reading]) -> Iterator[Event | Result]:
    """A round without what comes after stop texts; an answer that has come to one ends with the round."""
    stopped: dict[int, Result | None] = {}
    for item in loop.round():
        reading = readings[item.request]
        if isinstance(item, Event):
            if not reading.stopped:
                reading.push(item)
                yield item
            if reading.stopped:
                stopped[item.request] = None
        elif reading.stopped:
            stopped[item.request] = item
        else:
            reading.finish(item.text)
            yield dataclasses.replace(item, text=reading.text, finish_reason="stop") if reading.stopped else item
    for number, result in stopped.items():
        result = result or loop.cancel(number)
        yield dataclasses.replace(result, text=readings[number].text, finish_reason="stop")


def require_memory(model: Model, lanes: int, slots: int, fix: str = "lower lanes or slots") -> None:
    """Refuse a pool that the devices which share it cannot hold."""
    state = functools.partial(empty_state, model.config, lanes, slots, model.dtype, is_stacked(model.params))
    shapes, mesh, shared_by = jax.eval_shape(state), mesh_of(model.params), 1
    if mesh is not None:
        [kv, *_], [placed, *_] = map(jax.tree.leaves, (shapes.pool.kv, shardings(shapes, mesh).pool.kv))
        shared_by = kv.size // math.prod(placed.shard_shape(kv.shape))
    devices.require(shapes, f"{lanes} lanes of {slots} slots", fix, shared_by=shared_by)


def require_rows(config: DecodeConfig, sequential: bool) -> None:
    """Refuse to decode in threads without a row for them."""
    if config.rows < 2 and not sequential:
        raise PastaError("rows 1: chunks need a row besides main's; set rows to 2 or more, or decode sequentially")


def loop_spec(
    model: Model,
    config: DecodeConfig,
    slots: int,
    sequential: bool,
    topics: bool = False,
    guests: Room | None = None,
    extras: bool = False,
) -> LoopSpec:
    """The constants of a compiled loop. Answers without tags need one row only. `topics`: with rules for topics."""
    if guests is not None and mesh_of(model.params) is not None:
        raise PastaError(f"{model.name}: fields are decoded on one device only; load the model without a mesh")
    require_rows(config, sequential)
    if sharing_rows(mesh_of(model.params)) > 1:  # of packed rows, each device would compute those of all lanes
        config = dataclasses.replace(config, packed=(), forks="eager")
    drafts, drafter = 0 if config.draft == "off" else DRAFTS, config.draft == "drafter"
    if drafter and "drafter" not in model.params:
        raise PastaError(
            f"config.decoding.draft=drafter: {model.name} has none; set --config.model.drafter to the adapter's name, "
            "pasta or qwen2_5_coder_1_5b, or to a workdir of launch.train_drafter"
        )
    rows = max(1 if sequential else config.rows, 1 + drafts)
    widths = {1, rows, *({2, 4} if drafts else ()), *config.widths}
    tokenizer, most = model.tokenizer, config.lanes * rows
    priced = config.forks == "admitted" and not sequential
    if priced and config.lanes > 1:
        if not config.packed:
            raise PastaError(
                "config.decoding.forks=admitted: with several lanes, rows must be packed; set config.decoding.packed, "
                "or choose forks=eager"
            )
        most = min(most, max(config.lanes, *config.packed))
    packed = tuple(sorted({*(count for count in config.packed if count < most), most}))
    return LoopSpec(
        tags=tokenizer.tags,
        stop_ids=tuple(tokenizer.stop_ids),
        vocab=max(tokenizer.vocab_size, tokenizer.tags.end),
        rows=rows,
        widths=tuple(sorted(width for width in widths if width <= rows)),
        prefixes=tuple(length for length in PREFIXES if length < slots),
        positions=positions_for(model),
        prefill_chunk=config.prefill_chunk or PREFILL_CHUNK.get(_platform(model.params), ACCELERATOR_CHUNK),
        packed=packed if config.packed and config.lanes > 1 else (),
        kernel=config.kernel and slots % TILE == 0 and _platform(model.params) == "tpu",
        topics=topic_ids(tokenizer) if topics else None,
        guests=guests,
        extras=extras,
        priced=priced,
        drafts=drafts,
        drafter=drafter,
        digits=digits_of(tokenizer) if drafts else (),
    )


def digits_of(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids of "0" to "9"; none if one of them is no token."""
    ids = [tokenizer.encode(str(digit)) for digit in range(10)]
    return tuple(id for [id] in ids) if all(len(one) == 1 for one in ids) else ()


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
        if request.guests:
            length += max(len(guest.ids) for guest in request.guests)
            if length + request.max_tokens > model.config.context:
                raise PastaError(
                    f"{name}: {length} tokens and max_tokens {request.max_tokens}, but the context is "
                    f"{model.config.context}; shorten it or lower max_tokens"
                )
        if length == 0:
            raise PastaError(f"{name}: empty; write a question")
        if request.max_tokens < 1:
            raise PastaError(f"{name}: max_tokens is {request.max_tokens}; set it to 1 or more")
        if length >= room:
            raise PastaError(f"{name}: {length} tokens, but the {limit} of {room} must also hold the answer; {remedy}")
        needed = max(request.longest, slots_of_threads(1 + len(request.guests)))
        if request.guests and needed > (config.slots or MOST_SLOTS):
            raise PastaError(
                f"{name}: {len(request.guests)} threads may take {needed} tokens, but the pool holds "
                f"{config.slots or MOST_SLOTS}; lower max_tokens or ask for fewer"
            )
        longest = max(longest, needed if request.guests else min(length + request.max_tokens, room))
    if config.slots:
        return config.slots
    slots = POOL
    while slots < longest:
        slots *= 2
    return slots
