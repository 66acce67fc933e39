"""Drafts: guesses of a thread's next tokens that are fed in the same step. Those that the thread then samples are kept.

A draft is what followed the same tokens earlier in the lane: in the thread itself, its prompt or another thread. After
a promise, that is how main went on after the last one (the next line, its number and a promise), with the digit counted
up. Where a drafter's guess (guesses.py) has been right more often, it is that. The rows of drafts come last in a step,
so the keys and values of those that are not kept are beyond the slots in use, and the next step writes over them. Draws
depend on the thread and the token's number in it: drafts change none.

One thread of a lane gets drafts: main if it feeds, since it promises what others can write, else the chunk that began
last. It gets as many as save more time than their rows cost, by measured prices of steps and by how many drafts of
their kind the lane has kept so far: none where other threads and lanes fill the step. Where few are kept for long,
device_loop.py runs a program without any. No draft closes a promise, a chunk or an answer, or waits: what these do
takes a step of its own.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pasta_jax.decode.admission import PAYS, price_of
from pasta_jax.decode.guesses import Guesser
from pasta_jax.decode.rows import Rows, feeding
from pasta_jax.decode.state import LIVE, DecodeState, Drafts, LoopSpec
from pasta_jax.decode.topics import read_topic
from pasta_jax.lang.structure import resume_position
from pasta_jax.models.pool import put

CONTEXT = 4  # most tokens that a lookup compares; the longest match is the likeliest to go on alike
# Shares of drafts that are right before the lane has any (dev/log, 2026-11-26): after a match of 1 to CONTEXT tokens,
# after a promise, and of a drafter's guesses; each counts as so many drafts.
SHARES = (0.25, 0.45, 0.55, 0.8, 0.85, 0.45)
GUESS = CONTEXT + 1  # the kind of a drafter's guesses
WEIGHT = 8.0


def begin(drafts: Drafts, lane: jax.Array, allowed: jax.Array) -> Drafts:
    """The drafts when a lane gets a new request."""
    right = WEIGHT * jnp.array(SHARES, jnp.float32)
    return put(drafts, (lane,), count=0, fed=0, kept=0, allowed=allowed, tried=WEIGHT, right=right)


def without_next(drafts: Drafts | None) -> Drafts | None:
    """None in the next step: other lanes feed in it than when they were proposed, and it may have no room."""
    return drafts and dataclasses.replace(drafts, count=jnp.minimum(drafts.count, 0))


def propose(state: DecodeState, spec: LoopSpec, guesser: Guesser | None = None) -> Drafts:
    """The drafts of the next step, by lookup, or where they are likelier to be right, a drafter's guesses."""
    pool, threads, tags = state.pool, state.threads, spec.tags
    most, lane = state.drafts.token.shape[1], jnp.arange(state.lanes)
    feeds_BxM, _ = feeding(state, spec)
    runs_BxM = feeds_BxM & (threads.status == LIVE)
    latest_B = jnp.max(jnp.where(runs_BxM, jnp.arange(runs_BxM.shape[1])[None], 0), axis=1)
    thread_B = jnp.where(feeds_BxM[:, 0], 0, latest_B)
    next_B = threads.token[lane, thread_B]
    closes_B = tags.is_close(next_B)
    in_topic_B = (thread_B == 0) & ((state.topic >= 0) | (next_B == tags.promise)) & ~closes_B

    # The lane's tokens, thread after thread; the prompt is main's beginning.
    written_BxS = jnp.arange(pool.slots)[None] < pool.fill[:, None]
    nobody_Bx1 = state.spawned[:, None] + 1  # the number of no thread: small, as its product with slots is 32 bits wide
    key_BxS = jnp.where(written_BxS, pool.chunk, nobody_Bx1) * pool.slots + jnp.arange(pool.slots)[None]
    key_BxS = jnp.sort(key_BxS, axis=1)  # of one array: XLA CPU takes nine times as long to sort two by one of them
    of_BxS = key_BxS // pool.slots
    token_BxS = jnp.take_along_axis(pool.token, key_BxS % pool.slots, axis=1)
    last_B = jnp.sum(of_BxS <= thread_B[:, None], axis=1) - 1

    def alike(token: jax.Array) -> jax.Array:
        """Digits count as equal, and so do promises' lengths."""
        is_digit = jnp.isin(token, jnp.array(spec.digits, jnp.int32)) if spec.digits else False
        return jnp.where(tags.is_close(token), tags.close(1), jnp.where(is_digit, -1, token))

    alike_BxS, index_S = alike(token_BxS), jnp.arange(pool.slots)
    same_BxS = (alike_BxS == alike(next_B)[:, None]) & (jnp.roll(of_BxS, -1, axis=1) == of_BxS)
    same_BxS &= (index_S < pool.slots - 1)[None] & (of_BxS < nobody_Bx1)
    length_BxS = same_BxS.astype(jnp.int32)
    for back in range(1, CONTEXT):
        at_B = jnp.maximum(last_B + 1 - back, 0)
        is_own_B = (last_B + 1 >= back) & (of_BxS[lane, at_B] == thread_B)
        same_BxS &= (jnp.roll(alike_BxS, back, axis=1) == alike_BxS[lane, at_B][:, None]) & is_own_B[:, None]
        same_BxS &= (jnp.roll(of_BxS, back, axis=1) == of_BxS) & (index_S >= back)[None]
        length_BxS += same_BxS
    # The longest match, then one of the thread's own, then the latest.
    score_BxS = (2 * length_BxS + (of_BxS == thread_B[:, None])) * pool.slots + index_S[None]
    best_B = jnp.argmax(jnp.where(length_BxS > 0, score_BxS, -1), axis=1)
    length_B = length_BxS[lane, best_B]

    at_BxK = best_B[:, None] + 1 + jnp.arange(most)[None]
    safe_BxK = jnp.minimum(at_BxK, pool.slots - 1)
    draft_BxK = token_BxS[lane[:, None], safe_BxK]
    ends_BxK = (at_BxK >= pool.slots) | (of_BxS[lane[:, None], safe_BxK] != of_BxS[lane, best_B][:, None])
    whole_B = whole(draft_BxK, thread_B, spec, ends_BxK)
    for digit, following in reversed([*zip(spec.digits[1:-1], spec.digits[2:], strict=True)]):
        draft_BxK = jnp.where(closes_B[:, None] & (draft_BxK == digit), following, draft_BxK)

    rows_B = jnp.sum(feeds_BxM, axis=1)
    may_B = state.drafts.allowed & runs_BxM[lane, thread_B] & ~in_topic_B
    if state.guests is not None:
        may_B &= state.guests.count == 0
    room_B = jnp.clip(jnp.minimum(state.request.limit - pool.fill, spec.rows) - rows_B, 0, most)
    most_B = jnp.where(may_B & (length_B > 0), jnp.minimum(whole_B, room_B), 0)
    kind_B = jnp.where(closes_B, CONTEXT, jnp.maximum(length_B, 1) - 1)
    drafts = dataclasses.replace(state.drafts, thread=thread_B, token=draft_BxK, kind=kind_B)
    if guesser is None:
        return dataclasses.replace(drafts, count=paying(drafts, most_B, rows_B, state.prices, spec))
    hidden_BxE, is_known_B = guesser.hidden_of(thread_B)
    share_BxK = drafts.right / drafts.tried
    guesses_B = may_B & is_known_B & ((most_B == 0) | (share_BxK[:, GUESS] > share_BxK[lane, kind_B]))
    drafts = dataclasses.replace(drafts, kind=jnp.where(guesses_B, GUESS, kind_B))
    most_B = jnp.where(guesses_B, room_B, most_B)
    count_B = paying(drafts, most_B, rows_B, state.prices, spec, guesser.cost)
    guess_BxK = guesser.guess(state, thread_B, next_B, hidden_BxE, jnp.where(guesses_B, count_B, 0), most)
    count_B = jnp.where(guesses_B, jnp.minimum(count_B, whole(guess_BxK, thread_B, spec)), count_B)
    return dataclasses.replace(drafts, token=jnp.where(guesses_B[:, None], guess_BxK, draft_BxK), count=count_B)


