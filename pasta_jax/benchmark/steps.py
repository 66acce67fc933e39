"""The time of a decoding step: the interpreter's own loop on one request whose threads all run."""

import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from pasta_jax.decode.generate import loop_spec, slots_for
from pasta_jax.decode.interpreter import Script, run
from pasta_jax.decode.prefill import start
from pasta_jax.decode.replay import prepare
from pasta_jax.decode.request import Request
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.decode.state import DecodeState, LoopSpec, max_threads, new_state
from pasta_jax.errors import PastaError
from pasta_jax.files import packages
from pasta_jax.models import transformer
from pasta_jax.models.config import PRESETS, TransformerConfig
from pasta_jax.models.kernels.cpu.library import cores
from pasta_jax.models.parameters import Params, share_used
from pasta_jax.models.sharding import shardings
from pasta_jax.progress import Progress, say
from pasta_jax.tokenizers.tokenizer import load_tokenizer
from pasta_jax.weights.model import Model
from pasta_jax.weights.prepare import platform_dtype
from pasta_jax.weights.rules import Rules

Key = TypeVar("Key")
Runner = Callable[[], float]  # runs a fixed number of steps and returns the milliseconds of one


@dataclasses.dataclass(frozen=True)
class Steps:
    """Steps of one request whose threads all run; calling it takes them and returns the milliseconds of one."""

    model: Model
    rows: int  # running threads, main and rows - 1 chunks
    steps: int
    state: DecodeState  # before the first of them
    spec: LoopSpec
    script: Script

    def __call__(self) -> float:
        fresh = copied(self.state)
        began = time.perf_counter()
        after = run_and_wait(self.model, fresh, self.steps, self.spec, self.script)
        elapsed = time.perf_counter() - began
        assert int(after.pool.fill[0]) == self.last_slot, "not every thread ran in every step"
        return 1e3 * elapsed / self.steps

    @property
    def last_slot(self) -> int:
        """The slots in use after the steps."""
        return int(self.state.pool.fill[0]) + self.rows * self.steps

    def program(self) -> str:
        """The compiled loop in XLA's text form."""
        config, never = self.model.config, jnp.bool(False)
        lowered = run.lower(
            self.model.params, self.state, jnp.int32(0), never, config=config, spec=self.spec, script=self.script
        )
        return lowered.compile().as_text()


def decode_runner(model: Model, rows: int, slots: int, prompt: int, steps: int) -> Steps:
    """Steps of one request with `rows` running threads, main and rows - 1 chunks, after `prompt` tokens."""
    tags = model.tokenizer.tags
    word = model.tokenizer.encode(" word")[0]
    opening = [tags.promise, tags.close(1)] * (rows - 1)
    tokens = np.asarray([[*opening, *[word] * (slots + 1)]], np.int32)
    starts = np.full((1, max_threads(slots)), len(opening), np.int32)
    starts[0, 0] = 0
    script = Script(jnp.asarray(tokens), jnp.asarray(starts))
    settings = DecodeConfig(lanes=1, rows=rows, slots=slots)
    spec = loop_spec(model, settings, slots, sequential=rows == 1)
    # The forced tokens still go through the head and the sampler, but nothing may end the request.
    spec = dataclasses.replace(spec, stop_ids=(-1,))
    rules = Rules(max_topic_tokens=slots, max_chunk_tokens=slots)
    request = Request((word,) * prompt, slots, sequential=rows == 1, rules=rules)
    state = start(model, new_state(model, 1, slots), 0, request, spec, first=int(tokens[0, 0]))
    state = run_and_wait(model, state, len(opening), spec, script)
    prepared = Steps(model, rows, steps, state, spec, script)
    if prepared.last_slot > slots:
        raise PastaError(
            f"{rows} rows x {steps} steps from {int(state.pool.fill[0])} slots do not fit into {slots}; raise "
            "config.decode.slots, or config.interpreter.slots for interpreter and profile"
        )
    run_and_wait(model, copied(state), steps, spec, script)  # compiles and warms up
    return prepared


def refuse_cut(model: Model, requests: Sequence[Request], slots: int, field: str) -> None:
    """Raise for a prompt that leaves no room for an answer, and say how many may be cut off before max_tokens."""
    try:
        slots_for(model, requests, DecodeConfig(lanes=1, rows=1, slots=slots))
    except PastaError as error:
        raise PastaError(f"{field}={slots}: {error}") from None
    if short := sum(len(request.prompt_ids) + request.max_tokens > slots for request in requests):
        say(
            f"{field}={slots}: {short} of {len(requests)} prompts leave less than max_tokens: answers are cut off there"
        )


def prefill_runner(model: Model, slots: int, prompt: int) -> Runner:
    """Milliseconds until the first token of a prompt of so many tokens is sampled."""
    word = model.tokenizer.encode(" word")[0]
    request = Request((word,) * prompt, 1, sequential=True)
    spec = loop_spec(model, DecodeConfig(lanes=1, rows=1, slots=slots), slots, sequential=True)
    state = new_state(model, 1, slots)

    def once() -> float:
        fresh = copied(state)
        began = time.perf_counter()
        jax.block_until_ready(start(model, fresh, 0, request, spec))
        return 1e3 * (time.perf_counter() - began)

    once()  # compiles
    return once


def run_and_wait(model: Model, state: DecodeState, steps: int, spec: LoopSpec, script: Script) -> DecodeState:
    """Run `steps` steps and wait for the result."""
    never = jnp.bool(False)
    state = run(model.params, state, jnp.int32(steps), never, config=model.config, spec=spec, script=script)
    return jax.block_until_ready(state)


