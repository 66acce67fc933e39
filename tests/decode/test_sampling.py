"""Sampling equals plain sorting in NumPy, has the expected frequencies, and treats rows independently."""

import functools
import itertools

import jax
import numpy as np
import pytest
from scipy.special import chdtri

from pasta_jax.decode.sampling import FORBIDDEN, draw, keep_top, penalize
from pasta_jax.decode.state import arrays
from pasta_jax.lang.tags import TagIds
from pasta_jax.oracle import choice
from pasta_jax.oracle.choice import Query, Tape, penalized
from pasta_jax.weights.rules import Rules

keep_top_jit = jax.jit(keep_top)
draw_jit = jax.jit(draw)
VOCAB = 64


@functools.cache
def rows() -> np.ndarray:
    """float32 [N, 64]: ordinary logits, and edge cases of comparing floats."""
    rng = np.random.default_rng(0)
    usual = [rng.standard_normal((40, VOCAB)) * scale for scale in (0.01, 1.0, 10.0)]
    tied = np.round(rng.standard_normal((40, VOCAB)))
    signs = rng.choice([-0.0, 0.0], (4, VOCAB))  # equal, but not bit by bit
    tiny = rng.standard_normal((10, VOCAB)) * 1e-30
    forbidden = np.where(rng.random((30, VOCAB)) < 0.8, FORBIDDEN, rng.standard_normal((30, VOCAB)))
    forbidden[:, 5] = 0.0  # something is always allowed
    one = np.full((1, VOCAB), FORBIDDEN)
    one[0, 17] = -3.0
    equal = np.stack([np.full(VOCAB, value) for value in (0.0, -7.5, 1e29, -1e29)])
    steep = np.linspace(0, 2000, VOCAB)[None]
    groups = (*usual, tied, signs, tiny, forbidden, one, equal, steep, -steep)
    return np.concatenate(groups).astype(np.float32)


def kept_ids(logits_NxV: np.ndarray, top_k: int, top_p: float) -> np.ndarray:
    """bool [N, V]: the ids that keep_top keeps."""
    count = len(logits_NxV)
    out = np.asarray(keep_top_jit(logits_NxV, np.full(count, top_k, np.int32), np.full(count, top_p, np.float32)))
    left = out == logits_NxV
    assert np.all(left | (out == np.float32(FORBIDDEN)))
    return left & (logits_NxV > FORBIDDEN)


def sorted_out(logits_NxV: np.ndarray, top_k: int, top_p: float) -> np.ndarray:
    """The same by sorting each row."""
    allowed_NxV = np.where(logits_NxV > FORBIDDEN, logits_NxV, -np.inf)
    return np.stack([choice.keep(logits_V, top_k, top_p) > -np.inf for logits_V in allowed_NxV])


def test_plain_sorting_by_hand():
    logits_V = np.log(np.array([0.1, 0.4, 0.2, 0.2, 0.1]))
    for top_k, top_p, expected in [
        (0, 1.0, [0, 1, 2, 3, 4]),
        (1, 1.0, [1]),
        (2, 1.0, [1, 2, 3]),  # a tie at the edge stays
        (9, 1.0, [0, 1, 2, 3, 4]),
        (0, 0.39, [1]),
        (0, 0.41, [1, 2, 3]),
        (0, 0.81, [0, 1, 2, 3, 4]),
        (3, 0.45, [1]),  # 0.4 of 0.8: the mass is that of the k
        (3, 0.55, [1, 2, 3]),
    ]:
        assert np.flatnonzero(choice.keep(logits_V, top_k, top_p) > -np.inf).tolist() == expected
        logits_1xV = logits_V[None].astype(np.float32)
        assert np.flatnonzero(kept_ids(logits_1xV, top_k, top_p)).tolist() == expected


@pytest.mark.parametrize("top_k", [0, 1, 2, 7, VOCAB - 1, VOCAB, 1000])
def test_top_k_is_sorting(top_k):
    assert np.array_equal(kept_ids(rows(), top_k, 1.0), sorted_out(rows(), top_k, 1.0))


