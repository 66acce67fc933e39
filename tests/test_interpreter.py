"""The interpreter equals the oracle, on scripted and on sampled programs, and is invariant to what must not matter.

Scripted programs show which thread feeds what, when and where, and the mask; sampled ones diverge at any wrong logit.
"""

import dataclasses
import functools
import random
import re
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pasta_jax.decode import generate as decoding
from pasta_jax.decode import interpreter, reference
from pasta_jax.decode.generate import DecodeConfig, Request, Result, generate, rules_for, start, stream
from pasta_jax.decode.interpreter import Script, run
from pasta_jax.decode.prefill import admit, prefill
from pasta_jax.decode.replay import replay_stream, script_for
from pasta_jax.decode.sampling import Sampling
from pasta_jax.decode.state import BUDGET, LENGTH, OPEN, OWN, STOP, DecodeState, empty_state
from pasta_jax.lang.program import Chunk, Program, Sync, Text
from pasta_jax.lang.structure import Place, Positions, visible
from pasta_jax.models.config import PRESETS
from pasta_jax.models.weights import Model
from tests import models
from tests.byte_tokenizer import ByteTokenizer
from tests.models import random_params

TOKENIZER = ByteTokenizer()
TAGS = TOKENIZER.tags
SLOTS = 256
LONGEST = 480  # ids of a scripted program: nearly twice what the pool holds
# The smallest possible model: where all tokens are forced, only the state's integers are compared.
TINY = dataclasses.replace(models.TINY, embed=4, ff=4, head_dim=2, context=4096)


@functools.cache
def tiny() -> Model:
    return Model("tiny", TINY, jax.tree.map(jnp.asarray, random_params(TINY, 1)), TOKENIZER)


# Scripted programs


def random_parts(rng: random.Random) -> list[Text | Chunk | Sync]:
    """Up to 20 forks and all edge cases: empty topics and chunks, joins in a row, a promise or join at the end."""

    def text(longest: int) -> str:
        length = rng.choice([0, 0, 1, 2, rng.randrange(longest + 1), rng.randrange(longest + 1)])
        return "".join(chr(rng.randrange(128)) for _ in range(length))

    longest = rng.choice([3, 10, 60])
    weights = rng.choice([(3, 3, 1), (1, 6, 1), (0, 1, 0), (2, 2, 2), (6, 1, 1)])
    parts, room, forks = [], rng.choice([10, 60, 150, LONGEST]), rng.randrange(21)
    for kind in rng.choices((Text, Chunk, Sync), weights, k=40):
        if kind is Text:
            part, size = Text(words := text(longest)), len(words)
        elif kind is Chunk:
            tens = rng.choice([1, 2, rng.randint(1, 64)])
            part, size = Chunk(topic := text(3), tens, words := text(longest)), len(topic) + len(words) + 4
            forks -= 1
        else:
            part, size = Sync(), 1
        room -= size
        if room < 0 or forks < 0:
            break
        parts.append(part)
    return parts


def script_of(parts: list[Text | Chunk | Sync]) -> list[list[int]]:
    """The tokens of each thread: main's, then every chunk's."""
    main, chunks = [], []
    for part in parts:
        match part:
            case Text(text):
                main += text.encode()
            case Chunk(topic, tens, text):
                main += [TAGS.promise, *topic.encode(), TAGS.close(tens)]
                chunks.append([*text.encode(), TAGS.end_async])
            case Sync():
                main.append(TAGS.sync)
    return [[*main, TOKENIZER.end_of_turn], *chunks]


def random_budget(rng: random.Random, length: int) -> int:
    return rng.choice([LONGEST, rng.randint(1, length + 1)])


@dataclasses.dataclass(frozen=True)
class LaneRecord:
    """What one lane of the device holds at the end."""

    token: list[int]
    thread: list[int]
    step: list[int]
    position: list[int]
    sees: np.ndarray
    finish: int
    closed: list[int]
    steps: int
    live: bool


