"""The toy task: problems depend on seed and number alone, grading finds every error, each word is one token."""

import functools
import inspect
import re
from collections import Counter

import numpy as np
import pytest

from pasta_jax.errors import PastaError
from pasta_jax.lang.clock import clock
from pasta_jax.lang.lexer import ANNOTATION
from pasta_jax.lang.program import Chunk, Program, Sync, check
from pasta_jax.lang.tags import escape
from pasta_jax.tokenizers.tokenizer import load_tokenizer
from pasta_jax.toy import task
from pasta_jax.toy.task import ENDS_REQUEST, HELD_OUT, LEVELS, RINGS, STYLES, WORDS, Problem, problems, ring, walk
from pasta_jax.toy.tokenizer import toy_tokenizer
from tests import ROOT

MANY = problems(1, 0, 400, "medium")


def solved(instruction: str, words: int) -> str:
    """The answer, computed from the instruction alone and the neighbours in each ring."""
    lines, ends = [], "ends"
    for line in instruction.split("\n"):
        if line == ENDS_REQUEST:
            lines.append(ends)
            continue
        name, word, steps = re.fullmatch(r"(\w+) (\w+) (\d+)", line).groups()
        order = ring(name, words)
        after = dict(zip(order, (*order[1:], order[0]), strict=True))
        text = name
        for left in range(int(steps), 0, -1):
            text += f" {word} {left}"
            end, word = word, after[word]
        lines.append(f"{text} {end.capitalize()}")
        ends += f" {name} {end.capitalize()}"
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("level", LEVELS)
def test_the_answer_follows_from_the_instruction_alone(level):
    for problem in problems(3, 0, 60, level):
        assert problem.answer == solved(problem.instruction, LEVELS[level].words)
        assert problem.exact(problem.answer)
        assert all(problem.grade(problem.answer))


def test_the_example_of_the_module_is_a_problem_and_its_answer():
    question, answer = re.findall(r"(?:^ {4}.+\n)+", task.__doc__, re.MULTILINE)
    instruction = inspect.cleandoc(question)
    assert is_of_level(instruction, "large")
    assert inspect.cleandoc(answer) + "\n" == solved(instruction, LEVELS["large"].words)


def is_of_level(instruction: str, level: str) -> bool:
    """Whether the level's problems may have this instruction."""
    size, walks = LEVELS[level], [line.split() for line in instruction.split("\n") if line != ENDS_REQUEST]
    at = [[*RINGS].index(name) for name, _, _ in walks]
    lengths = range(size.steps[0], size.steps[1] + 1)
    return (at == sorted(set(at)) and max(at) < size.rings) and all(
        word in ring(name, size.words) and int(steps) in lengths for name, word, steps in walks
    )


@pytest.mark.parametrize(
    ("file", "levels"),
    [
        ("configs/decode.py", ["medium", "medium"]),
        ("notebooks/pasta_colab.ipynb", ["small", "medium"]),
        ("docs/API.md", ["small"]),
        ("docs/TOY.md", ["medium"]),
    ],
)
def test_examples_ask_what_their_model_was_trained_on(file, levels):
    text = (ROOT / file).read_text(encoding="utf-8").replace("\\\\n", "\n").replace("\\n", "\n").replace('\\"', '"')
    questions = re.findall(r"""["'](birds \w+ \d+\n[^"']+)["']""", text)
    assert [is_of_level(question, level) for question, level in zip(questions, levels, strict=True)] == [True] * len(
        levels
    )


def test_a_problem_depends_on_seed_and_number_alone():
    assert problems(5, 10, 30, "medium") == problems(5, 0, 40, "medium")[10:]
    assert problems(5, 0, 1, "medium") != problems(6, 0, 1, "medium")


def test_rings_are_single_cycles_and_share_no_word():
    for level in LEVELS.values():
        orders = [ring(name, level.words) for name in [*RINGS][: level.rings]]
        words = [word for order in orders for word in order]
        assert len(words) == len(set(words)) == level.rings * level.words
        assert set(words) <= set(WORDS)
    first = ring("birds", 16)[5]
    *_, before, last = walk("birds", 16, 16, first)
    assert walk("birds", 16, 3, before) == [before, last, first]


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_held_out_instructions_are_never_drawn_for_training(level):
    held_out = {problem.instruction for problem in problems(HELD_OUT, 0, 1000, level)}
    training = {problem.instruction for seed in (1, 2) for problem in problems(seed, 0, 3000, level)}
    assert len(held_out) > 500 or level == "small"
    assert not held_out & training


