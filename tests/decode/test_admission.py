"""Admitted forks: every lane feeds, wider steps pay, and answers are those of the oracle with the same schedule."""

import dataclasses
import functools
import json
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pasta_jax.decode import cost, device_loop
from pasta_jax.decode.admission import PAYS, no_prices, price_of, room_for
from pasta_jax.decode.device_loop import DeviceLoop
from pasta_jax.decode.generate import generate, loop_spec
from pasta_jax.decode.interpreter import rows_needed, run
from pasta_jax.decode.request import Result
from pasta_jax.decode.rows import feeding
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.decode.state import ENDED, LIVE, STOP, UNUSED, DecodeState, empty_state
from pasta_jax.device import width
from pasta_jax.errors import PastaError
from pasta_jax.files import fingerprints
from pasta_jax.models.sharding import make_mesh, shard
from pasta_jax.oracle import decoding
from tests.decode.test_sampled_programs import TAGS, answered, assert_same_answer, random_requests, talkative
from tests.helpers.models import UNTIED

LANES, SLOTS, SIZES = 8, 80, (4, 8, 12)
CONFIG = DecodeConfig(lanes=LANES, rows=4, slots=SLOTS, packed=SIZES, forks="admitted")


@functools.cache
def answers(prices: Sequence[float]) -> list[Result]:
    """Answers of eight requests at a time, where steps of 1, 4, 5, 8, 9 and 12 rows have these prices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_loop, "prices_of", lambda model, state, spec: (state, np.array(prices)))
        return generate(talkative(), random_requests(LANES), CONFIG)


def schedule_of(result: Result) -> list[set[int]]:
    trace = result.trace
    return [set(trace.thread[trace.step == step].tolist()) for step in range(1, trace.steps + 1)]


PRICED = (1, 4, 5, 8, 9, 12)
DEAR, SOME, FREE = (1.0, 1.0, 4.0, 4.0, 16.0, 16.0), (1.0, 1.0, 1.7, 1.7, 2.5, 2.5), tuple(no_prices(PRICED))
PRICES = {"dear": DEAR, "some": SOME, "free": FREE}


@pytest.mark.parametrize("prices", PRICES.values(), ids=PRICES)
def test_every_lane_feeds_and_no_step_is_wider_than_pays(prices):
    schedules = [schedule_of(result) for result in answers(prices)]
    widest = 0
    for step in range(max(map(len, schedules))):
        fed = [len(schedule[step]) for schedule in schedules if step < len(schedule)]
        assert all(fed)
        narrowest = next(size for size in SIZES if size >= len(fed))
        assert sum(fed) <= (narrowest if prices == DEAR else SIZES[-1])
        if prices == SOME and sum(fed) > narrowest:
            rates = {size: min(size, sum(fed)) / price for size, price in zip(SIZES, prices[1::2], strict=True)}
            assert max(rates.values()) >= PAYS * rates[narrowest]
        widest = max(widest, sum(fed))
    assert widest > LANES or prices != FREE


@pytest.mark.parametrize("prices", PRICES.values(), ids=PRICES)
def test_answers_are_those_of_the_oracle_that_feeds_the_same_threads(prices):
    requests, results = random_requests(LANES), answers(prices)
    schedules = [schedule_of(result) for result in results]
    expected = decoding.sampled(talkative(), requests, CONFIG, schedules=schedules)
    for request, result, outcome in zip(requests, results, expected, strict=True):
        assert_same_answer(result, outcome, len(request.prompt_ids))
    assert sum(len(result.trace.closed) > 1 for result in results) > 2


@pytest.mark.parametrize(
    ("least", "most", "rows"),
    [
        (1, 1, 1),
        (1, 2, 2),
        (1, 3, 4),
        (1, 5, 4),
        (1, 6, 8),
        (4, 5, 4),
        (4, 8, 8),
        (8, 10, 8),
        (8, 14, 8),
        (8, 16, 16),
        (3, 3, 4),
    ],
)
def test_a_step_has_the_size_that_feeds_most_rows_per_second(least, most, rows):
    """As measured in 4 bits: half of 16 rows would cost more than 8."""
    assert room_for(jnp.int32(least), jnp.int32(most), ONE_PRICE, SIXTEEN) == rows


# Measured in 4 bits: by sizes alone, as if all steps of one took equally long, and by rows.
SIXTEEN = dataclasses.replace(loop_spec(talkative(), CONFIG, SLOTS, sequential=False), packed=(1, 2, 4, 8, 16))
ONE_PRICE = jnp.array([8.5, 9.6, 12.7, 12.7, 17.4, 17.4, 28.9, 28.9], jnp.float32)
BY_ROWS = jnp.array([4.3, 4.8, 5.7, 5.9, 7.4, 8.6, 11.3, 13.9], jnp.float32)


def test_a_step_costs_what_its_rows_do():
    assert SIXTEEN.priced_rows == (1, 2, 3, 4, 5, 8, 9, 16)
    rows = jnp.array([0, 1, 2, 3, 6, 8, 9, 10, 16, 17])
    expected = [4.3, 4.3, 4.8, 5.7, 7.8, 8.6, 11.3, 11.3 + 2.6 / 7, 13.9, np.inf]
    np.testing.assert_allclose(price_of(rows, BY_ROWS, SIXTEEN), expected, rtol=1e-5)
    assert price_of(rows, ONE_PRICE, SIXTEEN)[7] == ONE_PRICE[-1]
    # Of ten threads in eight lanes, two would cost more than they feed; of sixteen, the others don't.
    assert [int(room_for(jnp.int32(8), jnp.int32(most), BY_ROWS, SIXTEEN)) for most in (10, 16)] == [8, 16]


def test_measuring_compiles_nothing_and_leaves_no_trace(monkeypatch, tmp_path):
    """The real measurement: answers after it are those of a loop whose prices were given."""
    spec = loop_spec(talkative(), CONFIG, SLOTS, sequential=False, topics=True)

    def by(loop: DeviceLoop) -> dict[int, str]:
        for number, request in enumerate(random_requests(2 * LANES)):
            loop.submit(number, request, 64)
        items = []
        while loop.is_busy:
            items += loop.round()
        return {item.request: item.text for item in items if isinstance(item, Result)}

    monkeypatch.setenv("PASTA_JAX_CACHE", str(tmp_path))
    given = DeviceLoop(talkative(), spec, LANES, SLOTS, prices=no_prices(PRICED))
    programs = run._cache_size()
    measured = DeviceLoop(talkative(), spec, LANES, SLOTS)
    assert run._cache_size() == programs
    (kept,) = (tmp_path / "widths").iterdir()
    assert [rows for rows, _ in json.loads(kept.read_text())["steps"]] == list(PRICED)
    measured._state = dataclasses.replace(measured._state, prices=jnp.array(no_prices(PRICED)))
    assert by(measured) == by(given)


@pytest.mark.parametrize(("lanes", "rows", "sizes"), [(1, 2, ()), (1, 4, (2, 3)), (2, 2, (2, 3)), (3, 4, (3, 9, 11))])
def test_what_is_measured_computes_as_many_rows_as_its_size(lanes, rows, sizes):
    config = DecodeConfig(lanes=lanes, rows=rows, slots=SLOTS, widths=sizes, packed=sizes, forks="admitted")
    spec = loop_spec(talkative(), config, SLOTS, sequential=False)
    spec = dataclasses.replace(spec, packed=() if lanes == 1 else (*sizes, lanes * rows))
    empty = empty_state(UNTIED, lanes, SLOTS, jnp.float32, stacked=False)
    empty = dataclasses.replace(empty, prices=jnp.ones(len(spec.priced_rows), jnp.float32))
    needed = jax.jit(rows_needed, static_argnames="spec")
    assert [int(needed(cost._running(empty, spec, size), spec)) for size in spec.priced_rows] == [*spec.priced_rows]


def test_whole_answers_are_the_eager_ones_only_later():
    eager, late = answered(100)[:LANES], answers(DEAR)
    whole = [(a, b) for a, b in zip(eager, late, strict=True) if a.trace.finish == b.trace.finish == STOP]
    assert whole
    for one, other in whole:
        assert one.text == other.text
        assert one.trace.program() == other.trace.program()
    assert sum(b.trace.steps for _, b in whole) > sum(a.trace.steps for a, _ in whole)


def forked(promises=(), begun=(), ended=(), main=97) -> DecodeState:
    """A lane whose main, about to feed an id, has made these promises; some chunks have begun or ended."""
    state = empty_state(UNTIED, 1, SLOTS, jnp.float32, stacked=False)
    numbers = np.arange(state.threads.status.shape[1])
    columns = {
        "status": np.where(np.isin(numbers, ended), ENDED, np.where(numbers <= len(promises), LIVE, UNUSED)),
        "token": np.where(numbers == 0, main, TAGS.async_),
        "count": np.isin(numbers, begun),
        "tens": np.array([0, *promises, *[0] * (len(numbers) - 1 - len(promises))]),
    }
    threads = {name: jnp.asarray(column, jnp.int32)[None] for name, column in columns.items()}
    return dataclasses.replace(
        state,
        threads=dataclasses.replace(state.threads, **threads),
        request=dataclasses.replace(state.request, limit=jnp.array([SLOTS])),
        live=jnp.array([True]),
        spawned=jnp.array([len(promises)]),
    )


def fed(state: DecodeState, room: int) -> set[int]:
    """The threads that feed in a step of at most so many rows."""
    config = DecodeConfig(lanes=1, rows=4, slots=SLOTS, widths=(1, 2, 3), forks="admitted")
    spec = loop_spec(talkative(), config, SLOTS, sequential=False)
    prices = jnp.array([1e-3 if rows == room else 1.0 for rows in spec.priced_rows])
    feeds_1xM, _ = feeding(dataclasses.replace(state, prices=prices), spec)
    return set(np.flatnonzero(feeds_1xM[0]).tolist())


def test_longest_promise_first():
    state = forked(promises=(3, 9, 5), begun=())
    assert fed(state, room=2) == {0, 2}
    assert fed(state, room=3) == {0, 2, 3}
    assert fed(forked(promises=(3, 9, 5), begun=(1,)), room=2) == {0, 1}


def test_a_chunk_that_waits_keeps_a_slot():
    """Else main can promise more chunks, of two tokens each, than there are threads."""
    state = forked(promises=(3, 9, 5), begun=(1,))
    for used, feeds in ((SLOTS - 4, {0, 1}), (SLOTS - 3, set())):
        assert fed(dataclasses.replace(state, pool=dataclasses.replace(state.pool, fill=jnp.array([used]))), 2) == feeds


def test_main_feeds_its_sync_after_the_last_chunk():
    state = forked(promises=(3, 9), begun=(1, 2), ended=(1, 2), main=TAGS.sync)
    assert fed(state, room=1) == {2}
    assert fed(state, room=2) == {1, 2}
    assert fed(state, room=3) == {0, 1, 2}


def test_rows_of_several_lanes_must_be_packed():
    with pytest.raises(PastaError, match=r"decoding\.forks"):
        loop_spec(talkative(), dataclasses.replace(CONFIG, packed=()), CONFIG.slots, sequential=False)


def test_prices_are_those_of_a_mesh(monkeypatch):
    """The same devices, divided otherwise, take other times."""
    seen = []

    def width_of(about, measure):
        seen.append(fingerprints.of_data(about))
        return width.Width(tuple((rows, 1.0) for rows in spec.priced_rows))

    monkeypatch.setattr(cost.width, "width_of", width_of)
    model = talkative()
    spec = loop_spec(model, CONFIG, SLOTS, sequential=False)
    state = empty_state(model.config, LANES, SLOTS, jnp.float32, False, prices=len(spec.priced_rows))
    for mesh in (None, (8, 1), (4, 2), (8, 1)):
        params = model.params if mesh is None else shard(model.params, make_mesh(*mesh))
        cost.prices_of(dataclasses.replace(model, params=params), state, spec)
    assert seen[1] == seen[3]
    assert len(set(seen)) == 3
