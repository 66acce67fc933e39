"""Traces equal the oracle's records."""

import dataclasses
import itertools

import numpy as np
import pytest

from pasta_jax.decode.replay import replay_stream
from pasta_jax.decode.request import Event, Request, Result
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.decode.state import LENGTH, STOP
from pasta_jax.decode.trace import Trace
from pasta_jax.decode.transcript import Transcript
from pasta_jax.lang.clock import clock, parallelism
from pasta_jax.lang.program import Chunk, Program, Text
from tests.helpers.traces import PROGRAM, TOKENIZER, random_traces, same, script_of, tiny_model, traced

TAGS = TOKENIZER.tags


def earliest(trace: Trace) -> int:
    """The critical path of the fed tokens, computed from their dependencies alone."""
    fed = {number: trace.thread_ids(number) for number in range(len(trace.closed))}
    now, number, ends = 0, 0, [0]
    for token in fed[0]:
        now = max(now, *ends) + 1 if token == TAGS.sync else now + 1
        if TAGS.is_close(token):
            number += 1
            content = [token for token in fed[number] if token not in (TAGS.async_, TAGS.end_async)]
            ends.append(now + len(content))  # [ASYNC] goes beside the promise; the last token samples [/ASYNC]
    return max(now, *ends)


def test_traces_equal_the_oracles_answers():
    kinds = set()
    for trace, answer, script, rows in random_traces(250):
        ids = trace.linear_ids()
        assert trace.program() == Program.from_ids(ids, TOKENIZER)
        assert len(trace.order()) == len(trace.token)
        assert sorted(trace.order().tolist()) == list(range(len(trace.token)))
        assert trace.critical_path == earliest(trace) <= trace.steps
        if rows == 20:
            assert trace.critical_path == trace.steps
        if trace.finish == STOP:
            assert script[0][:-1] == trace.thread_ids(0)
            assert trace.critical_path == clock(ids, TAGS, 0).critical_path
            if trace.critical_path:
                assert trace.parallelism == parallelism(ids, TAGS, 0)
        place = len(trace.prompt_ids) + trace.order()
        columns = np.concatenate([np.arange(len(trace.prompt_ids)), place])
        assert np.array_equal(trace.sees(), answer.tape.sees[np.ix_(place, columns)])
        for row in trace.threads():
            fed = trace.step[trace.thread == row.number]
            assert row.tokens == len(fed)
            assert (row.first_step, row.last_step) == ((fed[0], fed[-1]) if len(fed) else (0, 0))
            if row.number and row.closed == "own":
                assert row.length == len(script[row.number]) + 1  # and [ASYNC]
        cut = trace.in_topic.any() and trace.linear_ids() != trace._linear[0]
        kinds.add((trace.finish, trace.critical_path < trace.steps, bool(cut)))
    assert {(STOP, True, False), (LENGTH, True, False), (LENGTH, False, True)} <= kinds


def joined_by(trace: Trace) -> dict[int, int]:
    """For each chunk, the first [SYNC] after its block in linear order, as an index into the fed tokens."""
    order = trace.order().tolist()
    joins = {}
    for number in range(1, len(trace.closed)):
        place = max((n for n, i in enumerate(order) if trace.thread[i] == number), default=len(order))
        syncs = [i for i in order[place:] if trace.token[i] == TAGS.sync]
        joins |= {number: syncs[0]} if syncs else {}
    return joins


def test_a_chunk_is_joined_by_the_next_sync():
    kinds = set()
    for trace, *_ in random_traces(100, seed=7):
        joins = trace.joins()
        assert joins == joined_by(trace)
        for number, sync in joins.items():
            assert trace.step[sync] >= trace.step[trace.thread == number][-1]
        kinds.add(len(set(joins.values())))
    assert {0, 1, 2} <= kinds


def test_text_tokens_are_neither_tags_nor_topics():
    trace, _ = traced(script_of(PROGRAM))
    assert trace.text_tokens == len(PROGRAM.strip())
    assert trace.parallelism == trace.text_tokens / trace.critical_path
    assert trace.speedup(100) == 100 / trace.critical_path
    rows = trace.threads()
    assert [(row.topic, row.tens) for row in rows] == [("", 0), ("first", 2), ("second", 1), ("last", 3)]
    assert [row.length for row in rows[1:]] == [25, 14, 14]
    assert [row.tokens for row in rows[1:]] == [25, 14, 13]  # the last chunk's closing tag need not be fed
    assert trace.widest == 3


