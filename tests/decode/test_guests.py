"""Guests, compared with requests of their own, and with an oracle that has no pool, no automaton and no loop."""

import dataclasses
import functools
import json
import queue
import random

import jax.numpy as jnp
import numpy as np
import pytest
import regex

from pasta_jax.automata import values
from pasta_jax.automata.automaton import listed
from pasta_jax.automata.tokens import over_tokens
from pasta_jax.automata.vocabulary import pieces
from pasta_jax.decode import device_loop
from pasta_jax.decode.device_loop import DeviceLoop
from pasta_jax.decode.engine import open_engine
from pasta_jax.decode.generate import generate, loop_spec, stream
from pasta_jax.decode.guests import room_for
from pasta_jax.decode.interpreter import rows_needed
from pasta_jax.decode.request import Event, Request, Result
from pasta_jax.decode.sampling import draw
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.errors import PastaError
from pasta_jax.fields.threads import Ask, request_of
from pasta_jax.weights.rules import Rules
from tests.helpers.models import toy, uncached
from tests.helpers.traces import tiny_model

pytestmark = pytest.mark.usefixtures("few_programs")
TOKENS = 12
TAIL = r"([ \n]*([,}][ \n]*\"?)?)"
# What each automaton accepts, as an expression of another library that knows about beginnings of matches.
CHAR = r'([^"\\\x00-\x1f]|\\["\\nrtbf])'
FIELDS = {
    f'"{CHAR}{{2,4}}"': values.string(2, 4),
    r"-?(0|[1-9][0-9]{0,17})": values.integer(),
    'true|null|"abc"': values.choice([True, None, "abc"]),
    rf'\[( ?"{CHAR}*"(, ?"{CHAR}*")*)?\]': listed(values.string(), 0, None),
}


def prompts(rng: random.Random, count: int) -> list[tuple[int, ...]]:
    shared = [rng.randrange(256) for _ in range(rng.randrange(1, 90))]
    return [(*shared, *(rng.randrange(256) for _ in range(rng.randrange(1, 30)))) for _ in range(count)]


def template(seed: int, temperature: float, penalty: float = 0.0) -> Request:
    rules = Rules(temperature=temperature, seed=seed, presence_penalty=penalty, frequency_penalty=penalty)
    return Request((), TOKENS, sequential=True, rules=rules, scored=True)


