"""The oracle: the rules of decoding in plain Python, without a cache. Slow, and easy to check by reading.

It shares no code with the interpreter, the mask or the positions: a thread is an object that remembers which slots it
may read. `answer` does the bookkeeping and requests tokens; `scripted` supplies them from a list, `sampled` from
uncached logits (choice.py).
"""

import dataclasses
from collections.abc import Callable, Collection, Generator, Sequence

import jax
import numpy as np

from pasta_jax.decode.generate import positions_for
from pasta_jax.decode.request import Request
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.decode.state import BUDGET, LENGTH, OPEN, OWN, STOP
from pasta_jax.decode.trace import Trace, spell
from pasta_jax.lang.structure import Positions
from pasta_jax.lang.tags import TagIds
from pasta_jax.models.transformer import forward
from pasta_jax.oracle.choice import Query, Tape, choose
from pasta_jax.tokenizers.tokenizer import Tokenizer
from pasta_jax.weights.model import Model


@dataclasses.dataclass
class RunningThread:
    """A thread between two steps: the token it feeds next, that token's position, and the slots it may read."""

    number: int  # 0 is main
    token: int
    position: int
    readable: list[int]  # slots
    sampled: int = 0  # tokens sampled so far
    topic: int | None = None  # topic tokens of the promise that main is writing; None outside of one
    topics: list[list[int]] = dataclasses.field(default_factory=list)  # main's, the last one perhaps unfinished
    has_row: bool = False
    ended: bool = False  # has sampled its last token: main a stop id, a chunk [/ASYNC]
    closed: int = OPEN


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A finished request, with the fields of trace.Trace; the tape includes the prompt."""

    tape: Tape
    finish: int  # STOP, LENGTH
    closed: list[int]  # of each chunk: OPEN, OWN, BUDGET
    steps: int


Schedule = Sequence[Collection[int]]  # the threads that feed in each step


def answer(
    request: Request,
    config: DecodeConfig,
    tokenizer: Tokenizer,
    context: int,
    positions: Positions,
    schedule: Schedule | None = None,
) -> Generator[tuple[Tape, list[Query]], list[int], Outcome]:
    """Decode one request: yields the tape and the queries, receives their tokens, returns the answer.

    A schedule says when threads feed, in place of `config.rows`; the answer is cut off where it ends.
    """
    tags, prompt = tokenizer.tags, request.prompt_ids
    limit = min(len(prompt) + request.max_tokens, config.slots or context, context)
    tape = Tape(np.zeros((limit, limit), bool))
    for position, token in enumerate(prompt):
        slot = tape.feed(token, 0, 0, position)
        tape.sees[slot, : slot + 1] = True
    main = RunningThread(0, token=-1, position=len(prompt), readable=list(range(len(prompt))))
    chunks: list[RunningThread] = []
    step = 0
    take_next(main, (yield tape, [query_for(main, len(prompt) - 1, request)])[0], request, tokenizer)

    while True:
        all_ended = all(chunk.ended for chunk in chunks)
        if main.ended and all_ended:
            return Outcome(tape, STOP, [chunk.closed for chunk in chunks], step)
        if schedule is not None and step == len(schedule):
            return Outcome(tape, LENGTH, [chunk.closed for chunk in chunks], step)

        # Main feeds unless it is done or waits; so does every chunk that has a row; free rows go to waiting chunks.
        main_feeds = not main.ended and (main.token != tags.sync or all_ended)
        main_feeds = main_feeds and (schedule is None or 0 in schedule[step])
        forks = main_feeds and main.topic is not None and tags.is_close(main.token)
        queue = [chunk for chunk in chunks if not chunk.has_row and not chunk.ended]
        if forks:
            promise = [*main.readable, len(tape)]  # up to the token that main feeds now, in the step's first slot
            queue.append(RunningThread(len(chunks) + 1, tags.async_, main.position + 1, promise))
        in_rows = [chunk for chunk in chunks if chunk.has_row]
        running = in_rows + queue[: config.rows - 1 - len(in_rows)]
        if schedule is not None:
            running = sorted((c for c in in_rows + queue if c.number in schedule[step]), key=lambda c: c.number)
        feeding = [main, *running] if main_feeds else running
        if len(tape) + len(feeding) > limit:
            return Outcome(tape, LENGTH, [chunk.closed for chunk in chunks], step)

        step += 1
        chunks += queue[-1:] if forks else []
        joins = main_feeds and main.token == tags.sync
        if joins and positions.policy == "shared_start":  # after all positions so far, including this step's
            main.position = max([main.position, *(1 + p for p in tape.position), *(1 + c.position for c in running)])
        slots = [tape.feed(thread.token, thread.number, step, thread.position) for thread in feeding]
        for thread, slot in zip(feeding, slots, strict=True):
            thread.has_row = True
            thread.readable.append(slot)
        if joins:
            main.readable = list(range(len(tape)))
        for thread, slot in zip(feeding, slots, strict=True):
            tape.sees[slot, thread.readable] = True

        # A chunk that has fed [/ASYNC] gives its row back; the others continue.
        continuing = []
        for thread, slot in zip(feeding, slots, strict=True):
            if thread.ended:
                thread.has_row = False
                continue
            thread.position += 1 + skipped(promised(thread, tags), positions)
            continuing.append((thread, slot))
        tokens = yield tape, [query_for(thread, slot, request) for thread, slot in continuing]
        for (thread, _), token in zip(continuing, tokens, strict=True):
            take_next(thread, token, request, tokenizer)


def promised(thread: RunningThread, tags: TagIds) -> int:
    """The tens of a promise that main closed with the token just fed, else 0. Also counts the tokens of a topic."""
    if thread.number != 0:
        return 0
    if thread.token == tags.promise:
        thread.topic = 0
        thread.topics.append([])
    elif thread.topic is not None and tags.is_close(thread.token):
        thread.topic = None
        return tags.tens(thread.token)
    elif thread.topic is not None:
        thread.topic += 1
        thread.topics[-1].append(thread.token)
    return 0


def skipped(tens: int, positions: Positions) -> int:
    """Positions that main leaves free for a chunk of `tens` promised tens."""
    if not tens:
        return 0
    return {"predicted": 10 * tens, "constant": positions.constant, "shared_start": 0}[positions.policy]


def query_for(thread: RunningThread, slot: int, request: Request) -> Query:
    """The query of a thread that has just fed the token in `slot`."""
    if thread.number:
        place = "full chunk" if thread.sampled >= request.rules.max_chunk_tokens else "chunk"
    elif thread.topic is None:
        place = "main"
    else:
        place = "full topic" if thread.topic >= request.rules.max_topic_tokens else "topic"
    return Query(slot, thread.number, thread.sampled, place, tuple(map(tuple, thread.topics)))


def take_next(thread: RunningThread, token: int, request: Request, tokenizer: Tokenizer) -> None:
    """Give a thread its next token, which may be its last."""
    full = thread.sampled >= request.rules.max_chunk_tokens
    thread.token = token
    thread.sampled += 1
    if thread.number == 0:
        thread.ended = token in tokenizer.stop_ids
    elif token == tokenizer.tags.end_async:
        thread.ended, thread.closed = True, BUDGET if full else OWN


def trace_of(answer: Outcome, request: Request, tokenizer: Tokenizer, model: str, rows: int, policy: str) -> Trace:
    """An answer as a trace, without times."""
    prompt = len(request.prompt_ids)
    columns = {
        name: np.array(getattr(answer.tape, name)[prompt:], np.int32)
        for name in ("token", "thread", "step", "position")
    }
    return Trace(
        tags=tokenizer.tags,
        model=model,
        prompt=tokenizer.decode(request.prompt_ids) if request.text is None else request.text,
        prompt_ids=request.prompt_ids,
        rows=rows,
        policy=policy,
        replayed=False,
        **columns,
        text=spell(tokenizer, columns["token"], columns["thread"]),
        closed=(0, *answer.closed),
        finish=answer.finish,
        steps=answer.steps,
        rounds=(),
    )


def scripted(
    request: Request,
    config: DecodeConfig,
    tokenizer: Tokenizer,
    context: int,
    positions: Positions,
    script: Sequence[Sequence[int]],
) -> Outcome:
    """The answer in which every thread follows its script, legal or not: script[thread][number]."""
    run = answer(request, config, tokenizer, context, positions)
    _, queries = next(run)
    while True:
        try:
            _, queries = run.send([script[query.thread][query.number] for query in queries])
        except StopIteration as stop:
            return stop.value


def sampled(
    model: Model,
    requests: Sequence[Request],
    config: DecodeConfig,
    see: Callable[[Tape], Tape] = lambda tape: tape,
    schedules: Sequence[Schedule | None] | None = None,
) -> list[Outcome]:
    """Each request's answer, decoded alone; only the forward passes, one per step over all fed tokens, are shared.

    `see` may change what the tokens of a tape see, to measure what the rules contribute (toy/ablation.py).
    """
    tokenizer = model.tokenizer
    common = config, tokenizer, model.config.context, positions_for(model)
    schedules = schedules or [None] * len(requests)
    runs = [answer(request, *common, schedule) for request, schedule in zip(requests, schedules, strict=True)]
    waiting = {index: next(run) for index, run in enumerate(runs)}
    answers: dict[int, Outcome] = {}
    while waiting:
        tapes = [see(tape) for tape, _ in waiting.values()]
        logits = uncached(model, tapes, batch=len(requests))
        for row, (index, (_, queries)) in enumerate(list(waiting.items())):
            tokens = [choose(logits[row], tapes[row], query, requests[index], tokenizer) for query in queries]
            try:
                waiting[index] = runs[index].send(tokens)
            except StopIteration as stop:
                answers[index] = stop.value
                del waiting[index]
    return [answers[index] for index in range(len(requests))]


def uncached(model: Model, tapes: Sequence[Tape], batch: int) -> np.ndarray:
    """Logits [tapes, slots, V] of one forward pass, padded to few shapes: `batch` rows, full 32s of slots."""
    length = -(-max(map(len, tapes)) // 32) * 32
    token, position = np.zeros((2, batch, length), np.int32)
    sees = np.zeros((batch, length, length), bool)
    for row, tape in enumerate(tapes):
        n = len(tape)
        token[row, :n], position[row, :n], sees[row, :n, :n] = tape.token, tape.position, tape.sees[:n, :n]
    return np.asarray(_forward(model.params, model.config, token, position, sees))


_forward = jax.jit(forward, static_argnames="config")
