"""Questions with exact answers: made alike everywhere, half with a last line, and read from answers in any style."""

import re

import pytest

from pasta_jax.evaluate.multipart import COUNT, FEWEST, LAST, MOST, exactness, lines_of, questions, says
from pasta_jax.files.fingerprints import of_texts


def written(question, wrong: int | None = None, last: bool = True) -> str:
    """A right answer, or one with a wrong part, or without its last line."""
    lines = [f"{n}. The result is **{answer}**." for n, answer in enumerate(question.answers, start=1)]
    if wrong is not None:
        lines[wrong] = f"{wrong + 1}. nothing"
    return "\n".join([*lines, f"{LAST}: {question.last}"] if last and question.last else lines)


def test_the_questions_are_the_same_on_every_machine_and_their_answers_right():
    made = questions()
    assert of_texts(sorted(made)) == "7f2261242b706d4e"
    assert len(made) == COUNT
    assert sum(one.last is not None for one in made.values()) == COUNT // 2
    for text, one in made.items():
        assert FEWEST <= len(one.answers) <= MOST
        asked = re.findall(r"^(\d+)\. (.*)$", text, re.MULTILINE)
        assert [int(n) for n, _ in asked] == list(range(1, len(one.answers) + 1))
        for (_, part), answer in zip(asked, one.answers, strict=True):
            if match := re.fullmatch(r"What is (\d+) (\+|-|times) (\d+)\?", part):
                a, b = int(match[1]), int(match[3])
                assert int(answer) == {"+": a + b, "-": a - b, "times": a * b}[match[2]]
        if one.last and "largest" in text.splitlines()[-1]:
            needed = map(int, re.findall(r"\d+", text.splitlines()[-1]))
            assert int(one.last) == max(int(one.answers[n - 1]) for n in needed)
        if one.last and "same answer" in text.splitlines()[-1]:
            first, second = map(int, re.findall(r"\d+", one.last))
            assert one.answers[first - 1] == one.answers[second - 1]


def test_exactness_counts_parts_and_the_last_line():
    with_last = next(one for one in questions().values() if one.last)
    without = next(one for one in questions().values() if not one.last)
    count = len(with_last.answers)
    cases = [
        (with_last, written(with_last), 1, 1),
        (with_last, written(with_last, wrong=1), 1 - 1 / count, 1),
        (with_last, written(with_last, last=False), 1, 0),
        (with_last, "", 0, 0),
        (without, written(without), 1, None),
    ]
    found = exactness({n: (question.text, answer) for n, (question, answer, *_) in enumerate(cases)})
    for n, (*_, parts, last) in enumerate(cases):
        assert found["parts_right"][n] == pytest.approx(parts)
        assert found["last_right"].get(n) == last


@pytest.mark.parametrize(
    ("text", "answer", "right"),
    [
        ("29 + 80 = 109", "109", True),
        ("The answer is 109.", "109", True),
        ("**109**", "109", True),
        ("1,092", "1092", True),
        ("1109", "109", False),
        ("109 or 110", "109", False),
        ("11,17, 21 and 80", "11, 17, 21, 80", True),
        ("17, 21, 80", "11, 17, 21, 80", False),
        ("Questions 2, 4", "2 and 4", True),
        ("DAN!", "Dan", True),
        ("", "Dan", False),
    ],
)
def test_a_part_is_right_if_its_text_ends_with_the_answer(text, answer, right):
    assert says(text, answer) is right


def test_lines_are_found_by_their_numbers():
    answer = "Sure!\n**1.** 4\n2) ags\n   more\n - 3: 5\n1. again\n**Last:** 9"
    assert lines_of(answer) == {1: "** 4", 2: " ags    more", 3: " 5", LAST: ":** 9"}
