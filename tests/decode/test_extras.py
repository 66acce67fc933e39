"""Log-probabilities are those of the oracle's distribution; a bias moves the ids that it names, in its own request."""

import dataclasses
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from pasta_jax.decode import extras, sampling
from pasta_jax.decode.generate import generate, loop_spec
from pasta_jax.decode.next_token import next_token
from pasta_jax.decode.prefill import start
from pasta_jax.decode.request import Request
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.decode.state import new_state
from pasta_jax.models.ragged import Packed
from pasta_jax.oracle import choice, decoding
from pasta_jax.weights.rules import Rules
from tests.decode.test_sampled_programs import TAGS, TOKENIZER, talkative

pytestmark = pytest.mark.usefixtures("few_programs")
CONFIG = DecodeConfig(lanes=4, rows=4, slots=80)
HOT = Rules(temperature=1.0, seed=5)
PROMPT = (3, 30, 99)
BIASED = {40: 100.0, 41: -100.0}


def request(rules: Rules = HOT, **changes) -> Request:
    return Request(PROMPT, 60, sequential=False, rules=rules, **changes)


REQUESTS = [
    request(scored=True),
    request(dataclasses.replace(HOT, seed=7, presence_penalty=1.5, frequency_penalty=-0.5), scored=True),
    request(dataclasses.replace(HOT, temperature=0.0), scored=True, bias=((50, 2.0), (51, -3.0))),
    request(),
]


@pytest.fixture(scope="module")
def results():
    return generate(talkative(), REQUESTS, CONFIG)


def test_other_answers_are_what_they_are_without(results):
    (alone,) = generate(talkative(), REQUESTS[3:], CONFIG)
    assert alone.text == results[3].text
    assert not results[3].scores


@pytest.mark.parametrize("number", range(3))
def test_log_probabilities_are_those_of_the_distribution_that_is_drawn_from(results, number):
    """The oracle's bookkeeping, fed with the answer's own tokens, asks for each of them; its logits are uncached."""
    asked, result = REQUESTS[number], results[number]
    trace, prompt = result.trace, len(PROMPT)
    script = [trace.thread_ids(thread) for thread in range(len(trace.closed))]
    script = [ids[1:] if thread else ids for thread, ids in enumerate(script)]  # [ASYNC] is inserted
    positions = decoding.positions_for(talkative())
    run = decoding.answer(asked, CONFIG, TOKENIZER, talkative().config.context, positions)
    queries, tape = [], None

    def next_id(query: choice.Query) -> int:
        own = script[query.thread][query.number : query.number + 1]
        return own[0] if own else TAGS.end_async if query.thread else TOKENIZER.stop_ids[0]

    try:
        tape, new = next(run)
        while True:
            queries += new
            tape, new = run.send([next_id(query) for query in new])
    except StopIteration:
        pass
    logits_SxV = decoding.uncached(talkative(), [tape], batch=1)[0]
    expected = {}
    for query in queries:
        legal_V = choice.legal(query, asked, TOKENIZER, logits_SxV.shape[1])
        logits_V = choice.penalized(logits_SxV[query.slot], tape, query, asked.rules, TAGS)
        for id, bias in asked.bias:
            logits_V[id] += bias
        logits_V = np.where(legal_V, choice.moved(logits_V, query, asked, TOKENIZER), -np.inf).astype(np.float64)
        expected[query.thread, query.number] = logits_V - np.logaddexp.reduce(logits_V)
    numbers, compared = dict.fromkeys(range(len(trace.closed)), 0), 0
    for thread, id, score in zip(trace.thread.tolist(), trace.token.tolist(), result.scores, strict=True):
        if id == TAGS.async_:
            assert score is None
            continue
        want_V = expected[thread, numbers[thread]]
        numbers[thread] += 1
        assert score.own == pytest.approx(want_V[id], abs=2e-3)
        np.testing.assert_allclose([value for _, value in score.top], np.sort(want_V)[::-1][:20], atol=2e-3)
        np.testing.assert_allclose([want_V[i] for i, _ in score.top], [value for _, value in score.top], atol=2e-3)
        compared += 1
    assert compared > 10
    assert len(trace.token) == len(result.scores) > prompt


def test_a_bias_moves_its_ids_in_its_own_request_only():
    greedy = dataclasses.replace(HOT, temperature=0.0)
    biased, plain = generate(talkative(), [request(greedy, bias=tuple(BIASED.items())), request(greedy)], CONFIG)
    text = [id for id in biased.trace.token.tolist() if not TAGS.is_tag(id)]
    assert set(text) == {40}
    assert 40 not in plain.trace.token.tolist()
    never = generate(talkative(), [request(bias=tuple((id, -100.0) for id in range(64)))], CONFIG)[0]
    assert not set(never.trace.token.tolist()) & set(range(64))


@pytest.mark.parametrize("places", [0, 4])
def test_what_an_ended_request_asked_for_is_no_longer_computed(monkeypatch, places):
    """Its lane's neighbours would pay for its log-probabilities, biases, filters and penalties."""
    taken = []

    def cond(predicate, true, false, *operands):
        taken.append(bool(predicate))
        return lax.cond(predicate, true, false, *operands)

    config = DecodeConfig(lanes=2, rows=4, slots=128)
    spec = loop_spec(talkative(), config, 128, sequential=False, extras=True)
    state = new_state(talkative(), 2, 128, extras=True)
    dear = dataclasses.replace(HOT, top_p=0.5, repetition_penalty=1.2)
    for lane, one in enumerate([request(dataclasses.replace(HOT, temperature=0.0)), request(dear, scored=True)]):
        state = start(talkative(), state, lane, dataclasses.replace(one, bias=((40, 2.0),) * lane), spec)
    for module in (extras, sampling):
        monkeypatch.setattr(module, "lax", SimpleNamespace(**vars(lax) | {"cond": cond}))
    slot_BxR = jnp.full((2, 4), 128).at[0, 0].set(2)
    logits = jnp.zeros((8, talkative().config.vocab))
    for second, expected in ((2, True), (128, False)):  # the dear one feeds, then it has ended
        slot_BxR = slot_BxR.at[1, 0].set(second)
        packed = Packed.of(slot_BxR < 128, places) if places else None
        taken.clear()
        next_token(state, spec, logits[: places or 8], slot_BxR, packed)
        assert len(taken) > 3
        assert any(taken) == expected
