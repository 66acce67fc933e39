"""Figures of answers, worked by hand on a few records; and the record of a decoded answer."""

import json
from types import SimpleNamespace

import pytest

from pasta_jax.decode.request import Result
from pasta_jax.evaluate.answers import ChunkFigures, Fed, SystemAnswer, answer_of
from pasta_jax.evaluate.blind import write_blind
from pasta_jax.evaluate.figures import figures, has_distinct_topics, leaks_a_tag
from pasta_jax.evaluate.questions import Question
from pasta_jax.evaluate.summary import estimates, judged, ratios
from pasta_jax.judges.agreement import key_of, read_pairs
from pasta_jax.judges.judge import Entry
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
    result = figures([answer(0, chunks=[chunk("", 20, 18), chunk("", 20, 18)]), answer(1, text="!")], {})
    assert (result.distinct_topics, result.short_topics) == (None, None)  # no chunk has one
    assert result.repetition == 0.0  # of an answer without a word, nothing occurred before


def test_speedup_is_parallelism_times_length_ratio():
    """On all prompts, on those that fork and on the others; an answer without text has neither."""
    sizes = [
        (20, 60, [chunk("a")], 90, True),
        (50, 50, (), 70, False),
        (30, 45, [chunk("b")], 30, True),
        (0, 0, (), 9, True),
    ]
    ours = [answer(n, critical_path=path, text_tokens=text, chunks=of) for n, (path, text, of, *_) in enumerate(sizes)]
    plain = [
        answer(n, critical_path=length, text_tokens=length, finished=finished)
        for n, (*_, length, finished) in enumerate(sizes)
    ]
    found = estimates(ratios(ours, {"": plain, "_over_untagged": plain[:1]}, {}))
    for reference, counts in (("", {"": 3, "_of_forked": 2, "_of_unforked": 1}), ("_over_untagged", {"": 1})):
        for ending, count in counts.items():
            speedup, ratio = (found[f"{name}{reference}{ending}"] for name in ("speedup", "length_ratio"))
            assert (speedup.count, ratio.count) == (count, count)
            if not reference:
                assert speedup.value == pytest.approx(found["parallelism" + ending].value * ratio.value)
    assert found["speedup"].value == pytest.approx((4.5 * 1.4 * 1) ** (1 / 3))
    assert found["parallelism"].value == pytest.approx((3 * 1 * 1.5) ** (1 / 3))
    assert found["speedup_of_stopped"].value == pytest.approx((4.5 * 1) ** (1 / 2))
    assert found["speedup_of_stopped_of_forked"].value == pytest.approx((4.5 * 1) ** (1 / 2))
    assert found["length_ratio_over_untagged"].value == pytest.approx(1.5)
    empty = [plain[0], answer(1), *plain[2:]]  # where the baseline says nothing, no part of the product counts
    found = estimates(ratios(ours, {"": empty}, {}))
    assert found["speedup"].value == pytest.approx(found["parallelism"].value * found["length_ratio"].value)
    with pytest.raises(ValueError, match="other prompts"):
        ratios(ours[:1], {"": [answer(0, "Who?")]}, {})


def test_a_preference_counts_as_one_prompt_however_sure_the_judge_is():
    """A verdict of 58% on every prompt is a share of 100%."""
    found = judged({"repetition": {0: 0.58, 1: 0.51, 2: 0.5, 3: 0.1}, "none": {}})
    assert {name: one.value for name, one in found.items()} == {
        "preferred, repetition": (1 + 1 + 0.5 + 0) / 4,
        "mean preference, repetition": pytest.approx((0.58 + 0.51 + 0.5 + 0.1) / 4),
    }
    assert judged({"repetition": {0: 0.58, 3: 0.1}}, {0})["preferred, repetition"].value == 1.0


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


def test_blind_pairs_do_not_tell_who_wrote_which(tmp_path):
    """Neither a field nor the order does; the key does, and gives judges what readers don't see."""
    prompts = [f"{number}?" for number in range(40)]
    pairs = [
        {
            "model": answer(prompt=prompt, text="mine", chunks=[chunk("x")]),
            "baseline": answer(prompt=prompt, text="theirs", finished=False),
        }
        for prompt in prompts
    ]
    orders = []
    for name in ("pairs.jsonl", "again.jsonl"):
        write_blind(tmp_path / name, pairs)
        shown = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        assert [pair["prompt"] for pair in shown] == prompts
        assert all(set(pair) == {"prompt", "first", "second", "verdict"} for pair in shown)
        assert all({pair["first"], pair["second"]} == {"mine", "theirs"} for pair in shown)
        orders.append([pair["first"] for pair in shown])
        key = [json.loads(line) for line in key_of(tmp_path / name).read_text().splitlines()]
        assert [one["first"]["system"] == "model" for one in key] == [first == "mine" for first in orders[-1]]
    assert orders[0] != orders[1]
    assert 5 < orders[0].count("mine") < 35

    judged = [pair | {"verdict": "first" if pair["first"] == "mine" else "second"} for pair in shown]
    (tmp_path / name).write_text("".join(json.dumps(pair) + "\n" for pair in judged))
    assert read_pairs(tmp_path / name)[0] == ("0?", Entry("mine", True, ("x",)), Entry("theirs", False))


def test_the_record_of_a_decoded_answer():
    trace = traced(script_of(PROGRAM))[0]
    result = Result(7, PROGRAM.strip(), trace.finish_reason, trace)
    record = answer_of(Question("set", 3, "Why?", ""), 5, result, TOKENIZER, None)
    assert (record.prompts, record.number, record.prompt, record.seed) == ("set", 3, "Why?", 5)
    assert (record.text, record.program, record.malformed) == (PROGRAM.strip(), PROGRAM.render(), False)
    assert [one.topic for one in record.chunks] == ["first", "second", "last"]
    assert [(one.promised, one.length) for one in record.chunks] == [(20, 25), (10, 14), (30, 14)]
    assert (record.critical_path, record.finished) == (trace.critical_path, True)
