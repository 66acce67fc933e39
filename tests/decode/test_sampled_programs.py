"""Sampled programs equal the oracle's, where any wrong logit shows, and do not depend on lanes or rounds."""

import dataclasses
import functools
import itertools
import random
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pasta_jax.decode.generate import generate, loop_spec, stream
from pasta_jax.decode.interpreter import run
from pasta_jax.decode.prefill import admit, begin, start, write
from pasta_jax.decode.request import Event, Request, Result
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.decode.state import BUDGET, LENGTH, OPEN, OWN, STOP, empty_state
from pasta_jax.lang.program import Program
from pasta_jax.models.config import TransformerConfig
from pasta_jax.oracle import choice, decoding
from pasta_jax.weights.model import Model
from pasta_jax.weights.rules import Rules
from tests.helpers import models
from tests.helpers.byte_tokenizer import ByteTokenizer
from tests.helpers.few_programs import decode_with_few_programs
from tests.helpers.models import SMALLEST, UNTIED


class Syllables(ByteTokenizer):
    """Few different texts, so that topics have several words and repeat; two ids share the character é."""

    texts = (b"a", b"A", b" a", b"b ", b" ", b".", b"a b", "é".encode(), b"\xc3", b"\xa9")

    def piece(self, id: int) -> bytes:
        return self.texts[id % len(self.texts)] if id < 256 else b""


TOKENIZER = Syllables()
TAGS = TOKENIZER.tags


@functools.cache
def talkative(config: TransformerConfig = UNTIED) -> Model:
    """A head that samples tags often, so that only the interpreter's mask keeps answers well-formed."""
    return Model("talkative", config, jax.device_put(models.talkative(config, TOKENIZER)), TOKENIZER)


EIGHT_LANES = DecodeConfig(lanes=8, rows=4, slots=80)
SAMPLINGS = (
    Rules(temperature=1.0),
    Rules(temperature=1.0, top_k=40),
    Rules(temperature=1.0, top_p=0.9),
    Rules(temperature=0.7, top_k=100, top_p=0.95, min_p=0.05, repetition_penalty=0.8),
    Rules(repetition_penalty=1.3),
    Rules(temperature=1.0, min_p=0.2),
    Rules(),
)


