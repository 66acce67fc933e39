"""The interpreter equals the oracle on scripted programs: which thread feeds what, when and where, and the mask.

tests/decode/test_sampled_programs.py compares sampled ones.
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

from pasta_jax.decode import prefill as prefilling
from pasta_jax.decode import rows
from pasta_jax.decode.generate import loop_spec
from pasta_jax.decode.interpreter import Script, run
from pasta_jax.decode.prefill import admit, begin, start, write
from pasta_jax.decode.replay import replay_stream, script_for
from pasta_jax.decode.request import Request
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.decode.state import LENGTH, OPEN, STOP, DecodeState, empty_state
from pasta_jax.lang.program import Chunk, Program, Sync, Text
from pasta_jax.lang.structure import Place, Positions, visible
from pasta_jax.oracle import decoding
from pasta_jax.weights.rules import Rules
from tests.helpers.byte_tokenizer import ByteTokenizer
from tests.helpers.models import SMALLEST, toy
from tests.helpers.traces import script_of, tiny_model

TOKENIZER = ByteTokenizer()
TAGS = TOKENIZER.tags
SLOTS = 256
LONGEST = 480  # ids of a scripted program: nearly twice what the pool holds
FREE = Rules(max_topic_tokens=LONGEST, max_chunk_tokens=LONGEST)


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


def held(state: DecodeState, lane: int) -> tuple[dict[str, object], np.ndarray]:
    """What a lane of the device holds at the end, and which of its tokens see which."""
    names = ("token", "chunk", "step", "position", "epoch", "main")
    fill, spawned = int(state.pool.fill[lane]), int(state.spawned[lane])
    at = {name: np.asarray(getattr(state.pool, name))[lane, :fill] for name in names}
    place = Place(at["chunk"], at["epoch"], at["main"])
    present = at["step"][None, :] <= at["step"][:, None]  # written before anyone attends
    columns = {name: at[name].tolist() for name in names[:4]}
    closed = np.asarray(state.threads.closed)[lane, 1 : spawned + 1].tolist()
    rest = {"finish": int(state.finish[lane]), "steps": int(state.step[lane]), "live": bool(state.live[lane])}
    return columns | {"closed": closed} | rest, visible(present, place.queries(), place.keys())


def expected_of(answer: decoding.Outcome) -> dict[str, object]:
    """The same of the oracle's answer."""
    tape = answer.tape
    columns = {"token": tape.token, "chunk": tape.thread, "step": tape.step, "position": tape.position}
    return columns | {"closed": answer.closed, "finish": answer.finish, "steps": answer.steps, "live": False}


slow = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("count", "config", "positions"),
    [
        slow(100, DecodeConfig(lanes=8, rows=8, slots=SLOTS, widths=(3,)), Positions("shared_start")),
        slow(200, DecodeConfig(lanes=8, rows=4, slots=SLOTS), Positions()),
        pytest.param(100, DecodeConfig(lanes=3, rows=3, slots=SLOTS), Positions(), marks=pytest.mark.extended),
        slow(100, DecodeConfig(lanes=1, rows=2, slots=SLOTS), Positions("constant", 7)),
    ],
    ids=lambda value: f"lanes{value.lanes}-rows{value.rows}" if isinstance(value, DecodeConfig) else str(value),
)
def test_scripted_programs_equal_the_oracles(count, config, positions):
    """Ids, threads, steps, positions, slot order, mask and finish, in lanes that are reused many times."""
    rng = random.Random(f"{count} {config} {positions}")
    model = dataclasses.replace(toy(SMALLEST), positions=positions)
    spec = loop_spec(model, config, SLOTS, sequential=False)
    # Prefill does not depend on rows: one compiled program.
    prefill_spec = loop_spec(toy(SMALLEST), dataclasses.replace(config, rows=2), SLOTS, sequential=False)
    state = empty_state(SMALLEST, config.lanes, SLOTS, jnp.float32, stacked=False)
    done, ends = 0, Counter()
    while done < count:
        some = min(rng.choice([config.lanes, rng.randint(1, config.lanes)]), count - done)
        lanes = rng.sample(range(config.lanes), some)
        requests, scripts, programs = {}, {}, [[]] * config.lanes
        for lane in lanes:
            program = Program(tuple(random_parts(rng)))
            scripts[lane], programs[lane] = script_of(program), program.ids(TOKENIZER)
            # A prompt may hold any id; tags in it have no meaning.
            prompt = tuple(rng.randrange(384) for _ in range(rng.choice([1, 2, 9, rng.randint(1, 32)])))
            budget = rng.choice([LONGEST, rng.randint(1, len(programs[lane]) + 1)])
            requests[lane] = Request(prompt, budget, sequential=False, rules=FREE)
        script = script_for(programs, TAGS, TOKENIZER.end_of_turn, SLOTS)
        tokens = np.full((config.lanes, LONGEST + 1), TOKENIZER.end_of_turn, np.int32)
        tokens[:, : script.tokens.shape[1]] = script.tokens
        for lane, request in requests.items():
            state = start(model, state, lane, request, prefill_spec, first=scripts[lane][0][0])
        script = Script(jnp.asarray(tokens), script.start)
        state = run(model.params, state, np.int32(10**6), np.False_, config=SMALLEST, spec=spec, script=script)
        for lane in lanes:
            answer = decoding.scripted(requests[lane], config, TOKENIZER, SMALLEST.context, positions, scripts[lane])
            record, sees = held(state, lane)
            assert record == expected_of(answer)
            assert np.array_equal(sees, answer.tape.sees[: len(sees), : len(sees)])
            ends[answer.finish] += 1
            ends["forks"] += len(answer.closed)
            ends["most forks"] = max(ends["most forks"], len(answer.closed))
            ends["cut short"] += OPEN in answer.closed
        done += some
    # All outcomes must occur often, or the programs test little.
    assert min(ends[STOP], ends[LENGTH], ends["cut short"]) > count // 20
    assert ends["forks"] > count
    assert ends["most forks"] >= 12


