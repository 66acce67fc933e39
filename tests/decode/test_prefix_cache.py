"""Prompts that begin as one held in a lane does: copied, never computed again, and with the bits of a computed one."""

import dataclasses
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pasta_jax.decode import generate as decoding
from pasta_jax.decode import prefill as prefilling
from pasta_jax.decode.device_loop import DeviceLoop
from pasta_jax.decode.generate import loop_spec
from pasta_jax.decode.prefill import Prefill, copy_slots, start, write
from pasta_jax.decode.prefix_cache import LEAST, Admission, Held, PrefixCache, shared
from pasta_jax.decode.request import Request, Result
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.decode.state import empty_state
from pasta_jax.models.kernels.cpu.library import library
from pasta_jax.models.parameters import is_stacked
from pasta_jax.models.sharding import make_mesh, shard
from pasta_jax.tpu.program import collectives
from pasta_jax.weights.for_cpu import in_panels
from pasta_jax.weights.model import Model
from pasta_jax.weights.rules import Rules
from tests.decode.test_sampled_programs import TOKENIZER
from tests.helpers.models import UNTIED, talkative, toy
from tests.helpers.traces import tiny_model

needs_kernels = pytest.mark.skipif(library() is None, reason="needs a C++ compiler")
CHUNK, LANES, SLOTS = 16, 3, 256
CONFIG = DecodeConfig(lanes=LANES, rows=3, slots=SLOTS, prefill_chunk=CHUNK)


def ask(prompt: tuple[int, ...], seed: int = 0, tokens: int = 8, **changes) -> Request:
    rules = Rules(temperature=1.0, seed=seed, max_topic_tokens=4, max_chunk_tokens=10)
    return dataclasses.replace(Request(prompt, tokens, sequential=False, rules=rules), **changes)


def test_devices_that_share_lanes_exchange_what_is_copied_and_nothing_more():
    """A slice of what devices divide would be one of the whole pool, on each of them."""
    model, mesh, lanes = toy(), make_mesh(8, 1), 8
    sizes = model.config, lanes, SLOTS, jnp.dtype("float32"), is_stacked(model.params)
    state, rng = jax.eval_shape(lambda: empty_state(*sizes)), np.random.default_rng(0)
    state = jax.tree.map(lambda leaf: rng.integers(0, 99, leaf.shape).astype(leaf.dtype), state)
    arguments = np.int32(1), np.int32(5), np.int32(3 * CHUNK - 1)
    program = copy_slots.lower(shard(state, mesh), *arguments, size=CHUNK).compile()
    of_chunk = sum(leaf.nbytes for leaf in jax.tree.leaves(state.pool.kv)) * CHUNK // (lanes * SLOTS)
    assert 0 < max(one.bytes for one in collectives(program.as_text())) <= of_chunk
    there, here = (copy_slots(one, *arguments, size=CHUNK) for one in (shard(state, mesh), jax.device_put(state)))
    jax.tree.map(np.testing.assert_array_equal, there, here)
    assert there.pool.fill[1] == 3 * CHUNK - 1


def words(rng: random.Random, length: int) -> tuple[int, ...]:
    return tuple(rng.choices(range(97, 123), k=length))


def test_what_is_shared_is_whole_units_or_the_whole_prompt():
    rng = random.Random(0)
    for _ in range(2000):
        held = tuple(rng.choices("ab", k=rng.randrange(30)))
        asked = rng.randrange(len(held) + 1)
        prompt = held[: rng.randrange(31)] + tuple(rng.choices("ab", k=rng.randrange(1, 12)))
        unit = rng.choice([1, 2, 4])
        common = next((at for at in range(len(prompt)) if held[at : at + 1] != prompt[at : at + 1]), len(prompt))
        expected = max(end for end in range(0, common + 1, unit) if end < len(prompt))
        found = shared(prompt, Held(held, asked), unit)
        assert found == (len(prompt) if prompt == held[:asked] else expected if expected >= LEAST else 0)