def copied(state: DecodeState) -> DecodeState:
    """A copy of the state, because the loop donates its argument's memory."""
    return jax.block_until_ready(jax.tree.map(jnp.copy, state))


def event_runners(model: Model, slots: int, prompt: int) -> dict[str, Runner]:
    """One step of two threads that is plain, forks or joins; and steps of one thread, in one call or in many."""
    tags, word = model.tokenizer.tags, model.tokenizer.encode(" word")[0]
    block = [tags.async_, *[word] * 30, tags.end_async]
    program = [tags.promise, tags.close(3), *block, *[word] * 29, tags.sync, *[word] * 9]
    settings = DecodeConfig(lanes=1, rows=2, slots=slots)
    state, spec, script = prepare(model, [[word] * prompt], [program], settings, keep_hidden=False)
    after = {"fork": 1, "plain": 9, "join": 32}  # steps before the one that is timed
    states, position = {}, 0
    for name, steps in after.items():
        state = run_and_wait(model, state, steps - position, spec, script)
        states[name], position = copied(state), steps
    states["alone"] = run_and_wait(model, state, 1, spec, script)

    def one(name: str) -> float:
        fresh = copied(states[name])
        began = time.perf_counter()
        run_and_wait(model, fresh, 1, spec, script)
        return 1e3 * (time.perf_counter() - began)

    def alone(calls: int, steps: int) -> float:
        fresh = copied(states["alone"])
        began = time.perf_counter()
        for _ in range(calls):
            fresh = run_and_wait(model, fresh, steps, spec, script)
            jax.device_get((fresh.live, fresh.pool.fill, fresh.pool.token))  # as stream reads the device
        return 1e3 * (time.perf_counter() - began) / (calls * steps)

    runners = {name: functools.partial(one, name) for name in after}
    return runners | {"in one call": lambda: alone(1, 8), "in many calls": lambda: alone(8, 1)}


def interleaved(runners: Mapping[Key, Runner], rounds: int) -> dict[Key, list[float]]:
    """Milliseconds of each runner. Runners alternate (A B C A B C …), so that a drifting machine affects all alike."""
    times: dict[Key, list[float]] = {name: [] for name in runners}
    with Progress("rounds", rounds) as progress:
        for _ in range(rounds):
            for name, runner in runners.items():
                times[name].append(runner())
            medians = "  ".join(f"{name} {statistics.median(ms):.1f}" for name, ms in times.items())
            progress.note = f"median ms per step: {medians}"
            progress.add()
    return times


def difference(times: Mapping[str, list[float]], name: str, other: str) -> float:
    """Median milliseconds that one runner takes longer than another; they alternated, so drift affects both."""
    return statistics.median(a - b for a, b in zip(times[name], times[other], strict=True))


def side_by_side(runners: Mapping[str, Mapping[int, Runner]], rounds: int) -> dict[str, dict[int, list[float]]]:
    """Milliseconds of each runtime's runners by a number, as of rows; those of one number run next to each other."""
    numbers = sorted(next(iter(runners.values())))
    times = interleaved({f"{name}/{number}": runners[name][number] for number in numbers for name in runners}, rounds)
    return {name: {number: times[f"{name}/{number}"] for number in numbers} for name in runners}


def weight_bytes(params: Params, config: TransformerConfig) -> int:
    """Bytes that a device reads at least in every step: of a table that is only looked up none, of experts the active
    ones."""

    def own(leaf: Any) -> int:
        sharding = getattr(leaf, "sharding", None)
        return math.prod(leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize

    leaves = jax.tree_util.tree_leaves_with_path(params)
    return round(sum(share_used(path, params, config) * own(leaf) for path, leaf in leaves))


def random_model(preset: str, seed: int, mesh: Mesh | None = None) -> Model:
    """A preset's shape with random weights created on their devices, to measure speed. Its tokenizer is SmolLM2's."""
    config = PRESETS[preset]
    stacked = jax.default_backend() != "cpu"

    def make(key: jax.Array) -> dict:
        return jax.tree.map(lambda leaf: leaf.astype(platform_dtype()), transformer.init(config, key, stacked))

    key = jax.random.key(seed)
    where = None if mesh is None else shardings(jax.eval_shape(make, key), mesh)
    params = jax.block_until_ready(jax.jit(make, out_shardings=where)(key))
    return Model(f"{preset}_random", config, params, load_tokenizer(packages.path("smollm2_135m")))


def kv_bytes(model: Model, slots: int) -> int:
    """Bytes of the keys and values of `slots` tokens."""
    config = model.config
    return 2 * config.layers * config.kv_heads * config.head_dim * slots * model.dtype.itemsize


def copy_gb_s() -> float:
    """GB per second read and written by plain copies, the best of some rounds: the memory's bandwidth."""
    if jax.default_backend() != "cpu":
        source = jnp.zeros(2**29, jnp.float32)
        add = jax.jit(lambda array: array + 1)  # a plain copy might be elided
        best = least_seconds(lambda: jax.block_until_ready(add(source)), 1 + 20)  # the first one compiles
        return 2 * source.nbytes / best / 1e9
    sources = [np.ones(2**25 // cores()) for _ in range(cores())]
    targets = [np.empty_like(source) for source in sources]
    with ThreadPoolExecutor(cores()) as pool:
        best = least_seconds(lambda: list(pool.map(np.copyto, targets, sources)), 1 + 5)  # the first one warms up
    return 2 * sum(source.nbytes for source in sources) / best / 1e9


def least_seconds(call: Callable[[], object], tries: int) -> float:
    """The seconds of the fastest of some calls."""
    found = []
    for _ in range(tries):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return min(found)
