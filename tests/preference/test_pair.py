"""What an answer is worth, and which two are learned from."""

import math

import pytest

from pasta_jax.preference.candidates import Candidate
from pasta_jax.preference.pair import choose, efficiency, score


def answer(text_tokens: int, critical_path: int) -> Candidate:
    return Candidate((), "", text_tokens, critical_path, 0, True, True)


def test_efficiency_terms_are_speedup_parallelism_and_their_means():
    one = answer(text_tokens=60, critical_path=20)
    expected = {"speedup": 4.0, "parallelism": 3.0, "arithmetic": 3.5, "harmonic": 24 / 7}
    assert {term: efficiency(term, one, 80) for term in expected} == pytest.approx(expected)
    assert efficiency("speedup", answer(0, 0), 80) == efficiency("harmonic", answer(0, 3), 0) == 0.0


def test_the_quality_weight_ranges_from_speed_alone_to_quality_alone():
    assert [score(2.0, 0.5, weight) for weight in (1.0, 8.0, math.inf)] == [2.5, 6.0, 0.5]
    fast, good = (3.0, 0.0), (1.5, 1.0)
    chosen = {w: choose([score(*fast, w), score(*good, w)], (3.0, 1.5), [True, True]) for w in (1.0, 2.0, math.inf)}
    assert chosen == {1.0: (0, 1), 2.0: (1, 0), math.inf: (1, 0)}


@pytest.mark.parametrize(
    ("scores", "whole", "choice"),
    [
        ([3.0, 2.0, 1.0], [False, True, True], (1, 2)),  # a truncated answer is never the better one
        ([3.0, 2.0, 0.0], [True, True, False], (0, 2)),  # but may be the worse one
        ([3.0, 2.0], [False, False], None),
        ([3.0, 1.0], [False, True], None),  # the only whole one is also the worst
        ([None, 2.0, 1.0, None], [True] * 4, (1, 2)),
        ([None, None], [True] * 2, None),
    ],
)
def test_truncated_answers_and_those_without_a_score(scores, whole, choice):
    assert choose(scores, [1.0] * len(scores), whole) == choice


def test_among_equally_good_answers_the_fastest_is_chosen():
    assert choose([1.0, 2.0, 2.0, 1.0], [0.5, 1.0, 1.5, 1.4], [True] * 4) == (2, 3)
    assert choose([1.0, 2.0, 2.0, 1.0], [1.0] * 4, [True] * 4) == (1, 0)  # then the first
    assert choose([1.0, 2.0, 3.0, 1.0], [1.0, 1.0, 9.0, 2.0], [True] * 4) == (2, 3)  # no other than the best
    assert choose([1.0, 1.0, 1.0], [1.0, 2.0, 3.0], [True] * 3) is None  # speed alone is no reason