def test_conversations_that_alternate_keep_their_lanes():
    held, rng = PrefixCache(LANES, CHUNK), random.Random(1)
    system = words(rng, 2 * CHUNK)

    def admitted(prompt: tuple[int, ...], free=range(LANES), may_copy=True) -> Admission:
        admission = held.admit(prompt, list(free), may_copy)
        held.hold(admission.lane, prompt, 0)
        return admission

    one, other = system + words(rng, 20), system + words(rng, 40)
    assert admitted(one) == Admission(0)
    assert admitted(other) == Admission(1, 0, 2 * CHUNK)
    one += words(rng, 30)
    assert admitted(one) == Admission(0, 0, 3 * CHUNK)
    other += words(rng, 10)
    assert admitted(other) == Admission(1, 1, 4 * CHUNK)
    assert admitted(other) == Admission(1, 1, len(other))
    assert admitted(other, free=[0, 2]) == Admission(2, 1, len(other))
    assert admitted(other, may_copy=False).copied == 0
    held.admit(one, [0], True)  # while it is written, nothing can be copied from it
    assert held.admit(one, [1], True).copied == 2 * CHUNK


# The toy's rows have 128 numbers, enough for products of other shapes to differ in their last bits.
@pytest.mark.parametrize(
    "form", ["layers", pytest.param("stacked", marks=pytest.mark.slow), pytest.param("kernels", marks=needs_kernels)]
)
@pytest.mark.parametrize("lane", [1, 0], ids=["copied", "kept"])
def test_a_shared_beginning_leaves_the_state_that_a_prefill_leaves(form, lane):
    stacked = form == "stacked"
    model = kernels_model() if form == "kernels" else toy(stacked=stacked)
    spec, rng = loop_spec(model, CONFIG, SLOTS, sequential=False), random.Random(2)
    held = words(rng, 75)

    def state_of(request: Request, copied: int):
        state = empty_state(model.config, 2, SLOTS, jnp.float32, stacked)
        state = start(model, state, 0, ask(held), spec)
        rest = Prefill(model, Admission(lane, 0, copied), request, spec)
        for number in range(rest.steps):
            state = rest.step(state, number)
        kv = jax.tree.map(lambda field: jnp.moveaxis(field, field.ndim - 4, 0)[lane], state.pool.kv)
        kv = jax.tree.map(lambda field: field[..., : len(request.prompt_ids), :], kv)  # of those it can see
        integers = {f.name: getattr(state.pool, f.name) for f in dataclasses.fields(state.pool) if f.name != "kv"}
        seen = {
            name: field[lane][: len(request.prompt_ids)] if field.ndim > 1 else field[lane]
            for name, field in integers.items()
        }
        plain = dataclasses.replace(state, pool=None)
        return jax.device_get((kv, seen, jax.tree.map(lambda field: field[lane], plain)))

    most = 70 if form == "kernels" else 4 * CHUNK  # of tokens that both have
    for prompt, copied in ((held[:70] + words(rng, 30), most), (held[: 3 * CHUNK], 2 * CHUNK), (held, len(held))):
        written, with_copy = (state_of(ask(prompt, seed=9), count) for count in (0, copied))
        jax.tree.map(np.testing.assert_array_equal, written, with_copy)


class Recorder:
    """Admissions in their order, and what was computed for each: runs of tokens as (start, end)."""

    def __init__(self, monkeypatch):
        self.admissions: list[tuple[Admission, int, list[tuple[int, int]]]] = []
        admit = PrefixCache.admit

        def admitted(held, prompt, *rest):
            admission = admit(held, prompt, *rest)
            self.admissions.append((admission, len(prompt), []))
            return admission

        def computed(params, state, lane, tokens, thread, main, position, count, **statics):
            *_, (admission, _, runs) = self.admissions
            assert admission.lane == lane
            runs.append((int(position[0]), int(position[0] + count)))
            return write(params, state, lane, tokens, thread, main, position, count, **statics)

        monkeypatch.setattr(PrefixCache, "admit", admitted)
        monkeypatch.setattr(prefilling, "write", computed)


def arrivals(rng: random.Random, count: int) -> list[tuple[int, int, Request]]:
    """(round of its arrival, rounds until it is cancelled, request): turns of chats under two system prompts."""
    chats = [words(rng, 30), words(rng, 45)]
    found, at = [], 0
    for seed in range(count):
        prompt = rng.choice(chats)
        if rng.random() < 0.8:
            prompt = prompt[: rng.choice([len(prompt), rng.randrange(1, len(prompt))])] + words(
                rng, rng.randrange(1, 40)
            )
        if len(prompt) < SLOTS - 80:
            chats.append(prompt)
        at += rng.choice([0, 0, 1, 3])
        request = ask(prompt, seed, rng.randrange(1, 40), sequential=rng.random() < 0.3)
        found.append((at, rng.choice([1, 2, 1000, 1000, 1000]), request))
    return found


