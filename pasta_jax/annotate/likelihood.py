"""Verify and prune proposed chunks with a model: chunks that later text needs are joined before it or left to main.

All chunks of a proposal are hidden at once, as in decoding. The first passage that costs too much is fixed by a sync
before it, or by writing the chunk that it misses in main, whichever takes fewer steps; then costs are measured again.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pasta_jax.annotate.hiding import (
    NO_CHUNKS,
    ForkPlan,
    Piece,
    ScoredRow,
    costs,
    full_row,
    hidden_from,
    hidden_row,
    score,
    slots_for,
    words_of,
    worst_window,
)
from pasta_jax.annotate.settings import Weighing
from pasta_jax.lang.clock import clock
from pasta_jax.lang.program import Chunk, Program, Sync, Text
from pasta_jax.lang.tags import MAX_TENS, tens_for
from pasta_jax.lang.words import single_words
from pasta_jax.tokenizers.tokenizer import Tokenizer
from pasta_jax.weights.model import Model

Messages = list[tuple[str, str]]  # (role, text), the last one the user's
Evidence = dict[str, Any]  # measurements as JSON; docs/DATA.md lists the fields


def prune(model: Model, messages: Messages, proposal: Program, weighing: Weighing) -> tuple[Program, Evidence]:
    """The part of a program that holds, with the same text byte for byte, and what was measured."""
    pieces, plan = cut(proposal, model.tokenizer)
    measured: list[dict[str, Any]] = []
    cost: dict[int, float] = {}
    fixes: list[dict[str, Any]] = []
    plan, passes = tidy(pieces, plan, model.tokenizer), 0
    prompt_ids = model.tokenizer.chat(messages)
    known = known_words(messages)
    rows: list[ScoredRow] = []  # later rows reuse their prefixes; the first has everything visible

    def weigh(plan: ForkPlan, n: int) -> tuple[float, ScoredRow]:
        row = score(model, hidden_row(pieces[: n + 1], plan, prompt_ids), [n], slots, rows)
        return worst_window(costs(pieces, plan, (rows[0], row), known, last=n)[n], weighing.window), row

    while plan.chunks:
        deprived = [n for n in range(len(pieces)) if hidden_from(plan, n)]
        hidden = hidden_row(pieces, plan, prompt_ids)
        if not rows:
            # Fixes only remove chunks: no later row is longer than this one, and none scores other pieces.
            slots = slots_for(hidden, weighing.lengths)
            rows = [score(model, full_row(pieces, prompt_ids), deprived, slots)]
        rows = [rows[0], score(model, hidden, deprived, slots, rows)]
        passes += len(rows) if not fixes else 1
        by_piece = costs(pieces, plan, rows, known)
        cost = {n: worst_window(by_piece[n], weighing.window) for n in deprived}
        if not fixes:
            measured = _measurements(pieces, plan, cost)
        needy = next((n for n in deprived if cost[n] > weighing.max_cost), None)
        if needy is None:
            break
        if len(fixes) == weighing.max_fixes:
            plan = NO_CHUNKS
            break
        plan, fix, extra_rows = _fix(pieces, plan, needy, weigh, model.tokenizer, weighing.max_cost)
        rows += extra_rows
        passes += len(fix["alone"]) + (fix["left"] is not None)
        fixes.append(fix | {"cost": round(cost[needy], 4)})
        plan = tidy(pieces, plan, model.tokenizer)
    plain_length = sum(len(piece.ids) for piece in pieces)
    if plan.chunks and plain_length < weighing.min_speedup * critical_path(pieces, plan, model.tokenizer):
        plan = NO_CHUNKS
    evidence = {"model": model.name, "max_cost": weighing.max_cost, "window": weighing.window, "passes": passes}
    highest = round(max(cost.values(), default=0.0), 4) if plan.chunks else None
    return reassemble(pieces, plan), evidence | {"cost": highest, "measured": measured, "fixes": fixes}


def known_words(messages: Messages) -> frozenset[str]:
    """The words of a conversation, in lower case."""
    return frozenset(word.lower() for _, text in messages for word in single_words(text))


def cut(program: Program, tokenizer: Tokenizer) -> tuple[list[Piece], ForkPlan]:
    """A proposal as pieces: chunks, and main's text line by line, since a sync may be inserted before any line."""

    def piece(text: str) -> Piece:
        ids = tuple(tokenizer.encode(text))
        return Piece(text, ids, words_of(text, ids, tokenizer))

    pieces: list[Piece] = []
    chunks, joins = set(), set()
    for part in program.parts:
        match part:
            case Sync():
                joins.add(len(pieces))
            case Chunk(topic, _, text):
                chunks.add(len(pieces))
                space = text[: len(text) - len(text.lstrip())]
                stub = tuple(tokenizer.encode(space + topic))
                pieces.append(dataclasses.replace(piece(text), topic=topic, stub=stub))
            case Text(text):
                pieces += [piece(line) for line in re.findall(r"[^\n]+\n*|\n+", text)]
    return pieces, ForkPlan(frozenset(chunks), frozenset(joins))