@functools.cache
def asked_apart(seed: int):
    """Prompts, the request that they share, and what requests of their own write."""
    asked, own = prompts(random.Random(seed), 5), template(seed, temperature=seed % 2, penalty=seed // 2)
    each = [dataclasses.replace(own, prompt_ids=ids).with_seed(number) for number, ids in enumerate(asked)]
    return asked, own, generate(toy(), each, DecodeConfig(1, 1, 512))


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_guests_write_what_requests_of_their_own_write(rows):
    for seed in range(4):
        asked, own, apart = asked_apart(seed)
        [together] = generate(toy(), [request_of([Ask(ids) for ids in asked], own)], DecodeConfig(1, rows, 512))
        for one, guest in zip(apart, together.guests, strict=True):
            assert guest.ids == tuple(one.trace.token.tolist())
            assert guest.complete == (one.finish_reason == "stop")
            scores = [score.own for score in one.scores]
            np.testing.assert_allclose([score.own for score in guest.scores], scores, atol=1e-5)


def by_oracle(ids: tuple[int, ...], pattern: str, rules: Rules) -> list[int]:
    """A value, one uncached forward pass a token, under a mask by partial matches of text."""
    model, written = tiny_model(), []
    matcher, complete = regex.compile(pattern + TAIL), regex.compile(pattern)
    for number in range(TOKENS + 1):
        logits_V = uncached(model, [*ids, *written], at=[len(ids) + number - 1])[0]
        text = bytes(written)

        def is_beginning(more: int, text: bytes = text) -> bool:
            # An incomplete character begins any that fits.
            for end in (b"", b"\x80", b"\x80\x80", b"\x80\x80\x80", b"\xa0\x80", b"\x90\x80\x80"):
                try:
                    return matcher.fullmatch((text + bytes([more]) + end).decode(), partial=True) is not None
                except UnicodeDecodeError:
                    continue
            return False

        legal_V = np.array([id < 256 and is_beginning(id) for id in range(384)])
        whole = text.decode(errors="replace")
        if matcher.fullmatch(whole) and not legal_V[:256].any():
            break
        legal_V[324] = complete.fullmatch(whole) is not None
        logits_1xV = np.where(legal_V, logits_V, -1e30).astype(np.float32)[None]
        fields = {field.name: np.asarray([getattr(rules, field.name)]) for field in dataclasses.fields(rules)}
        of_row = Rules(**{name: value.astype(np.uint32) if name == "seed" else value for name, value in fields.items()})
        token = int(draw(logits_1xV, of_row, np.array([0]), np.array([number]))[0])
        if token == 324 or number == TOKENS:
            return written
        written.append(token)
        after = bytes(written).decode(errors="replace")
        # Complete: nothing of the value may follow, or something else does already.
        goes_on = any(complete.fullmatch(after + chr(more), partial=True) for more in range(32, 127))
        if matcher.fullmatch(after) and not (complete.fullmatch(after) and goes_on):
            return written
    return written


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_values_are_those_of_an_oracle_without_pool_and_automaton(temperature):
    model, rng = tiny_model(), random.Random(1)
    vocabulary = pieces(model.tokenizer, model.config.vocab)
    automata = [over_tokens(automaton, vocabulary) for automaton in FIELDS.values()]
    own, asked = template(7, temperature), prompts(rng, len(automata))
    asks = [Ask(ids, automaton) for ids, automaton in zip(asked, automata, strict=True)]
    [result] = generate(model, [request_of(asks, own)], DecodeConfig(1, 3, 512))
    for number, (ids, pattern, guest) in enumerate(zip(asked, FIELDS, result.guests, strict=True)):
        rules = own.with_seed(number).rules
        assert list(guest.ids) == by_oracle(ids, pattern, rules), (pattern, guest)
        if guest.complete:
            json.JSONDecoder().raw_decode(guest.text)


def test_a_value_has_no_more_tokens_than_it_may_have():
    model = tiny_model()
    automaton = over_tokens(values.choice(["abcdefgh"]), pieces(model.tokenizer, model.config.vocab))  # of 10 bytes
    for most in (9, 10):
        own = dataclasses.replace(template(0, 0.0), max_tokens=most)
        [result] = generate(model, [request_of([Ask((1, 2), automaton)], own)], DecodeConfig(1, 3, 512))
        assert [(len(one.ids), one.complete) for one in result.guests] == [(most, most == 10)]


def test_events_and_trace_have_each_token_once():
    model = tiny_model()
    automaton = over_tokens(values.integer(), pieces(model.tokenizer, model.config.vocab))
    asks = [Ask(ids, automaton) for ids in prompts(random.Random(2), 3)]
    *events, result = stream(model, [request_of(asks, template(0, 1.0))], DecodeConfig(1, 3, 512), 2)
    for number, guest in enumerate(result.guests, start=1):
        own = [event for event in events if isinstance(event, Event) and event.thread == number]
        assert [event.token for event in own if event.token < 256] == list(guest.ids)
        assert "".join(event.text for event in own) == guest.text
        assert own[-1].ended == guest.complete
        fed = result.trace.step[result.trace.thread == number].tolist()
        assert [event.step for event in own if not event.ended] == fed
        assert own[-1].step == max([1, *fed])
    assert sorted(result.trace.token.tolist()) == sorted(event.token for event in events if not event.ended)


def test_guests_may_take_more_slots_than_the_context_has():
    model = dataclasses.replace(toy(), config=dataclasses.replace(toy().config, context=64))
    asks = [Ask((*range(20), number)) for number in range(20)]  # 20 shared, 20 of their own, 12 tokens each
    config, own = DecodeConfig(lanes=1, rows=4, slots=512), dataclasses.replace(template(0, 1.0), scored=False)
    engine = open_engine(model, config, 1, topics=False, warm_up=False, guests=room_for([]))
    try:
        rounds: queue.Queue = queue.Queue()
        engine.submit(request_of(asks, own), 4, rounds.put)
        while not isinstance(result := rounds.get(timeout=60)[-1], Result):
            pass
    finally:
        engine.close(drain=False)
    [alone] = generate(model, [request_of(asks, own)], config)
    assert [guest.ids for guest in result.guests] == [guest.ids for guest in alone.guests]


def test_as_many_guests_as_ids_have_threads():
    """Of one id and one token each, they take fewer slots than there are threads for."""
    asks = [Ask((*range(5), number)) for number in range(100)]
    own = dataclasses.replace(template(0, 0.0), max_tokens=1, scored=False)
    [result] = generate(toy(), [request_of(asks, own)], DecodeConfig(lanes=1, rows=4))
    assert len(result.guests) == 100
    with pytest.raises(PastaError, match="100 threads may take 300 tokens, but the pool holds 256"):
        generate(toy(), [request_of(asks, own)], DecodeConfig(lanes=1, rows=4, slots=256))


def test_guests_that_begin_beside_drafts_leave_room_for_their_step(monkeypatch):
    """If a step fits no size of the loop, that never ends. Alone, in the same loop, nothing is drafted or copied."""
    monkeypatch.setattr(device_loop, "KEPT", 0)
    model, rng = toy(), random.Random(0)
    config = DecodeConfig(lanes=3, rows=8, slots=512, packed=(3, 8), forks="admitted", draft="lookup")
    spec = loop_spec(model, config, 512, sequential=False, guests=room_for([]), extras=True)
    loop = DeviceLoop(model, spec, 3, 512, prices=np.ones(len(spec.priced_rows), np.float32))
    ids = tuple(rng.choice([5, 6, 7]) for _ in range(40))  # few, which are easily guessed
    one = Request(ids, 300, sequential=True, bias=((5, 4.0), (6, 4.0)), scored=True)
    requests = dict(enumerate([one, one.with_rules(temperature=1.0, frequency_penalty=0.1)]))  # of one prompt
    for number, request in requests.items():
        loop.submit(number, request, 1)
    for _ in range(25):
        list(loop.round())
    asks = [Ask((*ids, *(rng.randrange(256) for _ in range(60)))) for _ in range(5)]
    requests[9] = dataclasses.replace(request_of(asks, template(0, 1.0, penalty=0.5)), bias=((7, 3.0),))
    loop.submit(9, requests[9], 1)
    run, had_drafts = loop._run, []

    def fitting(steps: int, plain: bool) -> None:
        assert not plain
        had_drafts.append(bool(jnp.any(loop._state.drafts.count > 0)))
        assert rows_needed(loop._state, spec) <= spec.sizes[-1]
        run(steps, plain)

    monkeypatch.setattr(loop, "_run", fitting)
    for _ in range(4):
        list(loop.round())
    assert any(had_drafts)
    assert len(loop.running) == 3
    results: dict[int, Result] = {}
    while 9 not in results:
        results |= {item.request: item for item in loop.round() if isinstance(item, Result)}
    results |= {number: loop.cancel(number) for number in loop.running}
    assert all(results[number].copied == len(ids) for number in (1, 9))
    assert any(result.drafts_kept for result in results.values())
    loop._may_copy = False
    for number, request in requests.items():
        most = request.max_tokens if request.guests else len(results[number].trace.token)
        loop.submit(number, dataclasses.replace(request, max_tokens=most, drafts=False), 64)
        while loop.is_busy:
            alone = [item for item in loop.round() if isinstance(item, Result)]
        assert_alike(results[number], alone[-1])


def assert_alike(result: Result, alone: Result) -> None:
    """Equal tokens, with log-probabilities that differ by what other orders of sums make of them."""
    assert result.trace.thread_ids(0) == alone.trace.thread_ids(0)
    assert [guest.ids for guest in result.guests] == [guest.ids for guest in alone.guests]
    pairs = zip((result, *result.guests), (alone, *alone.guests), strict=True)
    for one, other in pairs:
        np.testing.assert_allclose([s.own for s in one.scores], [s.own for s in other.scores], atol=1e-4)


def test_threads_of_others_are_refused_without_a_row_for_them():
    """Else main would promise chunks that are never written."""
    other = Request((1, 2), TOKENS, sequential=False)
    with pytest.raises(PastaError, match="rows 1: chunks need a row"):
        stream(toy(), [request_of([Ask((1, 2)), Ask((1, 3))], template(0, 0.0)), other], DecodeConfig(2, 1, 256), 1)


def test_what_does_not_fit_is_refused():
    model, own = tiny_model(), template(0, 0.0)
    with pytest.raises(PastaError, match="the context is 512"):
        generate(model, [request_of([Ask((1,) * 505), Ask((1,) * 100)], own)], DecodeConfig(1, 2, 0))
    with pytest.raises(PastaError, match="the pool holds 128"):
        generate(model, [request_of([Ask((1, 2)), *[Ask((1, n)) for n in range(12)]], own)], DecodeConfig(1, 2, 128))