def decoded(loop: DeviceLoop, plan: list[tuple[int, int, Request]]) -> dict[int, Result]:
    """The results of those that were not cancelled."""
    results, waiting, now = {}, list(enumerate(plan)), 0
    while waiting or loop.is_busy:
        while waiting and (waiting[0][1][0] <= now or not loop.is_busy):
            number, (_, _, request) = waiting.pop(0)
            loop.submit(number, request, 4)
        for number, (at, rounds, _) in enumerate(plan):
            if now == at + rounds and number not in results:
                loop.cancel(number)
        if loop.is_busy:
            results |= {item.request: item for item in loop.round() if isinstance(item, Result)}
        now += 1
    return results


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.extended) for n in (1, 2)), 3])
def test_answers_are_the_same_without_sharing_whatever_arrives_and_is_cancelled(few_programs, monkeypatch, seed):
    alone = seed == 3  # our kernels' rows: any tokens are shared, of answers too
    model, plan = kernels_model() if alone else tiny_model(), arrivals(random.Random(seed), 60)
    spec = decoding.loop_spec(model, CONFIG, SLOTS, sequential=False)
    found = {}
    for may_copy in (True, False):
        with monkeypatch.context() as patch:
            recorder = Recorder(patch)
            loop = DeviceLoop(model, spec, LANES, SLOTS, shares_prompts=may_copy)
            found[may_copy] = decoded(loop, plan)
        copied = 0
        for admission, length, runs in recorder.admissions:
            ends = [admission.copied, *(end for _, end in runs)]
            assert [start for start, _ in runs] == ends[: len(runs)], "computed once, from where the copy ends"
            assert ends[-1] <= length
            copied += admission.copied
        assert (copied > 300) == may_copy
    both = found[True].keys() & found[False].keys()
    assert len(both) > 25
    for number in both:
        one, other = found[True][number], found[False][number]
        assert one.trace.token.tolist() == other.trace.token.tolist()
        assert one.trace.thread.tolist() == other.trace.thread.tolist()
        assert one.text == other.text
        assert other.copied == 0
        assert alone or one.copied % CHUNK in (0, len(plan[number][2].prompt_ids) % CHUNK)
    assert any(one.copied % CHUNK for one in found[True].values()) or not alone


def kernels_model() -> Model:
    params = in_panels(jax.tree.map(np.asarray, talkative(UNTIED, TOKENIZER)), "float32")
    return Model("kernels", UNTIED, jax.device_put(params, jax.devices()[0]), TOKENIZER)


@needs_kernels
@pytest.mark.parametrize("sequential", [True, False])
def test_a_next_turn_reuses_what_main_wrote_in_its_order(few_programs, sequential):
    model, config = kernels_model(), dataclasses.replace(CONFIG, lanes=2)
    spec, rng = decoding.loop_spec(model, config, SLOTS, sequential=False), random.Random(7)
    loop = DeviceLoop(model, spec, 2, SLOTS)

    def answer(loop: DeviceLoop, request: Request) -> Result:
        loop.submit(0, request, 4)
        while loop.is_busy:
            results = [item for item in loop.round() if isinstance(item, Result)]
        return results[0]

    for turn in range(4):
        asked = words(rng, 20)
        first = answer(loop, ask(asked, turn, 40, sequential=sequential)).trace
        forks = np.flatnonzero(first.thread)
        ordered = int(forks[0]) if len(forks) else len(first.token)
        prompt = (*asked, *first.token.tolist(), *words(rng, 9))
        request = ask(prompt, turn, 20, sequential=True).with_rules(frequency_penalty=1.5)  # of its own tokens
        found = answer(loop, request)
        assert (found.copied == len(asked) + ordered) if sequential else (len(asked) <= found.copied < len(prompt) - 9)
        plain = DeviceLoop(model, spec, 2, SLOTS, shares_prompts=False)
        assert answer(plain, request).trace.token.tolist() == found.trace.token.tolist()
    assert sequential or len(forks)
