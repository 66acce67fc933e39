"""Verifies and prunes proposed chunks: what later text can't do without is joined before it, or written in main.

All chunks of a proposal are hidden at once, as they will be. The first passage that costs too much is mended by a sync
before it, or by writing the chunk that it misses in main, whichever takes fewer steps; then it is measured again.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from pasta_jax.annotate.hiding import (
    NO_CHUNKS,
    Piece,
    Plan,
    Reading,
    costs,
    full_row,
    hidden_from,
    hidden_row,
    read,
    slots_for,
    words_of,
    worst,
)
from pasta_jax.lang.clock import clock
from pasta_jax.lang.program import Chunk, Program, Sync, Text
from pasta_jax.lang.tags import MAX_TENS, tens_for
from pasta_jax.models.weights import Model


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is too much, and how it is measured."""

    max_cost: float  # nats a token in the worst window of a passage; above it, it needs what was hidden from it
    window: int  # tokens
    max_mends: int  # an answer that asks for more is a sequence, and keeps no tags
    min_speedup: float  # plain tokens over critical path; below it an answer keeps no tags
    lengths: tuple[int, ...]  # ascending; slots for an answer's ids, the least that hold them; each compiles programs


Messages = list[tuple[str, str]]  # (role, text), ending with the user's


def prune_all(
    model: Model, items: Iterable[tuple[Messages, Program]], settings: Settings
) -> Iterator[tuple[int, Program, dict]]:
    """(index, program, evidence) of each conversation and the program proposed for its answer, in order."""
    for index, (messages, proposed) in enumerate(items):
        yield index, *prune(model, messages, proposed, settings)


def prune(model: Model, messages: Messages, proposed: Program, settings: Settings) -> tuple[Program, dict]:
    """The program as far as it holds, and what was measured. The text is the same byte for byte."""
    pieces, plan = cut(proposed, model.tokenizer)
    measured: list[dict] = []
    cost: dict[int, float] = {}
    mends: list[dict] = []
    plan, passes = tidied(pieces, plan, model.tokenizer), 0
    prompt_ids = model.tokenizer.chat(messages)
    known = known_words(messages)
    readings: list[Reading] = []  # what later rows may go on from; the first has all in view

    def weigh(plan: Plan, n: int) -> tuple[float, Reading]:
        upto = pieces[: n + 1]
        reading = read(model, hidden_row(upto, plan, prompt_ids), [n], slots, readings)
        return worst(costs(upto, plan, (readings[0], reading), known)[n], settings.window), reading

    while plan.open:
        lacking = [n for n in range(len(pieces)) if hidden_from(plan, n)]
        hidden = hidden_row(pieces, plan, prompt_ids)
        if not readings:
            # Mends only open less: no later row is longer than this one, and none is asked for other pieces.
            slots = slots_for(hidden, settings.lengths)
            readings = [read(model, full_row(pieces, prompt_ids), lacking, slots)]
        readings = [readings[0], read(model, hidden, lacking, slots, readings)]
        passes += len(readings) if not mends else 1
        found = costs(pieces, plan, readings, known)
        cost = {n: worst(found[n], settings.window) for n in lacking}
        if not mends:
            measured = _record(pieces, plan, cost)
        needy = next((n for n in lacking if cost[n] > settings.max_cost), None)
        if needy is None:
            break
        if len(mends) == settings.max_mends:
            plan = NO_CHUNKS
            break
        plan, mend, left = _mended(pieces, plan, needy, weigh, model.tokenizer, settings.max_cost)
        readings += left
        passes += len(mend["alone"]) + (mend["left"] is not None)
        mends.append(mend | {"cost": round(cost[needy], 4)})
        plan = tidied(pieces, plan, model.tokenizer)
    plain_length = sum(len(piece.ids) for piece in pieces)
    if plan.open and plain_length < settings.min_speedup * critical_path(pieces, plan, model.tokenizer):
        plan = NO_CHUNKS
    evidence = {"model": model.name, "max_cost": settings.max_cost, "window": settings.window, "passes": passes}
    highest = round(max(cost.values(), default=0.0), 4) if plan.open else None
    return joined_up(pieces, plan), evidence | {"cost": highest, "measured": measured, "mends": mends}


def known_words(messages: Messages) -> frozenset[str]:
    return frozenset(word.lower() for _, text in messages for word in re.findall(r"\w+", text))