def tidy(pieces: Sequence[Piece], plan: ForkPlan, tokenizer: Tokenizer) -> ForkPlan:
    """Without syncs that wait for nothing, and without lone chunks that end no sooner than if main wrote them."""
    for chunk in sorted(plan.chunks):
        first = max((at for at in plan.joins if at <= chunk), default=0)
        end = min((at for at in plan.joins if at > chunk), default=len(pieces))
        if sum(first <= other < end for other in plan.chunks) > 1:
            continue
        without = ForkPlan(plan.chunks - {chunk}, plan.joins)
        if critical_path(pieces, without, tokenizer) <= critical_path(pieces, plan, tokenizer):
            plan = without
    joins, waiting = set(), False
    for n in range(len(pieces)):
        if n in plan.joins and waiting:
            joins.add(n)
            waiting = False
        waiting |= n in plan.chunks
    return ForkPlan(plan.chunks, frozenset(joins))


def critical_path(pieces: Sequence[Piece], plan: ForkPlan, tokenizer: Tokenizer) -> int:
    """Steps of the annotated answer, by the language's clock."""
    tags, ids = tokenizer.tags, []
    for n, piece in enumerate(pieces):
        if n in plan.joins:
            ids.append(tags.sync)
        if n in plan.chunks:
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


def reassemble(pieces: Sequence[Piece], plan: ForkPlan) -> Program:
    """The pieces as a program; the inverse of `cut`."""
    parts: list[Text | Chunk | Sync] = []
    for n, piece in enumerate(pieces):
        parts += [Sync()] if n in plan.joins else []
        parts.append(Chunk(piece.topic, _tens(piece), piece.text) if n in plan.chunks else Text(piece.text))
    return Program(tuple(parts))


def _tens(piece: Piece) -> int:
    return min(tens_for(len(piece.ids) + len(("[ASYNC]", "[/ASYNC]"))), MAX_TENS)


def _fix(
    pieces: Sequence[Piece],
    plan: ForkPlan,
    needy: int,
    weigh: Callable[[ForkPlan, int], tuple[float, ScoredRow]],
    tokenizer: Tokenizer,
    max_cost: float,
) -> tuple[ForkPlan, dict[str, Any], list[ScoredRow]]:
    """(the plan with the needy piece fixed in the way that takes fewer steps, what was measured, the rows scored)."""
    # A chunk's marker, such as "4." before an item, waits with it.
    place = needy - 1 if needy in plan.chunks and needy and needy - 1 not in plan.chunks else needy
    joined = ForkPlan(plan.chunks, plan.joins | {place})
    steps = critical_path(pieces, joined, tokenizer)
    # A chunk is worth writing in main if that alone suffices, and sooner than a sync; text that needs several waits.
    written = {chunk: ForkPlan(plan.chunks - {chunk}, plan.joins) for chunk in hidden_from(plan, needy)}
    sooner = [chunk for chunk in written if critical_path(pieces, written[chunk], tokenizer) < steps]
    alone = {
        chunk: weigh(ForkPlan((plan.chunks & {needy}) | {chunk}, plan.joins), needy)[0] for chunk in sooner
    }  # the cost of hiding only this chunk
    missed = max(alone, key=alone.get, default=None)
    left, *rows = (None,) if missed is None else weigh(written[missed], needy)
    by_writing = left is not None and left <= max_cost
    fix = {
        "needs": pieces[needy].topic or pieces[needy].text.strip()[:60],
        "alone": [[pieces[chunk].topic, round(alone[chunk], 4)] for chunk in alone],
        "left": None if left is None else round(left, 4),
        "by": "writing" if by_writing else "sync",
        "what": pieces[missed].topic if by_writing else None,
    }
    return (written[missed] if by_writing else joined), fix, rows


def _measurements(pieces: Sequence[Piece], plan: ForkPlan, cost: dict[int, float]) -> list[dict[str, Any]]:
    """For each proposed chunk, the cost of hiding its siblings from it, and of hiding it from later text."""
    measured = []
    for n in sorted(plan.chunks):
        later = [cost[m] for m in cost if m > n and n in hidden_from(plan, m)]
        measured.append(
            {
                "topic": pieces[n].topic,
                "lacks": round(cost.get(n, 0.0), 4),
                "lacked": round(max(later, default=0.0), 4),  # with its open siblings hidden too
            }
        )
    return measured