def random_request(rng: random.Random) -> Request:
    rules = dataclasses.replace(rng.choice(SAMPLINGS), seed=rng.randrange(2**32))
    request = Request(
        prompt_ids=tuple(rng.randrange(384) for _ in range(rng.randint(1, 16))),
        max_tokens=rng.choice([100, 60, 60, rng.randint(1, 30)]),
        sequential=rng.random() < 0.05,
        rules=rules,
        syncs=rules.seed % 8 > 0,
    )
    return request.with_rules(
        max_topic_tokens=rng.choice([0, 3, 8]),
        max_chunk_tokens=rng.choice([0, 5, 12, 100]),
        max_topic_words=rng.choice([9, 9, 1, 2]),  # never 0: all requests, also alone, need the same program
        distinct_topics=rng.random() < 0.5,
        end_stray_chunks=rules.seed % 2 > 0,
        fork_bias=(0.0, -1.0, 0.0, 0.5)[rules.seed // 8 % 4],
    )


def random_requests(count: int) -> list[Request]:
    rng = random.Random(200)
    return [random_request(rng) for _ in range(count)]


@functools.cache
def answered(count: int):
    """Results of `generate` that several tests share."""
    return generate(talkative(), random_requests(count), EIGHT_LANES)


def fields_of(result: Result) -> tuple:
    """A result's fields, without times, in a form that can be compared."""
    trace = result.trace
    columns = (trace.token, trace.thread, trace.step, trace.position)
    return (*(column.tolist() for column in columns), list(trace.closed), trace.finish, trace.steps, result.text)


def assert_same_answer(result, answer: decoding.Outcome, prompt: int) -> None:
    tape, trace = answer.tape, result.trace
    assert trace.token.tolist() == tape.token[prompt:]
    assert trace.thread.tolist() == tape.thread[prompt:]
    assert trace.step.tolist() == tape.step[prompt:]
    assert trace.position.tolist() == tape.position[prompt:]
    assert list(trace.closed[1:]) == answer.closed
    assert trace.finish == answer.finish
    assert trace.steps == answer.steps


@pytest.mark.parametrize(("start", "count"), [(0, 10), pytest.param(10, 90, marks=pytest.mark.extended)])
def test_sampled_programs_equal_the_oracles(start, count):
    # The oracle computes a batch until its longest answer ends, so answers of about one length share a batch.
    pairs = list(zip(random_requests(100), answered(100), strict=True))[start : start + count]
    pairs.sort(key=lambda pair: pair[1].trace.steps)
    requests = [request for request, _ in pairs]
    batches = [decoding.sampled(talkative(), requests[n : n + 10], EIGHT_LANES) for n in range(0, count, 10)]
    ends = Counter()
    for (request, result), answer in zip(pairs, itertools.chain(*batches), strict=True):
        assert_same_answer(result, answer, len(request.prompt_ids))
        ends.update(answer.closed)
        ends[f"finish {answer.finish}"] += 1
        ends["syncs"] += answer.tape.token[len(request.prompt_ids) :].count(TAGS.sync)
        ends["more than the rows"] += len(answer.closed) >= EIGHT_LANES.rows
    half, fifth = count // 2, count // 5
    least = {OPEN: count // 20, OWN: half, BUDGET: half, f"finish {STOP}": fifth, f"finish {LENGTH}": fifth}
    least |= {"syncs": half, "more than the rows": count // 10}
    assert all(ends[name] >= number for name, number in least.items()), ends


def test_rules_for_topics_hold_where_they_are_asked_for():
    """Of the requests, half ask for distinct topics and half for topics of at most one or two words."""
    repeated, longest = Counter(), Counter()
    for request, result in zip(random_requests(100), answered(100), strict=True):
        ids, topics, topic = result.trace.thread_ids(0), [], None
        for id in ids:
            if id == TAGS.promise:
                topic = []
            elif TAGS.is_close(id):
                topics.append(tuple(topic))
                topic = None
            elif topic is not None:
                topic.append(id)
        spelled = [text for text in (choice.spelled(topic, TOKENIZER) for topic in topics) if text]
        repeated[request.rules.distinct_topics] += len(spelled) - len(set(spelled))
        words = max((len(TOKENIZER.decode(topic).split()) for topic in topics), default=0)
        longest[request.rules.max_topic_words] = max(longest[request.rules.max_topic_words], words)
    assert choice.spelled((7,), TOKENIZER) == choice.spelled((8, 9), TOKENIZER) == "é".encode()
    assert repeated[True] == 0
    assert repeated[False] > 0
    assert longest[9] > longest[2] == 2
    assert longest[1] == 1


# Invariances


@pytest.mark.slow  # quick: the oracle decodes each request alone
def test_requests_alone_equal_requests_that_share_lanes():
    """The requests shared eight lanes; here each has a pool of its own."""
    for request, result in list(zip(random_requests(100), answered(100), strict=True))[:5]:
        assert fields_of(generate(talkative(), [request], EIGHT_LANES)[0]) == fields_of(result)


def test_results_do_not_depend_on_lane_or_neighbours():
    order = random.Random(1).sample(range(100), 30)
    again = generate(talkative(), [random_requests(100)[n] for n in order], EIGHT_LANES)
    for number, result in zip(order, again, strict=True):
        assert fields_of(result) == fields_of(answered(100)[number])


@pytest.mark.slow
def test_results_do_not_depend_on_rows_being_packed():
    config = dataclasses.replace(EIGHT_LANES, packed=(9,))
    packed = generate(talkative(), random_requests(100)[:40], config)
    for result, alone in zip(packed, answered(100)[:40], strict=True):
        assert fields_of(result) == fields_of(alone)


def test_nan_in_a_lane_does_not_reach_its_neighbours():
    requests = random_requests(100)[:2]
    spec = loop_spec(talkative(), EIGHT_LANES, EIGHT_LANES.slots, sequential=False, topics=True)

    def columns(poisoned: bool) -> list[np.ndarray]:
        state = empty_state(
            talkative().config, EIGHT_LANES.lanes, EIGHT_LANES.slots, jnp.float32, stacked=False, topics=True
        )
        for lane, request in enumerate(requests):
            state = start(talkative(), state, lane, request, spec)
        if poisoned:
            kv = jax.tree.map(lambda leaf: leaf.at[1].set(jnp.nan), state.pool.kv)
            pool = dataclasses.replace(state.pool, kv=kv)
            hot = state.request.rules.temperature.at[1].set(jnp.nan)
            rules = dataclasses.replace(state.request.rules, temperature=hot)
            request = dataclasses.replace(state.request, rules=rules)
            state = dataclasses.replace(state, pool=pool, request=request)
        state = run(talkative().params, state, np.int32(100), np.False_, config=talkative().config, spec=spec)
        pool = state.pool
        return [np.asarray(field) for field in (pool.token, pool.chunk, pool.step, pool.position, pool.fill)]

    clean, poisoned = columns(poisoned=False), columns(poisoned=True)
    for one, other in zip(clean, poisoned, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
    assert not np.array_equal(clean[0][1], poisoned[0][1])


@pytest.mark.slow  # quick: test_probe.py
def test_answers_at_high_temperature_are_well_formed(monkeypatch):
    """At temperature 2 all answers parse as programs, and none leaves a promise or a chunk open."""
    decode_with_few_programs(monkeypatch)
    count = 400
    prompt = Request((1, 2, 3), 40, sequential=False, rules=Rules(max_topic_tokens=3, max_chunk_tokens=9))
    hot = [
        dataclasses.replace(prompt.with_rules(temperature=2.0, seed=seed), max_tokens=8 + seed % 40)
        for seed in range(count)
    ]
    config, smallest = DecodeConfig(lanes=100, rows=4, slots=64), dataclasses.replace(SMALLEST, tied_head=False)
    kinds = Counter()
    for result in generate(talkative(smallest), hot, config):
        ids = result.trace.linear_ids()
        kinds[result.finish_reason] += 1
        kinds.update(type(part).__name__ for part in Program.from_ids(ids, TOKENIZER).parts)
        assert ids.count(TAGS.promise) == ids.count(TAGS.async_) == ids.count(TAGS.end_async)
    assert min(kinds["stop"], kinds["length"], kinds["Chunk"], kinds["Sync"]) > count // 20, kinds


@pytest.mark.parametrize("round_steps", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 1000))])
def test_the_length_of_rounds_does_not_matter_and_a_stream_yields_every_token_once(round_steps):
    requests = random_requests(100)[:20]
    items = list(stream(talkative(), requests, EIGHT_LANES, round_steps))
    results = {item.request: item for item in items if isinstance(item, Result)}
    for number, expected in enumerate(answered(100)[:20]):
        assert fields_of(results[number]) == fields_of(expected)
        events = [item for item in items if isinstance(item, Event) and item.request == number]
        fed = zip(*(getattr(expected.trace, name).tolist() for name in ("token", "thread", "step")), strict=True)
        assert [(event.token, event.thread, event.step) for event in events] == list(fed)


@pytest.mark.slow  # quick: test_interpreter.py and test_replay.py decode with 2, 4 and 8 rows
def test_fewer_rows_give_the_same_answers_in_more_steps():
    """Only for requests that end by themselves: what a budget cuts off depends on the order of slots."""
    pairs = zip(random_requests(100), answered(100), strict=True)
    finished = [
        (request, result)
        for request, result in pairs
        if result.finish_reason == "stop"
        # with fewer rows, closing tags that were sampled in the last step may be fed
        and len(result.trace.token) + EIGHT_LANES.rows <= min(request.max_tokens, 80 - len(request.prompt_ids))
    ]
    assert len(finished) > 20
    compiled = run._cache_size()
    others = generate(talkative(), [request for request, _ in finished], dataclasses.replace(EIGHT_LANES, rows=2))
    assert run._cache_size() == compiled + 1  # so the next test's count would show a compilation
    steps = set()
    for (_, one), other in zip(finished, others, strict=True):
        assert other.finish_reason == "stop"
        assert other.trace.linear_ids() == one.trace.linear_ids()
        assert other.trace.closed == one.trace.closed
        for thread in range(len(one.trace.closed)):
            positions = [result.trace.position[result.trace.thread == thread].tolist() for result in (one, other)]
            common = min(map(len, positions))
            assert positions[0][:common] == positions[1][:common]
        steps.add(int(np.sign(other.trace.steps - one.trace.steps)))
    assert steps == {0, 1}


def test_new_sampling_seeds_and_budgets_compile_nothing():
    def compiled() -> list[int]:
        return [function._cache_size() for function in (admit, write, begin, run)]

    before = answered(100) and compiled()
    plain = Request(
        (1, 2, 3), 10, sequential=False, rules=Rules(max_topic_tokens=2, max_chunk_tokens=3, max_topic_words=9)
    )
    others = [
        plain.with_rules(max_topic_words=0, distinct_topics=True),
        plain,
        dataclasses.replace(plain.with_rules(temperature=0.3, top_k=7, top_p=0.5, seed=2**32 - 1), max_tokens=33),
        dataclasses.replace(plain.with_rules(max_topic_tokens=9, max_chunk_tokens=1), sequential=True),
        *[plain.with_rules(temperature=1.5, seed=seed) for seed in range(6)],
    ]
    list(stream(talkative(), others, EIGHT_LANES, round_steps=7))
    assert compiled() == before