def whole(draft_BxK: jax.Array, thread_B: jax.Array, spec: LoopSpec, ends_BxK: jax.Array | None = None) -> jax.Array:
    """How many of the first drafts end nothing, int32 [B]. Only main's last one may begin a promise."""
    is_promise_BxK = (draft_BxK == spec.tags.promise) & (thread_B == 0)[:, None]
    is_end_BxK = spec.tags.is_tag(draft_BxK) & ~is_promise_BxK
    is_end_BxK |= jnp.isin(draft_BxK, jnp.array(spec.stop_ids, jnp.int32))
    is_end_BxK |= jnp.cumsum(is_promise_BxK, axis=1) - is_promise_BxK > 0
    is_end_BxK = is_end_BxK if ends_BxK is None else is_end_BxK | ends_BxK
    return jnp.sum(jnp.cumsum(is_end_BxK, axis=1) == 0, axis=1)


def paying(
    drafts: Drafts, most_B: jax.Array, rows_B: jax.Array, prices: jax.Array, spec: LoopSpec, guessing: float = 0.0
) -> jax.Array:
    """How many of each lane's drafts, at most so many, save more time than they cost, int32 [B].

    A draft that is kept saves a row later, so it is worth the step's price by its rows: a thread's token saves a whole
    step if it runs alone, and little where others go on beside it. `rows` are those of the lanes without drafts. If
    rows are packed, all lanes' drafts together pay for the step's size, the likeliest ones first. Otherwise a step
    computes as many rows for every lane, and each lane reckons as if all did as it does. What is saved must be a tenth
    of the step, since looking for drafts takes time too. `guessing`: what a drafter's guess costs, as a share of the
    narrowest step.
    """
    number_1xK = jnp.arange(1, drafts.token.shape[1] + 1)[None]
    step_Bx1 = jnp.full_like(rows_B, jnp.sum(rows_B))[:, None] if spec.packed else rows_B[:, None]

    def price(rows: jax.Array) -> jax.Array:
        return price_of(rows, prices, spec)

    share_B = (drafts.right / drafts.tried)[jnp.arange(rows_B.shape[0]), drafts.kind]
    worth_Bx1 = price(step_Bx1) / jnp.maximum(step_Bx1, 1)
    guess_B = jnp.where(drafts.kind == GUESS, guessing * prices[0], 0.0)
    saved_BxK = jnp.where(number_1xK <= most_B[:, None], share_B[:, None] ** number_1xK, -jnp.inf) * worth_Bx1
    saved_BxK -= guess_B[:, None]

    def best(saved_BxK: jax.Array, step_Bx1: jax.Array) -> jax.Array:
        """How many of the first save most, [B]."""
        number_1xK = jnp.arange(1, saved_BxK.shape[1] + 1)[None]
        gain_BxK = jnp.cumsum(saved_BxK, axis=1) - (price(step_Bx1 + number_1xK) - price(step_Bx1))
        pays_B = jnp.max(gain_BxK, axis=1) > (PAYS - 1) * price(step_Bx1)[:, 0]
        return jnp.where(pays_B, jnp.argmax(gain_BxK, axis=1) + 1, 0).astype(jnp.int32)

    if not spec.packed:
        return best(saved_BxK, step_Bx1)
    order_1xN = jnp.argsort(-saved_BxK.reshape(1, -1), axis=1, stable=True)  # of a lane, the first come first
    taken = best(jnp.take_along_axis(saved_BxK.reshape(1, -1), order_1xN, axis=1), step_Bx1[:1])
    return jnp.sum((jnp.argsort(order_1xN, axis=1) < taken[:, None]).reshape(saved_BxK.shape), axis=1, dtype=jnp.int32)


