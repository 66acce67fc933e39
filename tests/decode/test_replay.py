"""The central invariant: interleaved decoding computes what one pass over the linear program computes."""

import dataclasses
import functools
import random
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pasta_jax.decode.generate import loop_spec, positions_for
from pasta_jax.decode.interpreter import run
from pasta_jax.decode.prefill import start
from pasta_jax.decode.replay import prepare, script_for
from pasta_jax.decode.request import Request
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.decode.state import empty_state
from pasta_jax.lang.clock import clock
from pasta_jax.lang.program import Program
from pasta_jax.lang.structure import Positions, structure, visible_matrix
from pasta_jax.lang.tree import to_tree
from pasta_jax.models import transformer
from pasta_jax.models.parameters import is_stacked
from pasta_jax.weights.model import Model
from pasta_jax.weights.rules import Rules
from tests.helpers.byte_tokenizer import ByteTokenizer
from tests.helpers.loading import load_model
from tests.helpers.models import TOY, toy
from tests.helpers.programs import random_program
from tests.helpers.replays import Replay, logits_of, replay, replayed
from tests.helpers.requires import requires_gemma, requires_smollm2

TOKENIZER = ByteTokenizer()
SLOTS, LONGEST = 256, 240
FREE = Rules(max_topic_tokens=LONGEST, max_chunk_tokens=LONGEST)


def random_pairs(count: int, seed: int) -> list[tuple[list[int], list[int]]]:
    """Prompts and programs that a pool of 256 slots holds."""
    rng = random.Random(seed)
    pairs = []
    while len(pairs) < count:
        prompt = [rng.randrange(384) for _ in range(rng.randint(1, 16))]
        program = random_program(rng)[0].ids(TOKENIZER)
        if len(program) <= LONGEST:
            pairs.append((prompt, program))
    return pairs


@functools.partial(jax.jit, static_argnames="config")
def hidden_of(params, token, position, sees, config):
    return transformer.trunk(params, config, token, position, sees, position)[0]


def interleaved(model: Model, pairs, config: DecodeConfig, prefixes: tuple[int, ...]) -> list[Replay]:
    """Each lane's replay, with few shapes to compile."""
    tags, end = model.tokenizer.tags, model.tokenizer.end_of_turn
    spec = dataclasses.replace(loop_spec(model, config, config.slots, sequential=False), prefixes=prefixes)
    # Rules that prefill does not depend on are equal for all: one compiled program.
    prefill_spec = dataclasses.replace(spec, rows=1, widths=(1,), prefixes=(), positions=Positions())
    stacked = is_stacked(model.params)
    state = empty_state(model.config, config.lanes, config.slots, jnp.float32, stacked, keep_hidden=True)
    script = script_for([program for _, program in pairs], tags, end, config.slots)
    for lane, (prompt, program) in enumerate(pairs):
        request = Request(tuple(prompt), len(program) + 1, sequential=False, rules=FREE)
        state = start(model, state, lane, request, prefill_spec, first=int(script.tokens[lane, 0]))
    state = run(model.params, state, np.int32(10**6), np.False_, config=model.config, spec=spec, script=script)
    return [replayed(state, lane, *pair, tags) for lane, pair in enumerate(pairs)]


