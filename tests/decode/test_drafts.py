"""Drafts change no answer and save steps; rows that feed them compute what one pass computes; what is drafted."""

import dataclasses
import functools
import itertools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pasta_jax.decode import device_loop
from pasta_jax.decode.admission import PAYS
from pasta_jax.decode.drafts import begin, paying, propose
from pasta_jax.decode.generate import generate, loop_spec
from pasta_jax.decode.interpreter import run
from pasta_jax.decode.replay import prepare
from pasta_jax.decode.request import Result
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.decode.state import LIVE, STOP, empty_state
from pasta_jax.models.pool import put
from tests.decode.test_replay import SLOTS, TOKENIZER, pieces_of, random_pairs, teacher_forced
from tests.decode.test_sampled_programs import EIGHT_LANES, answered, random_requests, talkative
from tests.helpers.few_programs import decode_with_few_programs
from tests.helpers.models import toy
from tests.helpers.replays import logits_of, replayed

TAGS = TOKENIZER.tags
DRAFTING = DecodeConfig(lanes=8, rows=4, slots=80, draft="lookup")


@pytest.fixture(autouse=True)
def free_rows(monkeypatch):
    """Steps of any width cost the same, so that all drafts are fed for which there is room, however few are kept."""
    monkeypatch.setattr(device_loop, "KEPT", 0)
    monkeypatch.setattr(device_loop, "prices_of", lambda model, state, spec: (state, np.ones(len(spec.priced_rows))))


def answer_of(result: Result) -> tuple:
    """What no row may change. Which closing tags of the last step are fed depends on the rows."""
    trace = result.trace
    return trace.linear_ids(), trace.closed, trace.finish, result.text


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (DRAFTING, 100),
        # Steps have four or eight rows, which admission fills as lanes begin and end.
        pytest.param(
            dataclasses.replace(DRAFTING, lanes=4, packed=(4, 8), forks="admitted"), 100, marks=pytest.mark.slow
        ),
        # Packed, the rows of all lanes together leave few for drafts. Without `extended`: test_guesses.py.
        pytest.param(dataclasses.replace(DRAFTING, lanes=2, packed=(2, 4, 8)), 100, marks=pytest.mark.extended),
        pytest.param(dataclasses.replace(DRAFTING, lanes=2, rows=16, widths=(2, 4, 8)), 40, marks=pytest.mark.extended),
        pytest.param(dataclasses.replace(DRAFTING, lanes=1, widths=(1, 2, 3)), 20, marks=pytest.mark.extended),
    ],
)
def test_drafts_change_no_answer_at_any_temperature(config, count):
    plain = answered(100)[:count]
    drafted = generate(talkative(), random_requests(100)[:count], config)
    fed, kept = (sum(getattr(result, name) for result in drafted) for name in ("drafts_fed", "drafts_kept"))
    assert 0 < kept < fed
    assert [result.trace.kept_drafts for result in drafted] == [result.drafts_kept for result in drafted]
    for before, after in zip(plain, drafted, strict=True):
        if before.trace.finish == STOP:
            assert answer_of(after) == answer_of(before)
            assert after.trace.steps <= before.trace.steps or config.forks == "admitted"  # chunks wait
            continue
        # An answer that is cut off has what its threads fed until then, and drafts change how far each had come.
        for number in range(min(len(before.trace.closed), len(after.trace.closed))):
            pair = sorted((before.trace.thread_ids(number), after.trace.thread_ids(number)), key=len)
            assert pair[1][: len(pair[0])] == pair[0]
    assert sum(result.trace.steps for result in drafted) < sum(result.trace.steps for result in plain)


def test_sequential_answers_have_drafts_too():
    """Beside an answer in threads, so that the programs are those of other tests."""
    requests = [dataclasses.replace(request, sequential=True) for request in random_requests(8)]
    forks = random_requests(1)
    plain, drafted = (generate(talkative(), requests + forks, config)[:-1] for config in (EIGHT_LANES, DRAFTING))
    assert [result.trace.token.tolist() for result in drafted] == [result.trace.token.tolist() for result in plain]
    assert sum(result.drafts_kept for result in drafted) == sum(
        before.trace.steps - after.trace.steps for before, after in zip(plain, drafted, strict=True)
    )


def test_rows_with_drafts_compute_what_one_forward_pass_computes(monkeypatch):
    decode_with_few_programs(monkeypatch)
    model, config = toy(stacked=False), DecodeConfig(lanes=8, rows=4, slots=SLOTS, draft="lookup")
    pairs = [(prompt, 2 * program) for prompt, program in random_pairs(16, seed=5) if 2 * len(program) < 200]
    config = dataclasses.replace(config, lanes=len(pairs))
    state, spec, script = prepare(model, *map(list, zip(*pairs, strict=True)), config, keep_hidden=True)
    state = run(model.params, state, np.int32(10**6), np.False_, config=model.config, spec=spec, script=script)
    theirs, structures = teacher_forced(model, pairs)
    drafted = []  # the threads that fed several tokens in one step
    for lane, (pair, parts) in enumerate(zip(pairs, structures, strict=True)):
        one = replayed(state, lane, *pair, TAGS)
        at, counts = np.unique([one.step, one.thread], axis=1, return_counts=True)
        drafted += at[1, (counts > 1) & (at[0] > 0)].tolist()
        assert np.array_equal(one.token, np.asarray(pair[0] + pair[1])[one.linear])
        assert np.array_equal(one.position, parts.position[one.linear])
        both = (pieces_of(hidden, SLOTS)[0] for hidden in (one.hidden, theirs[lane, one.linear]))
        ours_NxV, theirs_NxV = (logits_of(model.params, model.config, hidden[None])[0] for hidden in both)
        np.testing.assert_allclose(ours_NxV, theirs_NxV, atol=1e-5, rtol=0)
    assert len(drafted) > 20
    assert 0 < sum(thread > 0 for thread in drafted) < len(drafted)


