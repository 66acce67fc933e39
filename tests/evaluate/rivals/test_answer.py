"""Skeleton-of-Thought: skeletons parsed, and points that share a pool written as if each had it to itself."""

import dataclasses

import numpy as np
import pytest

from pasta_jax.decode import generate as decoding
from pasta_jax.decode.request import Request
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.errors import PastaError
from pasta_jax.evaluate.questions import Question
from pasta_jax.evaluate.rivals import answer as rivals
from pasta_jax.evaluate.rivals import points as pooled
from pasta_jax.evaluate.rivals.answer import answer
from pasta_jax.evaluate.rivals.points import decode_points
from pasta_jax.evaluate.rivals.skeleton import Point, ask_point, ask_skeleton, assemble, parse_skeleton
from pasta_jax.evaluate.settings import SkeletonOptions
from pasta_jax.weights.rules import Rules
from tests.helpers.traces import tiny_model

pytestmark = pytest.mark.usefixtures("few_programs")
CONFIG = DecodeConfig(lanes=1, rows=2, slots=512)
OPTIONS = SkeletonOptions(most_points=2, skeleton_tokens=8, point_tokens=6, router="none")
ASKED = Question("set", 0, "List drinks", "")
SKELETON = "1. Tea\n2. **Milk and sugar**\n\n3) tea\n3: Cups: two: or more.\n2. Spoons\nEnjoy!\n4. Cake\n5. Pie"


def request(seed: int = 0, temperature: float = 0.0, text: str = "List drinks") -> Request:
    ids = tiny_model().tokenizer.chat([("user", text)])
    return Request(
        tuple(ids),
        10,
        sequential=True,
        rules=Rules(temperature=temperature, seed=seed, max_topic_tokens=4, max_chunk_tokens=12),
        text=text,
    )


def test_a_skeleton_has_each_number_and_title_once():
    points = parse_skeleton(SKELETON, most=4, words=2)
    assert points == [Point(1, "Tea"), Point(2, "Milk and"), Point(3, "Cups"), Point(4, "Cake")]
    assert parse_skeleton("1.\nno list", 4, 2) == []
    assert parse_skeleton("9" * 5000 + ". x", 4, 2) == [Point(9999, "x")]


def test_texts_of_points():
    points = [Point(1, "Tea"), Point(2, "Milk")]
    assert ask_skeleton("List drinks", 7).count("List drinks") == ask_skeleton("List drinks", 7).count("3 to 7") == 1
    assert ask_point("List drinks", points).startswith("List drinks\n")
    assert ask_point("List drinks", points).endswith(": Tea; Milk.")
    assert assemble(points, [" Hot. ", ""]) == "1. Tea: Hot.\n2. Milk:"
    assert (
        assemble(points, ["2. Hot.\nAnd sweet.\n\n 2. Milk: no", "\n1. Tea"])
        == "1. Tea: 2. Hot.\nAnd sweet.\n2. Milk: 1. Tea"
    )


def test_points_that_exceed_the_context_are_refused():
    with pytest.raises(PastaError, match="the context is 512; lower point_tokens"):
        decode_points(tiny_model(), [1] * 300, [[2] * 100], Rules(), 200, CONFIG)


@pytest.mark.slow
def test_a_heading_may_be_longer_than_a_prefill_chunk(monkeypatch):
    expected = decode_points(tiny_model(), [1, 2], [[3] * 20], Rules(), 6, CONFIG)
    monkeypatch.setattr(pooled, "PREFILL_CHUNKS", (16,))
    written = decode_points(tiny_model(), [1, 2], [[3] * 20], Rules(), 6, CONFIG)
    assert 0 < len(written.token) <= 6
    np.testing.assert_array_equal(written.token, expected.token)


@pytest.fixture
def skeletons(monkeypatch):
    """Whatever the model writes as a skeleton is read as this text."""

    def write(text: str) -> None:
        monkeypatch.setattr(rivals, "parse_skeleton", lambda _, most, words: parse_skeleton(text, most, words))

    return write


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
def test_an_answer_counts_the_skeleton_and_the_longest_point(skeletons, shared):
    skeletons("1. a\n2. b")
    result = answer(tiny_model(), ASKED, request(), OPTIONS, CONFIG, shared)
    assert [point.topic for point in result.chunks] == ["a", "b"]
    fed = np.bincount(result.fed.threads, minlength=3)
    assert result.critical_path == fed[0] + max(fed[1:]) == max(result.fed.steps)
    assert [point.first_step for point in result.chunks] == [fed[0] + 1] * 2
    assert all(heading in f"\n{result.text}" for heading in ("\n1. a:", "\n2. b:"))
    assert result.prefill_seconds + result.decode_seconds > 0
    assert result.text_tokens == len(tiny_model().tokenizer.encode(result.text))


def test_what_is_cut_off_behind_a_point_is_no_text(skeletons, monkeypatch):
    skeletons("1. a\n2. b")
    whole = answer(tiny_model(), ASKED, request(), OPTIONS, CONFIG, True)
    monkeypatch.setattr(rivals, "assemble", lambda points, texts: assemble(points, ["x\n2. y", "z"]))
    cut = answer(tiny_model(), ASKED, request(), OPTIONS, CONFIG, True)
    assert cut.text == "1. a: x\n2. b: z"
    assert cut.text_tokens == len(tiny_model().tokenizer.encode(cut.text)) != whole.text_tokens
    assert (cut.tokens, cut.critical_path) == (whole.tokens, whole.critical_path)  # what was cut off took its steps


@pytest.mark.slow
def test_points_that_share_a_pool_are_written_as_if_alone(skeletons):
    skeletons("1. a\n2. b")
    both = [answer(tiny_model(), ASKED, request(), OPTIONS, CONFIG, one) for one in (True, False)]
    assert both[0].text == both[1].text
    for thread in range(3):
        shared, unshared = (np.asarray(one.fed.ids)[np.equal(one.fed.threads, thread)].tolist() for one in both)
        assert shared == unshared


def test_points_begin_at_once_however_chunks_do(skeletons):
    """Nobody measures prices for a pool of points."""
    skeletons("1. a\n2. b")
    eager, admitted = (
        answer(tiny_model(), ASKED, request(), OPTIONS, dataclasses.replace(CONFIG, forks=forks), True)
        for forks in ("eager", "admitted")
    )
    assert (admitted.text, admitted.steps) == (eager.text, eager.steps)


def test_without_a_skeleton_the_question_is_answered_sequentially(skeletons):
    skeletons("Sure!")
    plain = decoding.generate(tiny_model(), [request()], DecodeConfig(1, 1, 512))[0]
    result = answer(tiny_model(), ASKED, request(), OPTIONS, CONFIG, True)
    assert (result.text, result.chunks) == (plain.text, ())
    assert result.critical_path == plain.trace.critical_path + OPTIONS.skeleton_tokens
    assert result.text_tokens == plain.trace.text_tokens  # a skeleton that can't be used is no text
    routed = dataclasses.replace(OPTIONS, router="lists")
    result = answer(tiny_model(), Question("set", 0, "Why?", ""), request(), routed, CONFIG, True)
    assert result.critical_path == plain.trace.critical_path