@pytest.mark.parametrize("top_k", [0, 10])
@pytest.mark.parametrize("top_p", [0.0, 1e-300, 1e-46, 1e-40, 1e-30, 1e-4, 0.1, 0.5, 0.9, 0.999])
def test_top_p_is_sorting(top_k, top_p):
    """If the mass of the likeliest ids is p to within rounding, either edge is correct."""
    ours, expected = kept_ids(rows(), top_k, top_p), sorted_out(rows(), top_k, top_p)
    unclear = 0
    for logits_V, ours_V, expected_V in zip(rows().astype(np.float64), ours, expected, strict=True):
        if np.array_equal(ours_V, expected_V):
            continue
        among_V = sorted_out(logits_V[None], top_k, 1.0)[0]
        mass_V = np.where(among_V, np.exp(logits_V - logits_V.max()), 0)
        differing = mass_V[ours_V & expected_V].sum() / mass_V.sum()
        assert abs(differing - top_p) < 1e-6
        unclear += 1
    assert unclear <= 2


def test_top_p_of_nearly_one_removes_almost_nothing():
    top_p = float(np.nextafter(np.float32(1), np.float32(0)))
    left = np.where(kept_ids(rows(), 0, top_p), 0, np.exp(rows() - rows().max(axis=1, keepdims=True)))
    assert np.all(left.sum(axis=1) <= 1e-5)


@pytest.mark.slow  # imports torch; quick: test_sampled_programs.py compares them with the oracle
@pytest.mark.parametrize("penalty", [1.0, 1.5, 0.7])
def test_min_p_and_the_repetition_penalty_are_those_of_hugging_face(penalty):
    process = pytest.importorskip("transformers.generation.logits_process")
    torch = pytest.importorskip("torch")
    logits = np.random.default_rng(0).normal(0, 3, (1, 50)).astype(np.float32)
    seen = [3, 7, 7, 41]
    expected = process.RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([seen]), torch.tensor(logits)).numpy()
    counts = np.bincount(seen, minlength=50)[None], np.zeros((1, 50), np.int32)
    np.testing.assert_array_equal(penalize(logits, rules_of(1, repetition_penalty=penalty), lambda: counts), expected)
    kept = np.flatnonzero(np.isfinite(process.MinPLogitsWarper(0.1)(None, torch.tensor(logits)).numpy()))
    rules, number = rules_of(2000, temperature=1.0, min_p=0.1, seed=3), np.arange(2000, dtype=np.int32)
    drawn = draw_jit(np.repeat(logits, 2000, 0), rules, 0 * number, number)
    np.testing.assert_array_equal(np.unique(drawn), kept)
    assert 1 < len(kept) < 50


def test_penalties_make_no_id_as_unlikely_as_a_forbidden_one():
    logits, seen = np.float32([[1, 2, -12, 3]]), np.int32([[0, 0, 1, 0]])
    lower = penalize(logits, rules_of(1, repetition_penalty=1e30), lambda: (seen, seen))
    assert int(np.argmax(np.where(seen, lower, FORBIDDEN))) == 2
    tape = Tape(np.ones((1, 1), bool), token=[2], thread=[0], step=[1], position=[0])
    rules = Rules(repetition_penalty=1e30)
    np.testing.assert_array_equal(penalized(logits[0], tape, Query(0, 0, 0, "main"), rules, TagIds(20)), lower[0])


def test_tags_are_not_penalised():
    tape = Tape(np.ones((2, 2), bool), token=[5, 20], thread=[0, 0], step=[0, 0], position=[0, 1])
    query = Query(1, 0, 0, "main")
    penalized_V = penalized(np.full(100, 2, np.float32), tape, query, Rules(repetition_penalty=2.0), TagIds(20))
    assert penalized_V[[5, 20, 6]].tolist() == [1, 2, 2]


# Draws


def rules_of(count: int, **rules) -> Rules:
    """Arrays [count] from numbers or arrays."""
    dtypes = arrays(Rules())
    values = vars(dtypes) | rules
    return Rules(**{name: np.full(count, value, getattr(dtypes, name).dtype) for name, value in values.items()})


def draws_of_rows(temperature: float, seed: int = 1) -> np.ndarray:
    count = len(rows())
    zero = np.zeros(count, np.int32)
    return np.asarray(draw_jit(rows(), rules_of(count, temperature=temperature, seed=seed), zero, zero))


