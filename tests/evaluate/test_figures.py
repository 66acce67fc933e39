"""Figures of answers, worked by hand on a few records; and the record of a decoded answer."""

from types import SimpleNamespace

import pytest

from pasta_jax.decode.request import Result
from pasta_jax.evaluate.answers import ChunkFigures, Fed, SystemAnswer, answer_of, to_judge
from pasta_jax.evaluate.figures import figures, has_distinct_topics, leaks_a_tag, speed
from pasta_jax.evaluate.questions import Question
from tests.helpers.traces import PROGRAM, TOKENIZER, script_of, traced


def chunk(topic: str, promised: int = 20, length: int = 18, closed: str = "own") -> ChunkFigures:
    return ChunkFigures(topic, promised, length, closed, first_step=1, last_step=2)


def answer(number: int = 0, prompt: str = "Why?", chunks=(), text: str = "one two", **fields) -> SystemAnswer:
    program = "".join(f'<promise topic="{one.topic}" tokens=2 /><async>a b</async>' for one in chunks)
    defaults = {
        "prompts": "set", "program": program or text, "malformed": False, "malformed_unmasked": None, "finished": True,
        "tokens": 100, "text_tokens": 80, "critical_path": 40, "steps": 41, "seed": 0, "prefill_seconds": 0.0,
        "decode_seconds": 1.0, "fed": Fed((), (), ()),
    }  # fmt: skip
    return SystemAnswer(number=number, prompt=prompt, text=text, chunks=tuple(chunks), **(defaults | fields))


def test_figures_of_four_answers():
    answers = [
        answer(0, "List three fish", [chunk("Pike", 20, 18), chunk("red snapper", 30, 40)]),
        answer(1, "List three cats", text="a b c d a b c d", finished=False, text_tokens=20, critical_path=20),
        answer(
            2, "Why?", [chunk("one two three four", 40, 35, "request"), chunk("PIKE", 10, 9), chunk("pike.", 20, 22)]
        ),
        answer(3, "How?", text="", text_tokens=0, critical_path=0, malformed=True, malformed_unmasked=True),
    ]
    no_comma = SimpleNamespace(is_followed_by=lambda text: bool(text) and "," not in text)
    rules = {"Why?": [no_comma], "How?": [no_comma]}
    result = figures(answers, rules)
    assert (result.answers, result.lists) == (4, 2)
    assert (result.fork_rate, result.fork_rate_of_lists, result.malformed, result.stopped) == (0.5, 0.5, 0.25, 0.75)
    assert result.malformed_unmasked == 1.0  # of the one that was measured
    assert result.parallelism == pytest.approx(4 ** (1 / 3))  # 2, 1 and 2; the empty answer has none
    assert result.parallelism_of_forked == pytest.approx(2)
    assert result.chunks == 2.5
    assert result.distinct_topics == 0.5
    assert result.short_topics == 4 / 5
    # Of four chunks that closed themselves: (20, 18), (30, 40), (10, 9), (20, 22).
    assert (result.promised, result.length) == (20, 22.25)
    assert result.length_error == (2 + 10 + 1 + 2) / 4
    assert result.length_correlation == pytest.approx(310 / (200 * 508.75) ** 0.5)
    assert result.tokens == 45
    assert result.repetition == pytest.approx((0 + 1 / 5 + 0) / 3)  # of five 4-grams the last occurred before
    assert result.rules == 0.5


def test_figures_that_nothing_has_are_none():
    result = figures([answer()], {})
    assert (result.fork_rate, result.fork_rate_of_lists) == (0.0, None)
    missing = (result.distinct_topics, result.short_topics, result.promised, result.length_correlation, result.rules)
    assert missing == (None,) * 5


def test_speed_over_a_baseline():
    ours = [answer(0, critical_path=20, chunks=[chunk("a")]), answer(1, critical_path=50), answer(2, critical_path=0)]
    plain = [answer(0, critical_path=80), answer(1, critical_path=50, finished=False), answer(2)]
    result = speed(ours, plain)
    assert (result.pairs, result.both_stopped) == (3, 2)
    assert result.speedup == pytest.approx(2)  # of 4 and 1
    assert result.speedup_of_stopped == result.speedup_of_forked == pytest.approx(4)
    with pytest.raises(ValueError, match="other prompts"):
        speed(ours[:1], [answer(0, "Who?")])


@pytest.mark.parametrize(
    ("topics", "distinct"),
    [(["Salt", "Pepper"], True), (["Salt", "salt "], False), (["A-b", "a b"], False), ([], True)],
)
def test_distinct_topics(topics, distinct):
    assert has_distinct_topics(answer(chunks=[chunk(topic) for topic in topics])) == distinct


@pytest.mark.parametrize(
    ("text", "leaks"),
    [
        ("Drink water. end", True),
        ("end", True),
        ("1. Tea\n2. Milk\npromise", True),
        ("It is <async>", True),
        ("So [SYNC]", True),
        ("We met in the end", False),
        ("Begin.", False),
        ("An async call and a promise.", False),
    ],
)
def test_leaks(text, leaks):
    assert leaks_a_tag(answer(text=text, program=text.replace("<", "<\\"))) == leaks
    inside = f'Hi.<promise topic="a" tokens=2 /><async>{text.replace("<", "<" + chr(92))}</async> Bye.'
    assert leaks_a_tag(answer(text=f"Hi.{text} Bye.", program=inside)) == leaks


def test_pairs_to_judge_do_not_tell_who_wrote_which():
    first = []
    for prompt in "abcdefgh":
        pair = to_judge(answer(prompt=prompt, text="mine", chunks=[chunk("x")]), answer(prompt=prompt, text="theirs"))
        mine, theirs = sorted((pair["first"], pair["second"]), key=lambda shown: shown["text"])
        assert mine == {"text": "mine", "finished": True, "topics": ["x"]}
        assert (theirs["topics"], pair["prompt"], pair["verdict"]) == ([], prompt, "")
        first.append(pair["first"]["text"])
    assert set(first) == {"mine", "theirs"}


def test_the_record_of_a_decoded_answer():
    trace = traced(script_of(PROGRAM))[0]
    result = Result(7, PROGRAM.strip(), trace.finish_reason, trace)
    record = answer_of(Question("set", 3, "Why?", ""), 5, result, TOKENIZER, None)
    assert (record.prompts, record.number, record.prompt, record.seed) == ("set", 3, "Why?", 5)
    assert (record.text, record.program, record.malformed) == (PROGRAM.strip(), PROGRAM.render(), False)
    assert [one.topic for one in record.chunks] == ["first", "second", "last"]
    assert [(one.promised, one.length) for one in record.chunks] == [(20, 25), (10, 14), (30, 14)]
    assert (record.critical_path, record.finished) == (trace.critical_path, True)
