"""Teacher-forced replay: linear programs through the interpreter, whose threads follow them."""

import dataclasses
from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np

from pasta_jax.decode.generate import loop_spec, slots_for, stream
from pasta_jax.decode.interpreter import Script
from pasta_jax.decode.prefill import start
from pasta_jax.decode.request import Event, Request, Result
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.decode.state import DecodeState, LoopSpec, max_threads, new_state
from pasta_jax.lang.linear import Block, scan
from pasta_jax.lang.tags import TagIds
from pasta_jax.weights.model import Model
from pasta_jax.weights.rules import Rules


def blocks_of(ids: Sequence[int], tags: TagIds) -> list[Block]:
    """The async blocks of a linear program."""
    return [mark for mark in scan(np.asarray(ids, np.int32), tags) if isinstance(mark, Block)]


def script_for(programs: Sequence[Sequence[int]], tags: TagIds, stop_id: int, slots: int) -> Script:
    """A script that makes each lane follow its linear program.

    The tokens of a thread are contiguous; main's end with `stop_id`, a block's with its [/ASYNC]. All scripts of lanes
    with these slots have one shape, so that one compiled loop replays them.
    """
    starts = np.zeros((len(programs), max_threads(slots)), np.int32)
    rows = []
    for lane, ids in enumerate(programs):
        ids = np.asarray(ids, np.int32)
        blocks = blocks_of(ids, tags)
        in_main = np.ones(len(ids), bool)
        for block in blocks:
            in_main[block.start : block.stop] = False
        row = [*ids[in_main].tolist(), stop_id]
        for thread, block in enumerate(blocks, start=1):
            starts[lane, thread] = len(row)
            row += ids[block.start + 1 : block.stop].tolist()  # [ASYNC] is inserted, not sampled
        rows.append(row)
    tokens = np.full((len(rows), max(slots, *map(len, rows))), stop_id, np.int32)
    for lane, row in enumerate(rows):
        tokens[lane, : len(row)] = row
    return Script(jnp.asarray(tokens), jnp.asarray(starts))


def request_for(prompt: Sequence[int], ids: Sequence[int]) -> Request:
    """A request with room for exactly this program."""
    rules = Rules(max_topic_tokens=len(ids), max_chunk_tokens=len(ids))
    return Request(tuple(prompt), max(len(ids), 1), sequential=False, rules=rules)


def replay_stream(
    model: Model, request: Request, ids: Sequence[int], config: DecodeConfig, round_steps: int
) -> Iterator[Event | Result]:
    """Like `stream` for one request, whose prompt is answered with the linear program `ids`.

    With one row, the program must be plain text.
    """
    is_plain = config.rows == 1 and not blocks_of(ids, model.tokenizer.tags)
    own = {"text": request.text, "name": request.name, "sequential": is_plain}
    request = dataclasses.replace(request_for(request.prompt_ids, ids), **own)
    slots = slots_for(model, [request], config)
    script = script_for([ids], model.tokenizer.tags, model.tokenizer.stop_ids[0], slots)
    return stream(model, [request], config, round_steps, script)


def prepare(
    model: Model,
    prompts: Sequence[Sequence[int]],
    programs: Sequence[Sequence[int]],
    config: DecodeConfig,
    keep_hidden: bool,
) -> tuple[DecodeState, LoopSpec, Script]:
    """Everything `run` needs, with every program's prompt in its lane."""
    requests = [request_for(prompt, ids) for prompt, ids in zip(prompts, programs, strict=True)]
    config = dataclasses.replace(config, forks="eager")  # as in `stream`: no prices are measured
    slots = slots_for(model, requests, config)
    spec = loop_spec(model, config, slots, sequential=config.rows == 1)
    state = new_state(model, len(requests), slots, keep_hidden=keep_hidden, drafts=spec.drafts)
    if spec.drafts:  # a replay measures no prices; where rows are free, all drafts that a step holds are fed
        state = dataclasses.replace(state, prices=jnp.ones(len(spec.priced_rows), jnp.float32))
    script = script_for(programs, spec.tags, spec.stop_ids[0], slots)
    for lane, request in enumerate(requests):
        state = start(model, state, lane, request, spec, first=int(script.tokens[lane, 0]))
    return state, spec, script