@functools.cache
def proposing():
    model = talkative()
    config = dataclasses.replace(DRAFTING, lanes=1)
    spec = dataclasses.replace(loop_spec(model, config, 80, sequential=False), digits=tuple(range(48, 58)))
    return spec, jax.jit(functools.partial(propose, spec=spec))


def drafts_after(
    main: list[int], chunk: list[int] | None = None, allowed: bool = True, price: float = 0, limit: int = 80
) -> list[int]:
    """What is drafted if main, or if there is a chunk, that feeds its last id next. `price`: of the second row."""
    spec, proposes = proposing()
    state = empty_state(talkative().config, 1, 80, jnp.float32, False, drafts=spec.drafts)
    prices = jnp.array([1 + price * (rows - 1) for rows in spec.priced_rows], jnp.float32)
    state = dataclasses.replace(state, drafts=begin(state.drafts, 0, allowed), prices=prices)
    fed = [(0, id) for id in main[: -1 if chunk is None else None]] + [(1, id) for id in (chunk or [])[:-1]]
    thread_N, token_N = np.array(fed, np.int32).T
    at = 0, np.arange(len(fed))
    pool = put(put(state.pool, at, chunk=thread_N, token=token_N), (0,), fill=len(fed))
    threads = put(state.threads, (0, 0), status=LIVE, token=main[-1] if chunk is None else TAGS.sync)
    if chunk is not None:
        threads = put(threads, (0, 1), status=LIVE, token=chunk[-1])
    request = put(state.request, (0,), limit=limit)
    drafts = proposes(dataclasses.replace(put(state, (0,), live=True), pool=pool, threads=threads, request=request))
    return drafts.token[0, : int(drafts.count[0])].tolist()


def test_what_followed_the_longest_run_of_the_same_ids_is_drafted():
    abcd, close = [97, 98, 99, 100], TAGS.close
    assert drafts_after([*abcd, 7, 97, 98]) == [99, 100, 7, 97]
    assert drafts_after([*abcd, 7, 98]) == [99, 100, 7]
    assert drafts_after([97, 98, 5, 97, 98, 6, 97, 98]) == [6, 97]  # the latest
    assert drafts_after([97, 98, 5, 99, 98, 6, 97, 98]) == [5, 99, 98, 6, 97]  # the longest
    assert drafts_after([*range(1, 20), 1]) == [2, 3, 4, 5, 6, 7, 8]  # at most as many as a step has rows
    assert drafts_after([*range(1, 20), 1], limit=23) == [2, 3, 4]  # and as the answer may have
    assert drafts_after([97, 98, 3, 4, 5]) == []
    # A list's next number, and the promise after it; a promise's length and its topic are main's own.
    listed = [10, 49, 46, TAGS.promise, 97, close(3), 10, 50, 46, TAGS.promise]
    assert drafts_after([*listed, 98, close(5)]) == [10, 51, 46, TAGS.promise]
    assert drafts_after([*listed, 98, close(5), 10, 51, 46]) == [TAGS.promise]
    assert drafts_after([*listed[:-1], TAGS.promise]) == []
    # A chunk reads the others, but what it or main must sample to end, join or stop is no draft.
    assert drafts_after([*abcd, TAGS.promise, 5, close(1)], [TAGS.async_, 97, 98]) == [99, 100]
    assert drafts_after([97, 98, TAGS.sync, 97, 98]) == []
    assert drafts_after([97, 98, TOKENIZER.stop_ids[0], 97, 98]) == []


def test_drafts_that_dont_pay_or_arent_allowed_are_not_fed():
    abcd, listed = [97, 98, 99, 100], [TAGS.promise, 97, TAGS.close(3), 10, 49, 46, TAGS.promise, 98, TAGS.close(2)]
    assert drafts_after([*abcd, 7, 97, 98], allowed=False) == []
    assert drafts_after([*abcd, 7, 98], price=0.3) == []  # after one equal id, a fifth are right
    assert drafts_after([*abcd, 7, 97, 98], price=0.3) == [99]
    assert drafts_after([*abcd, 7, 97, 98], price=0.5) == []
    assert drafts_after(listed, price=0.3) == [10, 50, 46, TAGS.promise]
    assert drafts_after(listed, price=0.9) == []