def read_lanes(state: DecodeState) -> list[LaneRecord]:
    names = ("token", "chunk", "step", "position", "epoch", "main")
    pool = {name: np.asarray(getattr(state.pool, name)) for name in names}
    rest = (state.pool.fill, state.finish, state.threads.closed, state.spawned, state.step, state.live)
    fill, finish, closed, spawned, steps, live = map(np.asarray, rest)
    records = []
    for lane in range(state.lanes):
        at = {name: field[lane, : fill[lane]] for name, field in pool.items()}
        there = at["step"][None, :] <= at["step"][:, None]  # written before anyone attends
        place = Place(at["chunk"], at["epoch"], at["main"])
        sees = visible(there, place.queries(), place.keys())
        columns = [at[name].tolist() for name in ("token", "chunk", "step", "position")]
        closings = closed[lane, 1 : spawned[lane] + 1].tolist()
        records.append(LaneRecord(*columns, sees, int(finish[lane]), closings, int(steps[lane]), bool(live[lane])))
    return records


def assert_same_record(record: LaneRecord, answer: reference.Answer) -> None:
    tape = answer.tape
    assert record.token == tape.token
    assert record.thread == tape.thread
    assert record.step == tape.step
    assert record.position == tape.position
    assert np.array_equal(record.sees, tape.sees[: len(tape), : len(tape)])
    assert record.finish == answer.finish
    assert record.closed == answer.closed
    assert record.steps == answer.steps
    assert not record.live


@pytest.mark.parametrize(
    ("count", "config", "positions"),
    [
        (950, DecodeConfig(lanes=8, rows=4, slots=SLOTS), Positions()),
        (300, DecodeConfig(lanes=8, rows=2, slots=SLOTS), Positions("constant", 7)),
        (300, DecodeConfig(lanes=8, rows=3, slots=SLOTS), Positions("shared_start")),
        (300, DecodeConfig(lanes=8, rows=8, slots=SLOTS, widths=(3, 5)), Positions("shared_start")),
        (100, DecodeConfig(lanes=3, rows=4, slots=SLOTS), Positions()),
        (50, DecodeConfig(lanes=1, rows=2, slots=SLOTS), Positions("shared_start")),
    ],
    ids=lambda value: f"lanes{value.lanes}-rows{value.rows}" if isinstance(value, DecodeConfig) else str(value),
)
def test_scripted_programs_leave_the_records_of_the_oracle(count, config, positions):
    """Ids, threads, steps, positions, slot order, mask and finish, in lanes that are reused many times."""
    rng = random.Random(f"{config} {positions}")
    model = dataclasses.replace(tiny(), positions=positions)
    rules = rules_for(model, config, SLOTS, sequential=False)
    # Prefill does not depend on rows: one compiled program.
    prefill_rules = rules_for(tiny(), dataclasses.replace(config, rows=2), SLOTS, sequential=False)
    state = empty_state(TINY, config.lanes, SLOTS, jnp.float32, stacked=False)
    done, ends = 0, Counter()
    while done < count:
        some = min(rng.choice([config.lanes, rng.randint(1, config.lanes)]), count - done)
        lanes = rng.sample(range(config.lanes), some)
        requests, scripts, programs = {}, {}, [[]] * config.lanes
        for lane in lanes:
            parts = random_parts(rng)
            scripts[lane] = script_of(parts)
            programs[lane] = Program(tuple(parts)).ids(TOKENIZER)
            # A prompt may hold any id; tags in it have no meaning.
            prompt = tuple(rng.randrange(384) for _ in range(rng.choice([1, 2, 9, rng.randint(1, 32)])))
            budget = random_budget(rng, len(programs[lane]))
            requests[lane] = Request(prompt, budget, Sampling(), False, LONGEST, LONGEST)
        script = script_for(programs, TAGS, TOKENIZER.end_of_turn, SLOTS)
        tokens = np.full((config.lanes, LONGEST + 1), TOKENIZER.end_of_turn, np.int32)
        tokens[:, : script.tokens.shape[1]] = script.tokens
        for lane, request in requests.items():
            state = start(model, state, lane, request, prefill_rules, first=scripts[lane][0][0])
        script = Script(jnp.asarray(tokens), script.start)
        state = run(model.params, state, np.int32(10**6), np.False_, config=TINY, rules=rules, script=script)
        records = read_lanes(state)
        for lane in lanes:
            answer = reference.scripted(requests[lane], config, TOKENIZER, TINY.context, positions, scripts[lane])
            assert_same_record(records[lane], answer)
            ends[answer.finish] += 1
            ends["forks"] += len(answer.closed)
            ends["most forks"] = max(ends["most forks"], len(answer.closed))
            ends["cut short"] += OPEN in answer.closed
        done += some
    # All outcomes must occur often, or the programs test little.
    assert min(ends[STOP], ends[LENGTH], ends["cut short"]) > count // 20
    assert ends["forks"] > count
    assert ends["most forks"] >= 15


