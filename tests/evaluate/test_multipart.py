"""Questions with exact answers: made alike everywhere, half with a last line, and read from answers in any style."""

import math
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


def worked_out(part: str) -> str:
    """The answer to a part, from its text."""
    numbers, listed = list(map(int, re.findall(r"\d+", part))), part[:-1].rpartition(": ")[2].split(", ")
    match part.split():
        case ["What", "is", _, sign, _]:
            return str({"+": sum, "-": lambda both: both[0] - both[1], "times": math.prod}[sign](numbers))
        case ["How", "many", "words", *_]:
            return str(len(listed))
        case ["These", "are", "prices:", *words]:
            return words[words.index(words[-1][:-1]) + 1].rstrip(",.")
        case ["Which", "is", "the", "largest", *_]:
            return str(max(numbers))
        case ["Sort", "from", "smallest", *_]:
            return ", ".join(map(str, sorted(numbers)))
        case ["Which", "of", "these", "names", "is", "first", *_]:
            return min(listed)
        case ["Write", "the", "first", "letters", *_]:
            return "".join(word[0] for word in listed)
        case ["What", "is", "the", ordinal, "word", *_]:
            return listed[("first", "second", "third", "fourth", "last").index(ordinal)]
    raise AssertionError(part)


def test_the_questions_are_the_same_on_every_machine_and_their_answers_right():
    made = questions()
    assert of_texts(sorted(made)) == "7f2261242b706d4e"
    assert len(made) == COUNT
    assert sum(one.last is not None for one in made.values()) == COUNT // 2
    for text, one in made.items():
        assert FEWEST <= len(one.answers) <= MOST
        asked = re.findall(r"^(\d+)\. (.*)$", text, re.MULTILINE)
        assert [int(n) for n, _ in asked] == list(range(1, len(one.answers) + 1))
        assert one.answers == tuple(worked_out(part) for _, part in asked)
        if one.last:
            line = text.splitlines()[-1]
            needed = {n: one.answers[int(n) - 1] for n in re.findall(r"\d+", line)}
            values = [int(answer) for answer in needed.values()]
            same = " and ".join(n for n, answer in needed.items() if values.count(int(answer)) == 2)
            kinds = {"the largest": str(max(values)), "the sum": str(sum(values)), "the same answer": same}
            assert [one.last] == [last for kind, last in kinds.items() if kind in line]


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
    assert lines_of(answer, 3) == {1: "** 4", 2: " ags    more", 3: " 5", LAST: ":** 9"}


def test_a_result_on_a_line_of_its_own_begins_no_part():
    assert lines_of("1.\n109.\n2. x\n" + 5000 * "9" + ".", 3)[1] == " 109."
    assert lines_of("2. 29 + 80\n= 109.\n0) no", 3) == {2: " 29 + 80 = 109. 0) no"}
