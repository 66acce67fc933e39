"""The invariant that all rests on: interleaved decoding computes what one pass over the linear program computes."""

import dataclasses
import functools
import random
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pasta_jax.decode.generate import DecodeConfig, Request, positions_for, rules_for, start
from pasta_jax.decode.interpreter import Script, run
from pasta_jax.decode.replay import prepare, replay, replayed, script_for
from pasta_jax.decode.sampling import Sampling
from pasta_jax.decode.state import empty_state
from pasta_jax.lang.clock import clock
from pasta_jax.lang.program import Program
from pasta_jax.lang.structure import Positions, structure, visible_matrix
from pasta_jax.models import transformer
from pasta_jax.models.config import PRESETS
from pasta_jax.models.layers import is_stacked
from pasta_jax.models.weights import Model, load_model
from tests.byte_tokenizer import ByteTokenizer
from tests.models import random_params
from tests.programs import random_program
from tests.requires import requires_gemma, requires_smollm2

TOKENIZER = ByteTokenizer()
SLOTS, LONGEST = 256, 240


@functools.cache
def toy(stacked: bool, layers: int = 3) -> Model:
    config = dataclasses.replace(PRESETS["toy"], layers=layers)
    return Model("toy", config, jax.tree.map(jnp.asarray, random_params(config, 1, stacked=stacked)), TOKENIZER)


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


@functools.partial(jax.jit, static_argnames="config")
def logits_of(params, hidden_NxE, config):
    return transformer.logits(params, config, hidden_NxE[None])[0]


def interleaved(model: Model, pairs, settings: DecodeConfig, prefixes: tuple[int, ...]):
    """(what replay tells of each lane, the final hidden states of its slots), with few shapes to compile."""
    tags, end = model.tokenizer.tags, model.tokenizer.end_of_turn
    rules = dataclasses.replace(rules_for(model, settings, settings.slots, sequential=False), prefixes=prefixes)
    # Prompts are written alike by all: one compiled program.
    alike = dataclasses.replace(rules, rows=1, widths=(1,), prefixes=(), positions=Positions())
    stacked = is_stacked(model.params)
    state = empty_state(model.config, settings.lanes, settings.slots, jnp.float32, stacked, keep_hidden=True)
    script = script_for([program for _, program in pairs], tags, end, settings.slots)
    missing = settings.slots - script.tokens.shape[1]
    script = Script(jnp.pad(script.tokens, ((0, 0), (0, missing)), constant_values=end), script.start)
    for lane, (prompt, program) in enumerate(pairs):
        request = Request(tuple(prompt), len(program) + 1, Sampling(), False, LONGEST, LONGEST)
        state = start(model, state, lane, request, alike, first=int(script.tokens[lane, 0]))
    state = run(model.params, state, np.int32(10**6), np.False_, config=model.config, rules=rules, script=script)
    books, hidden = dataclasses.replace(state, hidden=None), np.asarray(state.hidden)
    found = [replayed(model, books, lane, *pair) for lane, pair in enumerate(pairs)]
    return found, [hidden[lane, : len(one.token)] for lane, one in enumerate(found)]