def test_the_worked_example_is_correct():
    """The table in the source of interpreter.py equals a replay."""
    source = Path(interpreter.__file__).read_text()
    table = [line.split() for line in re.findall(r"^# +(\d+ +\d:.*)$", source, re.MULTILINE)]
    program = Program((Chunk("", 1, "abc"), Chunk("", 1, "d"), Chunk("", 1, "e"), Sync(), Text(".")))
    request = Request((63,), 1, Sampling(), False, 1, 1)
    config = DecodeConfig(lanes=1, rows=3, slots=SLOTS)
    *_, result = replay_stream(tiny(), request, program.ids(TOKENIZER), config, round_steps=100)
    names = {TAGS.promise: "[P]", TAGS.close(1): "[P:1]", TAGS.async_: "[A]", TAGS.end_async: "[/A]", TAGS.sync: "[S]"}
    expected = [[str(step)] for step in range(1, result.trace.steps + 1)]
    columns = (result.trace.step, result.trace.thread, result.trace.token, result.trace.position)
    for step, thread, token, position in zip(*map(np.ndarray.tolist, columns), strict=True):
        expected[step - 1].append(f"{thread}:{names.get(token) or chr(token)}@{position}")
    fill = 1 + np.cumsum([len(row) - 1 for row in expected])
    expected = [[*row, str(used)] for row, used in zip(expected, fill, strict=True)]
    assert [row[: len(cells)] for row, cells in zip(table, expected, strict=True)] == expected


# Sampled programs


@functools.cache
def talkative() -> Model:
    """The toy with a head that samples tags often, so that only the interpreter's mask keeps answers well-formed."""
    config = dataclasses.replace(PRESETS["toy"], tied_head=False)
    params = random_params(config, 5)
    for ids, factor in (([TAGS.promise], 10), ([TAGS.end_async, TAGS.sync], 7), ([TOKENIZER.end_of_turn], 6)):
        params["head"][ids] *= factor
    return Model("talkative", config, jax.tree.map(jnp.asarray, params), TOKENIZER)


@functools.cache
def hot_and_tiny() -> Model:
    """The smallest model, with a head that samples every tag about as often as any letter."""
    config = dataclasses.replace(TINY, tied_head=False)
    return Model("hot", config, jax.tree.map(jnp.asarray, random_params(config, 5)), TOKENIZER)


EIGHT_LANES = DecodeConfig(lanes=8, rows=4, slots=80)
SAMPLINGS = (
    Sampling(temperature=1.0),
    Sampling(temperature=1.0, top_k=40),
    Sampling(temperature=1.0, top_p=0.9),
    Sampling(temperature=0.7, top_k=100, top_p=0.95),
    Sampling(),
)


def random_request(rng: random.Random) -> Request:
    sampling = dataclasses.replace(rng.choice(SAMPLINGS), seed=rng.randrange(2**32))
    return Request(
        prompt_ids=tuple(rng.randrange(384) for _ in range(rng.randint(1, 16))),
        max_tokens=rng.choice([100, 60, 60, rng.randint(1, 30)]),
        sampling=sampling,
        sequential=rng.random() < 0.05,
        max_topic_tokens=rng.choice([0, 3, 8]),
        max_chunk_tokens=rng.choice([0, 5, 12, 100]),
    )


def random_requests(count: int) -> list[Request]:
    rng = random.Random(count)
    return [random_request(rng) for _ in range(count)]


@functools.cache
def answered(count: int):
    """Results of `generate` that several tests share."""
    return generate(talkative(), random_requests(count), EIGHT_LANES)


def fields_of(result: Result) -> tuple:
    """A result's fields, without times, in a form that compares."""
    trace = result.trace
    columns = (trace.token, trace.thread, trace.step, trace.position)
    return (*(column.tolist() for column in columns), list(trace.closed), trace.finish, trace.steps, result.text)


def assert_same_answer(result, answer: reference.Answer, prompt: int) -> None:
    tape, trace = answer.tape, result.trace
    assert trace.token.tolist() == tape.token[prompt:]
    assert trace.thread.tolist() == tape.thread[prompt:]
    assert trace.step.tolist() == tape.step[prompt:]
    assert trace.position.tolist() == tape.position[prompt:]
    assert list(trace.closed[1:]) == answer.closed
    assert trace.finish == answer.finish
    assert trace.steps == answer.steps