def test_styles_and_counts_of_parts_occur_as_often_as_their_level_states():
    level, drawn = LEVELS["medium"], problems(4, 0, 4000, "medium")
    walks = Counter(len(problem.lines) - problem.has_ends for problem in drawn)
    styles = Counter(problem.style for problem in drawn)
    for number, weight in enumerate(level.parts, start=1):
        assert walks[number] / 4000 == pytest.approx(weight / sum(level.parts), abs=0.03)
    for style, weight in zip(STYLES, level.styles, strict=True):
        assert styles[style] / 4000 == pytest.approx(weight / sum(level.styles), abs=0.03)
    several = [problem for problem in drawn if problem.forkable]
    assert np.mean([problem.has_ends for problem in several]) == pytest.approx(level.ends, abs=0.03)


@functools.cache
def programs() -> list[tuple[Problem, Program]]:
    return [(problem, problem.program(toy_tokenizer())) for problem in MANY]


def test_annotations_keep_the_answer_and_the_rules_of_the_language():
    for problem, program in programs():
        assert program.strip() == problem.answer
        assert escape(problem.answer, ANNOTATION) == problem.answer
        assert check(program.render(), toy_tokenizer()) == []
        assert Program.from_ids(program.ids(toy_tokenizer()), toy_tokenizer()) == program


def test_styles_fork_what_they_name():
    for problem, program in programs():
        chunks = [part for part in program.parts if isinstance(part, Chunk)]
        walks = len(problem.lines) - problem.has_ends
        pairs = (walks + 1) // 2
        expected = {"each": walks, "last_in_main": walks - 1, "pairs": pairs, "halves": pairs, "unsynced": walks}
        assert len(chunks) == (expected.get(problem.style, 0) if problem.forkable else 0)
        forked = problem.lines[: sum(chunk.text.count("\n") for chunk in chunks)]
        assert " ".join(chunk.topic for chunk in chunks).split() == [line.split()[0] for line in forked]
        assert (Sync() in program.parts) == (bool(chunks) and problem.has_ends and problem.style != "unsynced")


def test_forking_shortens_the_critical_path():
    """Four walks and more, a chunk each: the critical path is well below the plain answer."""
    tokenizer = toy_tokenizer()
    for problem, program in programs():
        if problem.style == "each" and len(problem.lines) - problem.has_ends >= 4:
            path = clock(program.ids(tokenizer), tokenizer.tags, 0).critical_path
            assert path < len(tokenizer.encode(problem.answer)) / 1.5


def test_grading_finds_the_wrong_line_and_only_it():
    for problem in MANY[:100]:
        for at, line in enumerate(problem.lines):
            words = line.split(" ")
            for spoilt in (
                [*words[:-1], "wolf" if words[-1] != "wolf" else "ant"],
                words[:-1],
                [*words, "ant"],
                [*words[:1], "", *words[1:]],
                ["#", *words],
            ):
                lines = [*problem.lines[:at], " ".join(spoilt), *problem.lines[at + 1 :]]
                text = "".join(line + "\n" for line in lines)
                assert problem.grade(text) == tuple(number != at for number in range(len(lines)))
                assert not problem.exact(text)


def test_grading_refuses_repeats_and_exactness_refuses_everything_else():
    problem = next(problem for problem in MANY if len(problem.lines) == 3)
    first, *others = problem.lines
    assert problem.grade("\n".join([first, first, *others])) == (False, True, True)
    assert problem.grade("\n".join([first, f"{first.split()[0]} 1 ant", *others])) == (False, True, True)
    assert problem.grade("") == (False, False, False)
    assert problem.grade(problem.answer + "and so on") == (True, True, True)
    for text in (problem.answer + "\n", problem.answer[:-1], problem.answer + "and so on", ""):
        assert not problem.exact(text)


def test_an_unknown_level_is_refused_with_the_known_ones():
    with pytest.raises(PastaError, match=r"level 'huge': .* small, medium, large"):
        problems(1, 0, 1, "huge")


def test_every_word_is_one_id_in_any_place():
    tokenizer = toy_tokenizer()
    counts = [str(count) for count in range(1, 17)]
    for word in [*RINGS, *WORDS, *map(str.capitalize, WORDS), *counts, "the", "ends"]:
        assert len(tokenizer.encode(f" {word}")) == 1, word
    for word in [*RINGS, "ends", "then"]:
        assert len(tokenizer.encode(word)) == 1, word
    for problem in MANY:
        for text in (problem.instruction, problem.answer):
            assert len(tokenizer.encode(text)) == len(re.findall(r" ?\w+|\n", text))


def test_the_tokenizer_is_always_the_same_and_can_be_saved(tmp_path):
    tokenizer = toy_tokenizer()
    retrained = toy_tokenizer.__wrapped__()
    assert retrained.vocabulary.content() == tokenizer.vocabulary.content()
    loaded = load_tokenizer(tokenizer.save(tmp_path))
    text = f"{MANY[0].instruction} Größe 東京 <end_of_turn>"
    assert loaded.encode(text) == tokenizer.encode(text)
    assert loaded.decode(loaded.encode(text)) == text
    assert (loaded.tags, loaded.model_vocab) == (tokenizer.tags, tokenizer.model_vocab)
    assert tokenizer.model_vocab % 128 == 0