def teacher_forced(model: Model, pairs):
    """(final hidden states [N, T, E] of one pass over all linear programs, their structures)."""
    tags, end = model.tokenizer.tags, model.tokenizer.end_of_turn
    positions = positions_for(model)
    structures = [structure(prompt + program, tags, len(prompt), end, positions) for prompt, program in pairs]
    length = -(-max(len(prompt + program) for prompt, program in pairs) // 128) * 128
    token, position = np.zeros((2, len(pairs), length), np.int32)
    sees = np.zeros((len(pairs), length, length), bool)
    for row, ((prompt, program), parts) in enumerate(zip(pairs, structures, strict=True)):
        n = len(parts.position)
        token[row, :n], position[row, :n] = prompt + program, parts.position
        sees[row, :n, :n] = visible_matrix(parts)
    return np.asarray(hidden_of(model.params, token, position, sees, config=model.config)), structures


def pieces_of(rows_NxE: np.ndarray, piece: int) -> np.ndarray:
    """[N / piece, piece, E], padded: one shape to compile, and logits that memory holds."""
    return np.pad(rows_NxE, ((0, -len(rows_NxE) % piece), (0, 0))).reshape(-1, piece, rows_NxE.shape[1])


def assert_fed_by_the_clock(result, prompt, program, parts, tags, rows: int) -> None:
    """Each token has its place and step; only closing tags sampled in the last step are not fed."""
    ids = np.asarray(prompt + program)
    n = len(prompt)
    assert np.array_equal(result.token, ids[result.linear])
    assert np.array_equal(result.thread, parts.chunk[result.linear])
    assert np.array_equal(result.position, parts.position[result.linear])
    assert len(set(result.linear.tolist())) == len(result.linear)
    unfed = sorted(set(range(len(ids))) - set(result.linear.tolist()))
    assert np.all(ids[unfed] == tags.end_async)
    expected = clock(ids, tags, n)
    if parts.chunk.max() < rows:
        assert result.steps == expected.critical_path
        assert np.array_equal(result.step[n:], expected.step[result.linear[n:] - n])
        assert len(result.token) == n + expected.slots
    else:
        assert result.steps >= expected.critical_path


@pytest.mark.parametrize(
    ("rows", "policy", "stacked", "prefixes", "as_apar"),
    [
        pytest.param(4, "predicted", True, (16, 80), False, marks=pytest.mark.slow),
        pytest.param(8, "constant", False, (32,), False, marks=pytest.mark.slow),
        pytest.param(2, "shared_start", False, (), False, marks=pytest.mark.extended),
        pytest.param(2, "shared_start", False, (), True, marks=pytest.mark.slow),
    ],
)
def test_replay_computes_what_one_forward_pass_computes(rows, policy, stacked, prefixes, as_apar):
    model = dataclasses.replace(toy(stacked=stacked), positions=Positions(policy, 13))
    config = DecodeConfig(lanes=8, rows=rows, slots=SLOTS)
    for seed in range(3):
        pairs = random_pairs(config.lanes, seed=100 * rows + seed)
        if as_apar:
            pairs = [(prompt, to_tree(program, TOKENIZER.tags).tolist()) for prompt, program in pairs]
        assert sum(TOKENIZER.tags.promise in program for _, program in pairs) > 2
        theirs, structures = teacher_forced(model, pairs)
        for lane, one in enumerate(interleaved(model, pairs, config, prefixes)):
            assert_fed_by_the_clock(one, *pairs[lane], structures[lane], TOKENIZER.tags, rows)
            both = (pieces_of(hidden, SLOTS)[0] for hidden in (one.hidden, theirs[lane, one.linear]))
            ours_NxV, theirs_NxV = (logits_of(model.params, model.config, hidden[None])[0] for hidden in both)
            np.testing.assert_allclose(ours_NxV, theirs_NxV, atol=1e-5, rtol=0)


@pytest.mark.usefixtures("few_programs")
def test_replay_returns_the_same_logits():
    model = toy(dataclasses.replace(TOY, layers=1))  # quick to compile
    config = DecodeConfig(lanes=2, rows=4, slots=0)
    pairs = random_pairs(2, seed=7)
    theirs, _ = teacher_forced(model, pairs)
    for lane, (one, logits_NxV) in enumerate(replay(model, *map(list, zip(*pairs, strict=True)), config)):
        expected = logits_of(model.params, model.config, theirs[lane, one.linear][None])[0]
        np.testing.assert_allclose(logits_NxV, expected, atol=1e-5, rtol=0)


def test_a_replay_admits_no_forks_since_it_measures_no_prices():
    model, config = toy(dataclasses.replace(TOY, layers=1)), DecodeConfig(2, 4, 0, forks="admitted", packed=(4,))
    state, spec, script = prepare(model, *map(list, zip(*random_pairs(2, seed=7), strict=True)), config, False)
    step = functools.partial(run, config=model.config, spec=spec, script=script)
    assert jax.eval_shape(step, model.params, state, np.int32(1), np.False_).step.shape == (2,)


def test_a_wrong_mask_or_wrong_positions_exceed_the_tolerance():
    """The tolerance of 1e-5 is tight: one token more or less in view, or one position off, changes logits by 1e-3."""
    model = toy()
    text = 'a<promise topic="b" tokens=2 /><async>chunk</async> c<promise topic="d" tokens=1 /><async>e</async><sync/>f'
    prompt, program = [1, 2, 3], Program.parse(text).ids(TOKENIZER)
    ids = jnp.asarray(prompt + program)[None]
    parts = structure(prompt + program, TOKENIZER.tags, 3, TOKENIZER.end_of_turn)
    sees = visible_matrix(parts)

    def logits(sees, position):
        hidden = hidden_of(model.params, ids, jnp.asarray(position)[None], sees[None], config=model.config)
        return np.asarray(logits_of(model.params, model.config, hidden)[0])

    right = logits(sees, parts.position)
    for q, k in np.argwhere(np.tri(len(sees), dtype=bool) & (np.arange(len(sees)) > 0)):
        if parts.position[q] - parts.position[k] < model.config.window:
            other = sees.copy()
            other[q, k] ^= True
            if other[q].any():
                assert np.abs(logits(other, parts.position) - right).max() > 1e-3
    for at in range(4, len(sees)):
        shifted = parts.position + (np.arange(len(sees)) == at)
        assert np.abs(logits(sees, shifted) - right).max() > 1e-3


# Real models, real text


def real_pairs(tokenizer) -> list[tuple[list[int], list[int]]]:
    text = (Path(__file__).parent / "programs.txt").read_text()
    records = [record.split("\n", 1) for record in text.removesuffix("\n").split("\n====\n")]
    return [(tokenizer.prompt_ids(prompt), Program.parse(program).ids(tokenizer)) for prompt, program in records]


@pytest.mark.usefixtures("fully_compiled")
@pytest.mark.parametrize(
    "name",
    [pytest.param("smollm2_135m", marks=requires_smollm2), pytest.param("gemma3_270m", marks=requires_gemma)],
)
def test_replay_of_real_text_computes_what_one_forward_pass_computes(name):
    # Scanned, layers compile once; test_goldens.py runs them unrolled. The toy's replays have more than one loop.
    model = load_model(name, "", dtype=jnp.float32, stacked=True)
    pairs = real_pairs(model.tokenizer)
    assert len(pairs) == 4
    config = DecodeConfig(lanes=len(pairs), rows=3, slots=0)
    state, spec, script = prepare(model, *map(list, zip(*pairs, strict=True)), config, keep_hidden=True)
    spec = dataclasses.replace(spec, widths=(3,))
    state = run(model.params, state, np.int32(10**6), np.False_, config=model.config, spec=spec, script=script)
    hidden, structures = teacher_forced(model, pairs)
    assert max(parts.position.max() for parts in structures) > 2 * (model.config.window or 600)
    ours, theirs = [], []
    for lane, pair in enumerate(pairs):
        one = replayed(state, lane, *pair, model.tokenizer.tags)
        assert_fed_by_the_clock(one, *pair, structures[lane], model.tokenizer.tags, rows=3)
        ours.append(one.hidden)
        theirs.append(hidden[lane, one.linear])
    assert model.config.logit_cap is None  # so the head is linear, and maps differences to those of logits
    differences = pieces_of(np.concatenate(ours) - np.concatenate(theirs), piece=128)
    of_parts = (logits_of(model.params, model.config, part[None])[0] for part in differences)
    errors = np.concatenate([np.abs(logits).max(1) for logits in of_parts])
    # Logits reach 57, and both computations are up to 1e-3 away from float64 (measured on SmolLM2): a few tokens differ
    # by more than 1e-4 through rounding alone.
    assert np.mean(errors < 1e-4) > 0.95, np.quantile(errors, [0.5, 0.95, 1])
    assert errors.max() < 5e-4
    if model.config.window is None:
        return
    # A model with windows: queries whose whole past lies within a window see all of it, later ones must not.
    farthest = max(range(len(pairs)), key=lambda lane: structures[lane].position.max())
    unlimited = dataclasses.replace(model, config=dataclasses.replace(model.config, window=10**6))
    [without_TxE], [parts] = teacher_forced(unlimited, pairs[farthest : farthest + 1])
    apart = np.abs(hidden[farthest] - without_TxE)[: len(parts.position)].max(1)
    assert apart[parts.position < model.config.window].max() < 1e-3
    assert apart[parts.position >= model.config.window].max() > 1.0