@pytest.mark.usefixtures("few_programs")
def test_the_worked_example_is_correct():
    """The table in the source of rows.py equals a replay."""
    source = Path(rows.__file__).read_text()
    table = [line.split() for line in re.findall(r"^# +(\d+ +\d:.*)$", source, re.MULTILINE)]
    program = Program((Chunk("", 1, "abc"), Chunk("", 1, "d"), Chunk("", 1, "e"), Sync(), Text(".")))
    request = Request((63,), 1, sequential=False, rules=Rules(max_topic_tokens=1, max_chunk_tokens=1))
    config = DecodeConfig(lanes=1, rows=3, slots=SLOTS)  # of test_trace.py too: one program
    *_, result = replay_stream(tiny_model(), request, program.ids(TOKENIZER), config, round_steps=100)
    names = {TAGS.promise: "[P]", TAGS.close(1): "[P:1]", TAGS.async_: "[A]", TAGS.end_async: "[/A]", TAGS.sync: "[S]"}
    expected = [[str(step)] for step in range(1, result.trace.steps + 1)]
    columns = (result.trace.step, result.trace.thread, result.trace.token, result.trace.position)
    for step, thread, token, position in zip(*map(np.ndarray.tolist, columns), strict=True):
        expected[step - 1].append(f"{thread}:{names.get(token) or chr(token)}@{position}")
    fill = 1 + np.cumsum([len(row) - 1 for row in expected])
    expected = [[*row, str(used)] for row, used in zip(expected, fill, strict=True)]
    assert [row[: len(cells)] for row, cells in zip(table, expected, strict=True)] == expected


# The compiled programs


def test_profiles_name_the_phases_of_steps_and_of_prefills():
    state = empty_state(SMALLEST, 1, SLOTS, jnp.float32, stacked=False)
    spec = loop_spec(toy(SMALLEST), DecodeConfig(lanes=1, rows=2, slots=SLOTS), SLOTS, sequential=False)
    fixed = {"config": SMALLEST, "spec": spec}
    one = np.int32(1)
    for lowered, phases in (
        (run.lower(toy(SMALLEST).params, state, one, np.False_, **fixed), "open pick write model sample advance"),
        (write.lower(toy(SMALLEST).params, state, one, *[np.zeros(16, np.int32)] * 4, one, **fixed), "write model"),
        (begin.lower(toy(SMALLEST).params, state, one, one, **fixed), "sample"),
    ):
        text = lowered.as_text(debug_info=True)
        assert all(f"/{phase}/" in text for phase in phases.split()), phases


@pytest.mark.slow
@pytest.mark.usefixtures("fully_compiled")
def test_the_state_is_donated_and_the_pool_never_copied():
    config = dataclasses.replace(SMALLEST, head_dim=64)
    decode_config = DecodeConfig(lanes=4, rows=4, slots=1024)
    model = toy(config)
    spec = loop_spec(model, decode_config, decode_config.slots, sequential=False)
    spec = dataclasses.replace(spec, widths=(4,), prefixes=(512,))  # one loop, in which attention reads half or all
    state = empty_state(config, decode_config.lanes, decode_config.slots, jnp.float32, stacked=False)
    arguments = (model.params, state, np.int32(1), np.False_)
    program = run.lower(*arguments, config=config, spec=spec).compile()
    memory = program.memory_analysis()
    keys_values = sum(leaf.nbytes for leaf in jax.tree.leaves(state.pool.kv))
    assert memory.alias_size_in_bytes >= sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    # Where half of the slots are read, half of the keys and values are copied; as much again would be all keys.
    assert memory.temp_size_in_bytes < keys_values * 0.75
    after = program(*arguments)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(after))


def test_admission_donates_the_state_too(monkeypatch):
    config = DecodeConfig(lanes=1, rows=2, slots=SLOTS)
    spec = loop_spec(toy(SMALLEST), config, SLOTS, sequential=False)
    states = [empty_state(SMALLEST, 1, SLOTS, jnp.float32, stacked=False)]
    monkeypatch.setattr(prefilling, "admit", lambda *arguments: states.append(admit(*arguments)) or states[-1])
    states.append(start(toy(SMALLEST), states[0], 0, Request((1, 2, 3), 9, sequential=False), spec))
    deleted = [{leaf.is_deleted() for leaf in jax.tree.leaves(state)} for state in states]
    assert deleted == [{True}, {True}, {False}]  # empty, admitted, its prompt written