@pytest.mark.usefixtures("fully_compiled")
def test_sampled_programs_are_those_of_the_oracle():
    requests = random_requests(200)
    ends = Counter()
    for at in range(0, len(requests), 50):
        some = requests[at : at + 50]
        answers = reference.sampled(talkative(), some, EIGHT_LANES)
        for request, result, answer in zip(some, answered(200)[at : at + 50], answers, strict=True):
            assert_same_answer(result, answer, len(request.prompt_ids))
            ends.update(answer.closed)
            ends[f"finish {answer.finish}"] += 1
            ends["syncs"] += answer.tape.token[len(request.prompt_ids) :].count(TAGS.sync)
            ends["more than the rows"] += len(answer.closed) >= EIGHT_LANES.rows
    least = {OPEN: 40, OWN: 100, BUDGET: 100, f"finish {STOP}": 50, f"finish {LENGTH}": 50, "syncs": 100}
    least["more than the rows"] = 20
    assert all(ends[name] >= count for name, count in least.items()), ends


# What must not matter


def test_requests_alone_equal_requests_that_share_lanes():
    """200 requests shared eight lanes; here each has a pool of its own."""
    for request, result in list(zip(random_requests(200), answered(200), strict=True))[:40]:
        assert fields_of(generate(talkative(), [request], EIGHT_LANES)[0]) == fields_of(result)


def test_lane_and_neighbours_do_not_matter():
    order = random.Random(1).sample(range(200), 60)
    again = generate(talkative(), [random_requests(200)[n] for n in order], EIGHT_LANES)
    for number, result in zip(order, again, strict=True):
        assert fields_of(result) == fields_of(answered(200)[number])


