"""The weighted sum of checks: its terms and sums worked by hand, and how much it computes."""

import dataclasses
import math
from types import SimpleNamespace

import pytest

from pasta_jax.errors import PastaError
from pasta_jax.judges.checked import CheckedJudge, new_words
from pasta_jax.judges.judge import Entry, both_orders
from pasta_jax.judges.settings import Checks, Weights

WEIGHTS = Weights(finished=1.0, topics=0.5, repetition=2.0, rules=1.0, fluency=1.0, fit=1.0, enough=0.0)
CHECKS = Checks(WEIGHTS, worst=-5.0, best=-1.0, share=0.8, scale=0.5)
RULES = {
    "ruled": [SimpleNamespace(is_followed_by=lambda text: "," not in text), SimpleNamespace(is_followed_by=str.islower)]
}
NATS = {"loops": -0.2, "fluent": -2.0, "salad": -9.0}
FITS = {"fluent": 0.75, "salad": -0.25}


class Calls(list):
    """The batches of (question, answer) that log-probabilities were asked for."""

    def __call__(self, pairs):
        self.append([answer for _, answer in pairs])
        return [NATS.get(answer.split()[0], -3.0) for _, answer in pairs]


def judge(calls=None, checks=CHECKS) -> CheckedJudge:
    return CheckedJudge(
        checks, RULES, Calls() if calls is None else calls, lambda _, text: FITS.get(text.split()[0], 0.5)
    )


@pytest.mark.parametrize(
    ("question", "entry", "terms"),
    [
        ("?", Entry("fluent words"), (1, 1, 1, None, 0.75, 0.75)),
        ("?", Entry("salad words", finished=False, topics=("Tea", "tea.", "Milk")), (0, 2 / 3, 1, None, 0, 0)),
        ("?", Entry("loops a b c loops a b c loops"), (1, 1, 4 / 6, None, 1, 0.5)),
        ("ruled", Entry("other, words"), (1, 1, 1, 0.5, 0.5, 0.5)),
        ("?", Entry("fluent words", topics=("", "")), (1, 1, 1, None, 0.75, 0.75)),  # of a system without topics
    ],
)
def test_terms_and_their_sum(question, entry, terms):
    names = ("finished", "topics", "repetition", "rules", "fluency", "fit")
    expected = {name: term for name, term in zip(names, terms, strict=True) if term is not None}
    assert judge().terms(question, entry) == pytest.approx(expected)
    weighed = dict(zip(names, (1, 0.5, 2, 1, 1, 1), strict=True))
    assert judge().value(question, entry) == pytest.approx(sum(weighed[name] * term for name, term in expected.items()))


def test_verdicts_follow_the_difference_of_the_sums():
    one, other = Entry("fluent words"), Entry("fluent words", finished=False)
    verdict = judge()("?", one, other)  # a difference of 1 is two scales
    assert (verdict.first, verdict.second) == pytest.approx((0.8808, 0.1192), abs=1e-4)
    assert judge()("?", one, one).first == 0.5
    wins = both_orders(judge(), "?", one, [other])
    assert wins[0].first == pytest.approx(wins[1].first)


def test_an_answer_that_says_too_little_loses():
    """Two texts of the same fluency and fit: of 10 words, 8 are enough, and 4 half of it."""
    weights = dataclasses.replace(WEIGHTS, enough=1.0)
    compared = judge(checks=dataclasses.replace(CHECKS, weights=weights))
    long, fair, brief = (Entry(" ".join(["fluent", *map(str, range(1, count))])) for count in (10, 8, 4))
    assert (compared.enough(fair, long), compared.enough(brief, long)) == (1.0, 0.5)
    assert compared("?", long, fair).first == 0.5
    assert compared("?", long, brief).first == pytest.approx(1 / (1 + math.exp(-0.5 / 0.5)))
    loop = Entry("fluent " + "a b c d " * 10)
    assert new_words(loop.text) < 8 < len(loop.text.split())
    assert compared.enough(loop, long) < 1


def test_log_probabilities_are_computed_together_and_once():
    calls = Calls()
    checked = judge(calls)
    entries = [Entry("a"), Entry("b", finished=False), Entry("a", finished=False), Entry("")]
    checked.prepare("?", entries)
    assert calls == [["a", "b"]]
    assert checked.value("?", Entry(" \n")) == 0.0, "an empty answer is worth nothing"
    for entry in entries:
        checked("?", entry, Entry("c"))
    assert calls == [["a", "b"], ["c"]]
    checked.prepare("another", [Entry("a")])
    assert calls[2:] == [["a"]]
    assert all(question == "another" for question, _ in checked._nats)


def test_terms_without_weight_are_not_computed():
    calls = Calls()
    weights = dataclasses.replace(WEIGHTS, fluency=0.0, fit=0.0)
    assert judge(calls, dataclasses.replace(CHECKS, weights=weights)).value("?", Entry("a")) == 3.5
    assert calls == []


def test_bounds_in_the_wrong_order_are_refused():
    with pytest.raises(PastaError, match=r"worst -1.0: must be below best, which is -1.0"):
        dataclasses.replace(CHECKS, worst=-1.0)