def teacher_forced(model: Model, pairs):
    """(final hidden states [N, T, E] of one pass over all linear programs, their structures)."""
    tags, end = model.tokenizer.tags, model.tokenizer.end_of_turn
    positions = positions_for(model)
    structures = [structure(prompt + program, tags, len(prompt), end, positions) for prompt, program in pairs]
    length = -(-max(len(prompt + program) for prompt, program in pairs) // 128) * 128
    token, position = np.zeros((2, len(pairs), length), np.int32)
    sees = np.zeros((len(pairs), length, length), bool)
    for row, ((prompt, program), made) in enumerate(zip(pairs, structures, strict=True)):
        n = len(made.position)
        token[row, :n], position[row, :n] = prompt + program, made.position
        sees[row, :n, :n] = visible_matrix(made)
    return np.asarray(hidden_of(model.params, token, position, sees, config=model.config)), structures


def pieces_of(rows_NxE: np.ndarray, piece: int) -> np.ndarray:
    """[N / piece, piece, E], padded: one shape to compile, and logits that memory holds."""
    return np.pad(rows_NxE, ((0, -len(rows_NxE) % piece), (0, 0))).reshape(-1, piece, rows_NxE.shape[1])


def assert_fed_by_the_clock(found, prompt, program, made, tags, rows: int) -> None:
    """Each token in its place and time; left out are only closing tags that were sampled in the last step."""
    ids = np.asarray(prompt + program)
    n = len(prompt)
    assert np.array_equal(found.token, ids[found.linear])
    assert np.array_equal(found.thread, made.chunk[found.linear])
    assert np.array_equal(found.position, made.position[found.linear])
    assert len(set(found.linear.tolist())) == len(found.linear)
    unfed = sorted(set(range(len(ids))) - set(found.linear.tolist()))
    assert np.all(ids[unfed] == tags.end_async)
    timed = clock(ids, tags, n)
    if made.chunk.max() < rows:
        assert found.steps == timed.critical_path
        assert np.array_equal(found.step[n:], timed.step[found.linear[n:] - n])
        assert len(found.token) == n + timed.slots
    else:
        assert found.steps >= timed.critical_path


@pytest.mark.parametrize(
    ("rows", "policy", "stacked", "prefixes"),
    [
        (2, "predicted", False, ()),
        (4, "predicted", True, (16, 80)),
        (8, "constant", False, (32,)),
        (4, "shared_start", False, (16, 80)),
    ],
)
def test_replay_computes_what_one_forward_pass_computes(rows, policy, stacked, prefixes):
    model = dataclasses.replace(toy(stacked), positions=Positions(policy, 13))
    settings = DecodeConfig(lanes=8, rows=rows, slots=SLOTS)
    for seed in range(3):
        pairs = random_pairs(settings.lanes, seed=100 * rows + seed)
        found, ours = interleaved(model, pairs, settings, prefixes)
        theirs, structures = teacher_forced(model, pairs)
        for lane, (prompt, program) in enumerate(pairs):
            assert_fed_by_the_clock(found[lane], prompt, program, structures[lane], TOKENIZER.tags, rows)
            both = (pieces_of(hidden, SLOTS)[0] for hidden in (ours[lane], theirs[lane, found[lane].linear]))
            ours_NxV, theirs_NxV = (logits_of(model.params, hidden, config=model.config) for hidden in both)
            np.testing.assert_allclose(ours_NxV, theirs_NxV, atol=1e-5, rtol=0)


def test_replay_gives_these_logits():
    model = toy(False, layers=1)  # quick to compile
    settings = DecodeConfig(lanes=2, rows=4, slots=0)
    pairs = random_pairs(2, seed=7)
    theirs, _ = teacher_forced(model, pairs)
    for lane, found in enumerate(replay(model, *map(list, zip(*pairs, strict=True)), settings)):
        expected = logits_of(model.params, theirs[lane, found.linear], config=model.config)
        np.testing.assert_allclose(found.logits, expected, atol=1e-5, rtol=0)


def test_another_mask_or_other_positions_would_show():
    """What the 1e-5 is worth: to see one token more or less, or to stand one further, is worth a hundred times that."""
    model = toy(False)
    text = 'a<promise topic="b" tokens=2 /><async>chunk</async> c<promise topic="d" tokens=1 /><async>e</async><sync/>f'
    prompt, program = [1, 2, 3], Program.parse(text).ids(TOKENIZER)
    ids = jnp.asarray(prompt + program)[None]
    made = structure(prompt + program, TOKENIZER.tags, 3, TOKENIZER.end_of_turn)
    sees = visible_matrix(made)

    def logits(sees, position):
        hidden = hidden_of(model.params, ids, jnp.asarray(position)[None], sees[None], config=model.config)
        return np.asarray(logits_of(model.params, hidden[0], config=model.config))

    right = logits(sees, made.position)
    for q, k in np.argwhere(np.tri(len(sees), dtype=bool) & (np.arange(len(sees)) > 0)):
        if made.position[q] - made.position[k] < model.config.window:
            other = sees.copy()
            other[q, k] ^= True
            if other[q].any():
                assert np.abs(logits(other, made.position) - right).max() > 1e-3
    for at in range(4, len(sees)):
        further = made.position + (np.arange(len(sees)) == at)
        assert np.abs(logits(sees, further) - right).max() > 1e-3


# Real models, real text


def real_pairs(tokenizer) -> list[tuple[list[int], list[int]]]:
    text = (Path(__file__).parent / "data" / "programs.txt").read_text()
    records = [record.split("\n", 1) for record in text.removesuffix("\n").split("\n====\n")]
    return [(tokenizer.prompt_ids(prompt), Program.parse(program).ids(tokenizer)) for prompt, program in records]


@pytest.mark.usefixtures("fully_compiled")
@pytest.mark.parametrize(
    "name",
    [pytest.param("smollm2_135m", marks=requires_smollm2), pytest.param("gemma3_270m", marks=requires_gemma)],
)
def test_replay_of_real_text_computes_what_one_forward_pass_computes(name):
    model = load_model(name, "", dtype=jnp.float32, stacked=False)
    pairs = real_pairs(model.tokenizer)
    assert len(pairs) == 20
    settings = DecodeConfig(lanes=len(pairs), rows=3, slots=0)
    state, rules, script = prepare(model, *map(list, zip(*pairs, strict=True)), settings, keep_hidden=True)
    state = run(model.params, state, np.int32(10**6), np.False_, config=model.config, rules=rules, script=script)
    hidden, structures = teacher_forced(model, pairs)
    assert max(made.position.max() for made in structures) > 2 * (model.config.window or 600)
    ours, theirs = [], []
    books = dataclasses.replace(state, hidden=None)
    for lane, (prompt, program) in enumerate(pairs):
        found = replayed(model, books, lane, prompt, program)
        assert_fed_by_the_clock(found, prompt, program, structures[lane], model.tokenizer.tags, rows=3)
        ours.append(state.hidden[lane, : len(found.token)])
        theirs.append(hidden[lane, found.linear])
    assert model.config.logit_cap is None  # without one the head is linear: of a difference it makes that of the logits
    apart = pieces_of(np.concatenate(ours) - np.concatenate(theirs), piece=128)
    errors = np.concatenate([np.abs(logits_of(model.params, part, config=model.config)).max(1) for part in apart])
    # Logits reach 57, and either way of computing them is up to 1e-3 away from float64 (measured on SmolLM2): a few
    # tokens are more than 1e-4 apart by rounding alone.
    assert np.mean(errors < 1e-4) > 0.95, np.quantile(errors, [0.5, 0.95, 1])
    assert errors.max() < 5e-4
    if model.config.window is None:
        return
    # A model with windows: queries whose whole past lies within a window see all of it, later ones must not.
    unlimited = dataclasses.replace(model, config=dataclasses.replace(model.config, window=10**6))
    at = np.stack(
        [np.pad(made.position, (0, hidden.shape[1] - len(made.position)), constant_values=-1) for made in structures]
    )
    apart = np.abs(hidden - teacher_forced(unlimited, pairs)[0]).max(2)
    assert apart[(at >= 0) & (at < model.config.window)].max() < 1e-3
    assert apart[at >= model.config.window].max() > 1.0