def with_drafts(state: DecodeState, rows: Rows, spec: LoopSpec) -> Rows:
    """The rows of a step with those of its drafts behind them."""
    drafts = state.drafts
    feeds_B, width = jnp.sum(rows.active, axis=1), rows.active.shape[1]
    draft_BxR = jnp.arange(width)[None] - feeds_B[:, None]
    is_draft_BxR = (draft_BxR >= 0) & (draft_BxR < drafts.count[:, None]) & (feeds_B > 0)[:, None]
    ahead_BxR = jnp.where(is_draft_BxR, draft_BxR + 1, 0)
    at_Bx1 = first_row(state, rows)[:, None]

    def of_first(field_BxR: jax.Array) -> jax.Array:
        return jnp.take_along_axis(field_BxR, at_Bx1, axis=1)

    token_BxR = jnp.take_along_axis(drafts.token, jnp.clip(draft_BxR, 0, drafts.token.shape[1] - 1), axis=1)
    token, position, in_main = of_first(rows.token), of_first(rows.position), (drafts.thread == 0)[:, None]
    resumed = resume_position(position, spec.tags.tens(token), spec.positions)
    following = jnp.where(in_main & spec.tags.is_close(token), resumed, position + 1)

    def changed(field_BxR: jax.Array, draft_BxR: jax.Array) -> jax.Array:
        return jnp.where(is_draft_BxR, draft_BxR, field_BxR)

    return Rows(
        active=rows.active | is_draft_BxR,
        thread=changed(rows.thread, drafts.thread[:, None]),
        token=changed(rows.token, token_BxR),
        position=changed(rows.position, following + draft_BxR),
        main=changed(rows.main, of_first(rows.main) + jnp.where(in_main, ahead_BxR, 0)),
        epoch=changed(rows.epoch, of_first(rows.epoch)),
        slot=changed(rows.slot, state.pool.fill[:, None] + jnp.arange(width)[None]),
        ahead=ahead_BxR,
    )