@pytest.mark.parametrize("packed", [(), (1, 2, 4, 6)])
def test_as_many_drafts_are_fed_as_save_most_time(packed):
    rng, spec = np.random.default_rng(1), proposing()[0]
    spec = dataclasses.replace(spec, widths=(1, 2, 4, 8), packed=packed)
    paid = jax.jit(functools.partial(paying, spec=spec))
    counts = set()
    for lanes in (1, 1, 1, 3) * 50:
        rows, most, right = rng.integers(0, 3, lanes), rng.integers(0, 8, lanes), rng.uniform(0.1, 1, lanes)
        prices = np.sort(rng.uniform(1, rng.choice([1.1, 2.0, 8.0]), len(spec.priced_rows))).astype(np.float32)
        price = np.interp(np.arange(spec.sizes[-1] + 1), spec.priced_rows, prices)
        drafts = begin(empty_state(talkative().config, lanes, 8, jnp.float32, False, drafts=7).drafts, 0, True)
        right_BxK = jnp.broadcast_to(jnp.array(right, jnp.float32)[:, None], drafts.right.shape)
        drafts = dataclasses.replace(drafts, right=right_BxK, tried=jnp.ones_like(right_BxK))
        ours = np.array(paid(drafts, jnp.array(most), jnp.array(rows), jnp.array(prices)))
        assert all(ours <= most)
        groups = [range(lanes)] if packed else [[lane] for lane in range(lanes)]
        for group in groups:  # lanes whose drafts share a step
            before = sum(rows[lane] for lane in group)

            def gain(drafted: tuple[int, ...], group=group, before=before, price=price, right=right) -> float:
                if before + sum(drafted) >= len(price):
                    return -np.inf
                pairs = zip(group, drafted, strict=True)
                kept = sum(right[lane] ** n for lane, count in pairs for n in range(1, count + 1))
                return kept * price[before] / max(1, before) - price[before + sum(drafted)] + price[before]

            every = itertools.product(*(range(most[lane] + 1) for lane in group))
            most_gained, least, fed = max(map(gain, every)), (PAYS - 1) * price[before], tuple(ours[list(group)])
            if most_gained > least + 1e-4:
                assert gain(fed) >= most_gained - 1e-4
            elif most_gained < least - 1e-4:
                assert not any(fed)
        counts |= {*ours.tolist()}
    assert counts >= {0, 1, 2, 3}


def drawn(result: Result) -> list[tuple[int, int, int]]:
    """The thread of each token that was drawn, its number there, and its place in the trace."""
    places = [np.flatnonzero(result.trace.thread == thread) for thread in range(len(result.trace.closed))]
    numbered = [(thread, *pair) for thread, fed in enumerate(places) for pair in enumerate(fed.tolist())]
    return [item for item in numbered if result.scores[item[2]] is not None]


def test_penalties_biases_and_log_probabilities_are_those_without_drafts(monkeypatch):
    decode_with_few_programs(monkeypatch)
    requests = [
        dataclasses.replace(
            request.with_rules(frequency_penalty=0.4 * (number % 2), presence_penalty=0.3 * (number % 3)),
            bias=((number, 2.0), (300, -1.0)) if number % 4 else (),
            scored=number % 5 > 0,
            drafts=number % 7 > 0,
        )
        for number, request in enumerate(random_requests(40))
    ]
    plain, drafted = (generate(talkative(), requests, config) for config in (EIGHT_LANES, DRAFTING))
    compared = 0
    for request, before, after in zip(requests, plain, drafted, strict=True):
        assert request.drafts or after.drafts_fed == 0
        if before.trace.finish != STOP:
            continue
        assert answer_of(after) == answer_of(before)
        own = [
            {(thread, number): result.scores[at].own for thread, number, at in drawn(result)} if request.scored else {}
            for result in (before, after)
        ]
        for key in own[0].keys() & own[1].keys():
            assert own[1][key] == pytest.approx(own[0][key], abs=1e-4)
            compared += 1
    assert compared > 100
    assert sum(result.drafts_kept for result in drafted) > 10


def test_where_few_drafts_are_kept_the_next_tokens_have_none(monkeypatch):
    requests, plain = random_requests(40), answered(100)[:40]

    def counts(kept: float, rest: int) -> tuple[int, int]:
        """Rounds with drafts and without, of the loop's answers, which are those without drafts."""
        rounds = Counter()

        def counted(*args, spec, **named):
            rounds[spec.drafts > 0] += 1
            return run(*args, spec=spec, **named)

        monkeypatch.setattr(device_loop, "run", counted)
        monkeypatch.setattr(device_loop, "JUDGED", 32)
        monkeypatch.setattr(device_loop, "KEPT", kept)
        monkeypatch.setattr(device_loop, "REST", rest)
        drafted = generate(talkative(), requests, DRAFTING)
        for before, after in zip(plain, drafted, strict=True):
            if before.trace.finish == STOP:
                assert answer_of(after) == answer_of(before)
        return rounds[True], rounds[False]

    with_drafts, without = counts(0, 64)
    assert with_drafts > 10
    assert without == 1  # which compiles
    some, others = counts(1.1, 64)
    assert 1 < some < others
    assert counts(1.1, 10**6)[0] < some