def test_an_empty_answer_has_a_trace():
    trace, _ = traced([[TOKENIZER.end_of_turn]])
    assert (trace.steps, trace.critical_path, trace.parallelism, trace.widest) == (0, 0, 0.0, 0)
    assert trace.program() == Program(())


def test_a_character_belongs_to_the_token_with_its_last_byte_and_ends_at_a_tag():
    euro = list("€".encode())
    main = [*euro, *euro[:2], TAGS.promise, euro[0], TAGS.close(1), 97, TOKENIZER.end_of_turn]
    trace, _ = traced([main, [*euro[:1], TAGS.end_async]])
    main, chunk = ([trace.text[i] for i in np.flatnonzero(trace.thread == number)] for number in (0, 1))
    assert main == ["", "", "€", "", "", "\ufffd", "", "\ufffd", "a"]
    assert chunk == ["", "\ufffd"] or chunk == ["", "", "\ufffd"]
    assert trace.program() == Program((Text("€\ufffd"), Chunk("\ufffd", 1, "\ufffd"), Text("a")))


def test_milliseconds_are_measured_at_rounds_and_interpolated_between_them():
    trace = dataclasses.replace(
        traced([[*range(97, 105), TOKENIZER.end_of_turn]])[0], rounds=((0, 50.0), (4, 90.0), (8, 100.0))
    )
    assert trace.ms_at(4) == 90
    assert trace.ms_at(np.array([0, 1, 6])).tolist() == [50, 60, 95]
    assert (trace.prefill_ms, trace.decode_ms) == (50, 50)


def certain(trace: Trace, count: int) -> str:
    """Of the first `count` tokens: main up to the first chunk that is still open, and that chunk's text so far."""
    token, thread, text = trace.token[:count], trace.thread[:count], trace.text[:count]
    shown, number, inside = "", 0, False
    for i in np.flatnonzero(thread == 0):
        shown += "" if inside and token[i] != TAGS.promise else text[i]
        inside = token[i] == TAGS.promise or (inside and not TAGS.is_close(token[i]))
        if TAGS.is_close(token[i]):
            number += 1
            indices = np.flatnonzero(thread == number)
            shown += "".join(text[j] for j in indices)
            if not np.any(token[indices] == TAGS.end_async):
                break
    return shown


def test_a_transcript_returns_all_text_that_is_certain_and_no_more():
    in_a_promise = [[97, *"€".encode()[:2], TAGS.promise, 98, TAGS.close(1), TOKENIZER.end_of_turn], [TAGS.end_async]]
    for trace, *_ in [*random_traces(100, seed=1), traced(in_a_promise, budget=5)]:
        transcript, printed = Transcript(TAGS), ""
        columns = (trace.token.tolist(), trace.thread.tolist(), trace.step.tolist(), trace.text)
        for count, (token, thread, step, text) in enumerate(zip(*columns, strict=True), start=1):
            printed += transcript.push(thread, token, step, text)
            if count % 7 == 0 or token >= TAGS.base:
                assert printed == certain(trace, count)
        answer = trace.program().strip()
        assert answer.startswith(printed)
        assert printed + transcript.rest(answer) == answer
        assert [(thread.topic, thread.tens, thread.tokens) for thread in transcript.threads] == [
            (row.topic, row.tens, row.tokens) for row in trace.threads()
        ]
        assert transcript.step == (trace.step[-1] if len(trace.step) else 0)


@pytest.mark.usefixtures("few_programs")
def test_a_replay_is_streamed_like_an_answer_and_timed():
    expected, _ = traced(script_of(PROGRAM), rows=3)
    config = DecodeConfig(lanes=1, rows=3, slots=256)
    request = Request(tuple(TOKENIZER.encode("why?")), 1, sequential=True, text="Why?")
    *events, result = replay_stream(tiny_model(), request, PROGRAM.ids(TOKENIZER), config, round_steps=5)
    assert isinstance(result, Result)
    assert all(isinstance(event, Event) for event in events)
    for name in ("token", "thread", "step", "text"):
        assert [getattr(event, name) for event in events] == list(getattr(expected, name))
    assert result.text == PROGRAM.strip()
    assert result.trace.replayed
    steps = [step for step, _ in result.trace.rounds]
    assert steps == [0, *range(1, expected.steps, 5), expected.steps]  # the first token is read at once
    assert all(one[1] < other[1] for one, other in itertools.pairwise(result.trace.rounds))
    changes = {"replayed": True, "model": "tiny", "prompt": "Why?", "rounds": result.trace.rounds}
    assert same(result.trace, dataclasses.replace(expected, **changes))