def first_row(state: DecodeState, rows: Rows) -> jax.Array:
    """The row in which the thread with drafts feeds what it has sampled, int32 [B]."""
    return jnp.argmax(rows.thread == state.drafts.thread[:, None], axis=1)


def with_promise(state: DecodeState, rows: Rows, spec: LoopSpec) -> DecodeState:
    """The state after main has fed its drafts, of which the last may begin a topic."""
    begins_B = jnp.any((rows.ahead > 0) & (rows.thread == 0) & (rows.token == spec.tags.promise), axis=1)
    topic_B, topics = jnp.where(begins_B, 0, state.topic), state.topics
    if topics is not None:
        promise_B = jnp.full_like(topic_B, spec.tags.promise)
        topics = read_topic(state, topic_B, begins_B, promise_B, jnp.zeros_like(begins_B), spec)
    return dataclasses.replace(state, topic=topic_B, topics=topics)


def keep(before: DecodeState, drafted: DecodeState, rows: Rows, sampled_BxR: jax.Array) -> tuple[DecodeState, Rows]:
    """Keep the drafts that their thread has sampled, and of its rows the last one whose token is its own.

    `before` and `drafted` are the states without the drafts, and with all of them.
    """
    drafts, width = before.drafts, rows.active.shape[1]
    feeds_B, last = jnp.sum(rows.active & (rows.ahead == 0), axis=1), width - 1
    number_1xK = jnp.arange(drafts.token.shape[1])[None]
    row_BxK = jnp.where(number_1xK == 0, first_row(before, rows)[:, None], feeds_B[:, None] + number_1xK - 1)
    sampled_BxK = jnp.take_along_axis(sampled_BxR, jnp.minimum(row_BxK, last), axis=1)
    fed_B = jnp.sum(rows.ahead > 0, axis=1)
    equal_BxK = (sampled_BxK == drafts.token) & (number_1xK < fed_B[:, None])
    kept_B = jnp.sum(jnp.cumprod(equal_BxK, axis=1), axis=1)
    passed_BxR = (rows.thread == drafts.thread[:, None]) & (rows.ahead != kept_B[:, None])
    rows = dataclasses.replace(
        rows,
        active=rows.active & ~passed_BxR,
        thread=jnp.where(passed_BxR, before.threads.status.shape[1], rows.thread),
    )
    all_kept_B, lane = kept_B == fed_B, jnp.arange(before.lanes)
    fields = {"topic": before.topic, "topics": before.topics}
    both = {"topic": drafted.topic, "topics": drafted.topics}

    def chosen(drafted: jax.Array, before: jax.Array) -> jax.Array:
        return jnp.where(all_kept_B.reshape(-1, *[1] * (before.ndim - 1)), drafted, before)

    state = dataclasses.replace(
        before,
        pool=dataclasses.replace(before.pool, fill=before.pool.fill - fed_B + kept_B),
        drafts=dataclasses.replace(
            drafts,
            fed=drafts.fed + fed_B,
            kept=drafts.kept + kept_B,
            # Of those after the first wrong one, nothing is known.
            tried=drafts.tried.at[lane, drafts.kind].add((kept_B + ~all_kept_B).astype(jnp.float32)),
            right=drafts.right.at[lane, drafts.kind].add(kept_B.astype(jnp.float32)),
        ),
        **jax.tree.map(chosen, both, fields),
    )
    return state, rows