def test_nan_in_a_lane_does_not_reach_its_neighbours():
    requests = random_requests(200)[:2]
    rules = rules_for(talkative(), EIGHT_LANES, EIGHT_LANES.slots, sequential=False)

    def columns(poisoned: bool) -> list[np.ndarray]:
        state = empty_state(talkative().config, EIGHT_LANES.lanes, EIGHT_LANES.slots, jnp.float32, stacked=False)
        for lane, request in enumerate(requests):
            state = start(talkative(), state, lane, request, rules)
        if poisoned:
            kv = jax.tree.map(lambda leaf: leaf.at[1].set(jnp.nan), state.pool.kv)
            pool = dataclasses.replace(state.pool, kv=kv)
            hot = state.request.sampling.temperature.at[1].set(jnp.nan)
            sampling = dataclasses.replace(state.request.sampling, temperature=hot)
            request = dataclasses.replace(state.request, sampling=sampling)
            state = dataclasses.replace(state, pool=pool, request=request)
        state = run(talkative().params, state, np.int32(100), np.False_, config=talkative().config, rules=rules)
        pool = state.pool
        return [np.asarray(field) for field in (pool.token, pool.chunk, pool.step, pool.position, pool.fill)]

    clean, poisoned = columns(poisoned=False), columns(poisoned=True)
    for one, other in zip(clean, poisoned, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
    assert not np.array_equal(clean[0][1], poisoned[0][1])


@pytest.mark.usefixtures("fully_compiled")
def test_answers_of_a_hot_model_are_well_formed():
    """10,000 answers at temperature 2: all parse as programs, and none leaves a promise or a chunk open."""
    prompt = Request((1, 2, 3), 40, Sampling(), False, 3, 9)
    hot = [
        dataclasses.replace(prompt, sampling=Sampling(temperature=2.0, seed=seed), max_tokens=8 + seed % 40)
        for seed in range(10_000)
    ]
    config = DecodeConfig(lanes=100, rows=4, slots=64)
    kinds = Counter()
    for result in generate(hot_and_tiny(), hot, config):
        ids = result.trace.linear_ids()
        kinds[result.finish_reason] += 1
        kinds.update(type(part).__name__ for part in Program.from_ids(ids, TOKENIZER).parts)
        assert ids.count(TAGS.promise) == ids.count(TAGS.async_) == ids.count(TAGS.end_async)
    assert min(kinds["stop"], kinds["length"], kinds["Chunk"], kinds["Sync"]) > 500, kinds


@pytest.mark.parametrize("round_steps", [1, 3, 1000])
def test_the_length_of_rounds_does_not_matter(round_steps):
    requests = random_requests(200)[:20]
    items = list(stream(talkative(), requests, EIGHT_LANES, round_steps))
    results = {item.request: item for item in items if isinstance(item, Result)}
    for number, expected in enumerate(answered(200)[:20]):
        assert fields_of(results[number]) == fields_of(expected)


@pytest.mark.parametrize("rows", [2, 8])
def test_other_rows_give_the_same_answers_in_more_or_fewer_steps(rows):
    """Only for requests that end by themselves: what a budget cuts off depends on the order of slots."""
    pairs = zip(random_requests(200), answered(200), strict=True)
    finished = [
        (request, result)
        for request, result in pairs
        if result.finish_reason == "stop"
        # with other rows, closing tags that were sampled in the last step may be fed
        and len(result.trace.token) + EIGHT_LANES.rows <= min(request.max_tokens, 80 - len(request.prompt_ids))
    ]
    assert len(finished) > 40
    compiled = run._cache_size()
    others = generate(talkative(), [request for request, _ in finished], dataclasses.replace(EIGHT_LANES, rows=rows))
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
    assert steps == {0, 1} if rows < EIGHT_LANES.rows else steps <= {0, -1}


def test_new_sampling_seeds_and_budgets_compile_nothing():
    def compiled() -> list[int]:
        return [function._cache_size() for function in (admit, prefill, run)]

    before = answered(200) and compiled()
    plain = Request((1, 2, 3), 10, Sampling(), False, 2, 3)
    others = [
        plain,
        dataclasses.replace(plain, sampling=Sampling(0.3, 7, 0.5, 2**32 - 1), max_tokens=33),
        dataclasses.replace(plain, sequential=True, max_topic_tokens=9, max_chunk_tokens=1),
        *[dataclasses.replace(plain, sampling=Sampling(temperature=1.5, seed=seed)) for seed in range(6)],
    ]
    list(stream(talkative(), others, EIGHT_LANES, round_steps=7))
    assert compiled() == before


def test_profiles_name_the_phases_of_steps_and_of_prefills():
    state = empty_state(TINY, 1, SLOTS, jnp.float32, stacked=False)
    rules = rules_for(tiny(), DecodeConfig(lanes=1, rows=2, slots=SLOTS), SLOTS, sequential=False)
    fixed = {"config": TINY, "rules": rules}
    one = np.int32(1)
    for lowered, phases in (
        (run.lower(tiny().params, state, one, np.False_, **fixed), "open pick write model sample advance"),
        (
            prefill.lower(tiny().params, state, one, np.zeros(16, np.int32), one, one, one, **fixed),
            "write model sample",
        ),
    ):
        text = lowered.as_text(debug_info=True)
        assert all(f"/{phase}/" in text for phase in phases.split()), phases


@pytest.mark.usefixtures("fully_compiled")
def test_the_state_is_donated_and_the_pool_never_copied():
    config = dataclasses.replace(TINY, head_dim=64)
    decode_config = DecodeConfig(lanes=8, rows=4, slots=4096)
    model = dataclasses.replace(tiny(), config=config, params=jax.tree.map(jnp.asarray, random_params(config, 1)))
    rules = rules_for(model, decode_config, decode_config.slots, sequential=False)
    assert len(rules.prefixes) == 7  # attention reads one of them
    state = empty_state(config, decode_config.lanes, decode_config.slots, jnp.float32, stacked=False)
    arguments = (model.params, state, np.int32(1), np.False_)
    memory = run.lower(*arguments, config=config, rules=rules).compile().memory_analysis()
    keys_values = sum(leaf.nbytes for leaf in jax.tree.leaves(state.pool.kv))
    assert memory.alias_size_in_bytes >= sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    # Where half of the slots are read, half of the keys and values are copied; as much again would be all keys.
    assert memory.temp_size_in_bytes < keys_values * 0.75
    after = run(*arguments, config=config, rules=rules)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(after))


def test_admission_donates_the_state_too(monkeypatch):
    config = DecodeConfig(lanes=1, rows=2, slots=SLOTS)
    rules = rules_for(tiny(), config, SLOTS, sequential=False)
    states = [empty_state(TINY, 1, SLOTS, jnp.float32, stacked=False)]
    monkeypatch.setattr(decoding, "admit", lambda *arguments: states.append(admit(*arguments)) or states[-1])
    states.append(start(tiny(), states[0], 0, Request((1, 2, 3), 9, Sampling(), False, 4, 4), rules))
    deleted = [{leaf.is_deleted() for leaf in jax.tree.leaves(state)} for state in states]
    assert deleted == [{True}, {True}, {False}]  # empty, admitted, its prompt written