def test_greedy_is_the_first_of_the_greatest_as_is_a_temperature_near_zero():
    greatest, usual = rows().argmax(axis=1), slice(0, 120)  # usual ones have no ties
    assert np.array_equal(draws_of_rows(0.0), greatest)
    for temperature in (2e-38, 1e-9):
        assert np.array_equal(draws_of_rows(temperature)[usual], greatest[usual])


@pytest.mark.parametrize("temperature", [2e-38, 1e-9, 1.0, 1e9, 1e30, 3e38])
def test_no_temperature_draws_a_forbidden_token(temperature):
    for seed in range(20):
        tokens = draws_of_rows(temperature, seed)
        assert np.all(rows()[np.arange(len(tokens)), tokens] > FORBIDDEN)


@pytest.mark.parametrize("vary", ["seed", "thread", "number"])
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.5, 0, 1.0), (2.0, 0, 1.0), (1.0, 4, 1.0), (1.0, 0, 0.7)]
)
def test_frequencies_of_tokens(vary, temperature, top_k, top_p):
    """Chi-square over 8,000 draws: one in 10,000 correct samplers would fail, and the seeds are fixed."""
    count = 8000
    logits_V = np.random.default_rng(2).standard_normal(12)
    varied = np.arange(count) * 7919 + 11
    folded = {"seed": 3, "thread": 2, "number": 5} | {vary: varied}
    rules = rules_of(count, temperature=temperature, top_k=top_k, top_p=top_p, seed=folded["seed"])
    thread, number = (np.full(count, folded[name], np.int32) for name in ("thread", "number"))
    logits_NxV = np.broadcast_to(logits_V.astype(np.float32), (count, len(logits_V)))
    tokens = np.asarray(draw_jit(logits_NxV, rules, thread, number))
    left_V = choice.keep(logits_V / temperature, top_k, top_p)
    expected_V = count * np.exp(left_V) / np.exp(left_V).sum()
    seen_V = np.bincount(tokens, minlength=len(logits_V))
    possible = expected_V > 0
    assert np.all(seen_V[~possible] == 0)
    chi_square = np.sum((seen_V - expected_V)[possible] ** 2 / expected_V[possible])
    assert chi_square < chdtri(possible.sum() - 1, 1e-4)


def test_seed_thread_and_number_are_distinguished():
    folded = np.array(list(itertools.product((0, 1, 2), repeat=3)))
    count = len(folded)
    seed, thread, number = folded.T
    rules = rules_of(count, temperature=1.0, seed=seed)
    logits = np.zeros((count, 1000), np.float32)
    tokens = np.asarray(draw_jit(logits, rules, thread.astype(np.int32), number.astype(np.int32))).tolist()
    assert len(set(tokens)) >= 25  # 27 draws out of 1000: hardly any two alike
    seen = dict(zip(map(tuple, folded.tolist()), tokens, strict=True))
    assert all(seen[a, b, c] != seen[b, a, c] for a, b, c in seen if a != b)
    assert all(seen[a, b, c] != seen[a, c, b] for a, b, c in seen if b != c)


def test_neighbours_do_not_matter():
    rng = np.random.default_rng(3)
    count = len(rows())
    seed = rng.integers(0, 2**32, count, np.uint32)
    thread, number, top_k = (rng.integers(0, high, count, np.int32) for high in (20, 500, 70))
    temperature = rng.choice([0, 0.5, 1, 3], count).astype(np.float32)
    top_p = rng.choice([0.3, 0.9, 1], count).astype(np.float32)
    top_k *= rng.integers(0, 2, count, np.int32)
    rules = rules_of(count, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    arguments = (rows(), rules, thread, number)
    together = np.asarray(draw_jit(*arguments))

    def draws_at(index: slice | np.ndarray) -> np.ndarray:
        return np.asarray(draw_jit(*jax.tree.map(lambda field: field[index], arguments)))

    for row in range(count):
        assert draws_at(slice(row, row + 1))[0] == together[row]
    order = rng.permutation(count)
    assert np.array_equal(draws_at(order), together[order])