def cut(program: Program, tokenizer) -> tuple[list[Piece], Plan]:
    """A proposal as pieces: chunks, and main's text line by line, since a sync may come to stand before any line."""

    def piece(text: str) -> Piece:
        ids = tuple(tokenizer.encode(text))
        return Piece(text, ids, words_of(text, ids, tokenizer))

    pieces: list[Piece] = []
    open_, joins = set(), set()
    for part in program.parts:
        match part:
            case Sync():
                joins.add(len(pieces))
            case Chunk(topic, _, text):
                open_.add(len(pieces))
                blank = text[: len(text) - len(text.lstrip())]
                stub = tuple(tokenizer.encode(blank + topic))
                pieces.append(dataclasses.replace(piece(text), topic=topic, stub=stub))
            case Text(text):
                pieces += [piece(line) for line in re.findall(r"[^\n]+\n*|\n+", text)]
    return pieces, Plan(frozenset(open_), frozenset(joins))


def tidied(pieces: list[Piece], plan: Plan, tokenizer) -> Plan:
    """Without syncs that wait for nothing, and without chunks that end no sooner than main would have written them."""
    for chunk in sorted(plan.open):
        begins = max((at for at in plan.joins if at <= chunk), default=0)
        ends = min((at for at in plan.joins if at > chunk), default=len(pieces))
        if sum(begins <= other < ends for other in plan.open) > 1:
            continue
        without = Plan(plan.open - {chunk}, plan.joins)
        if critical_path(pieces, without, tokenizer) <= critical_path(pieces, plan, tokenizer):
            plan = without
    joins, waiting = set(), False
    for n in range(len(pieces)):
        if n in plan.joins and waiting:
            joins.add(n)
            waiting = False
        waiting |= n in plan.open
    return Plan(plan.open, frozenset(joins))


def critical_path(pieces: list[Piece], plan: Plan, tokenizer) -> int:
    """Steps of the annotated answer, by the language's clock."""
    tags, ids = tokenizer.tags, []
    for n, piece in enumerate(pieces):
        if n in plan.joins:
            ids.append(tags.sync)
        if n in plan.open:
            ids += [
                tags.promise,
                *tokenizer.encode(piece.topic),
                tags.close(_tens(piece)),
                tags.async_,
                *piece.ids,
                tags.end_async,
            ]
        else:
            ids += piece.ids
    return clock(np.asarray(ids), tags, 0).critical_path


def joined_up(pieces: list[Piece], plan: Plan) -> Program:
    """The pieces as a program again; `cut` is the way there."""
    parts: list[Text | Chunk | Sync] = []
    for n, piece in enumerate(pieces):
        parts += [Sync()] if n in plan.joins else []
        parts.append(Chunk(piece.topic, _tens(piece), piece.text) if n in plan.open else Text(piece.text))
    return Program(tuple(parts))


def _tens(piece: Piece) -> int:
    return min(tens_for(len(piece.ids) + len(("[ASYNC]", "[/ASYNC]"))), MAX_TENS)


def _mended(
    pieces: list[Piece],
    plan: Plan,
    needy: int,
    weigh: Callable[[Plan, int], tuple[float, Reading]],
    tokenizer,
    most: float,
) -> tuple[Plan, dict, list[Reading]]:
    """The plan with its needy piece helped, by the way that takes fewer steps; what was measured for that, and read."""
    # A chunk's marker, as "4." before an item, waits with it.
    place = needy - 1 if needy in plan.open and needy and needy - 1 not in plan.open else needy
    joined = Plan(plan.open, plan.joins | {place})
    steps = critical_path(pieces, joined, tokenizer)
    # Worth writing in main is a chunk that does it alone, and sooner than a sync; a text that needs several waits.
    written = {chunk: Plan(plan.open - {chunk}, plan.joins) for chunk in hidden_from(plan, needy)}
    sooner = [chunk for chunk in written if critical_path(pieces, written[chunk], tokenizer) < steps]
    alone = {chunk: weigh(Plan((plan.open & {needy}) | {chunk}, plan.joins), needy)[0] for chunk in sooner}
    missed = max(alone, key=alone.get, default=None)
    left, *readings = (None,) if missed is None else weigh(written[missed], needy)
    by_writing = left is not None and left <= most
    mend = {
        "needs": pieces[needy].topic or pieces[needy].text.strip()[:60],
        "alone": [[pieces[chunk].topic, round(alone[chunk], 4)] for chunk in alone],
        "left": None if left is None else round(left, 4),
        "by": "writing" if by_writing else "sync",
        "what": pieces[missed].topic if by_writing else None,
    }
    return (written[missed] if by_writing else joined), mend, readings


def _record(pieces: list[Piece], plan: Plan, cost: dict[int, float]) -> list[dict]:
    """What was measured of the proposal: of each chunk, what it lacks of its siblings, and what later text lacks."""
    record = []
    for n in sorted(plan.open):
        later = [cost[m] for m in cost if m > n and n in hidden_from(plan, m)]
        record.append(
            {
                "topic": pieces[n].topic,
                "lacks": round(cost.get(n, 0.0), 4),
                "lacked": round(max(later, default=0.0), 4),  # with its open siblings hidden too
            }
        )
    return record
