"""Judges that need no language model behind an API: the toy task's exact grader, and proxies for quality.

A proxy measures something other than quality; its name states what. `likelihoods` is a term of judges/checked.py; alone
it agrees with known preferences no more than chance does (docs/results/judges.md).
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from pasta_jax.data.example import Example, encode
from pasta_jax.data.packing import Batch, by_length, pack
from pasta_jax.data.repetition import repeated
from pasta_jax.judges.judge import TIE, Entry, Judge, Verdict, from_probability
from pasta_jax.judges.rules import Rule, share
from pasta_jax.lang.structure import NO_LABEL, PREDICTED
from pasta_jax.lang.words import plain_words
from pasta_jax.toy.task import Problem
from pasta_jax.weights.model import Model

EMPTY_ANSWER = -20.0  # nats per token: below any text

Measure = Callable[[str, str], float]  # of a question and an answer; higher is better


def toy_grader(problems: Mapping[str, Problem]) -> Judge:
    """The exact judge of the toy task; `problems` by their instructions.

    A correct answer beats an incorrect one, and two correct ones tie. Of two incorrect ones, the one with more correct
    lines wins.
    """

    def judge(question: str, first: Entry, second: Entry) -> Verdict:
        problem = problems[question]
        exact = problem.exact(first.text), problem.exact(second.text)
        if exact[0] != exact[1]:
            return Verdict(float(exact[0]), float(exact[1]))
        if exact[0]:
            return TIE
        shares = [sum(problem.grade(answer.text)) / len(problem.lines) for answer in (first, second)]
        return from_probability(0.5 + (shares[0] - shares[1]) / 2)

    return judge


def comparing(measure: Measure, scale: float) -> Judge:
    """A judge that prefers the answer with the higher measure; a difference of `scale` is a verdict of 73%."""

    def judge(question: str, first: Entry, second: Entry) -> Verdict:
        difference = (measure(question, first.text) - measure(question, second.text)) / scale
        return from_probability(1 / (1 + math.exp(-max(min(difference, 50.0), -50.0))))

    return judge


def repetition(question: str, answer: str) -> float:
    """Minus the share of word 4-grams that occurred before in the answer; an empty answer is the worst."""
    words = plain_words(answer.casefold())
    return -repeated(words) if words else -1.0


def rules_followed(rules: Mapping[str, Sequence[Rule]]) -> Measure:
    """The share of a question's rules that an answer follows. Answers to a question without rules are equal."""

    def measure(question: str, answer: str) -> float:
        return share(rules[question], answer) if rules.get(question) else 0.0

    return measure


def likelihoods(
    model: Model, score: Callable[[Batch], np.ndarray], lengths: Sequence[int], rows: int
) -> Callable[[Sequence[tuple[str, str]]], list[float]]:
    """Nats per token that a frozen model assigns to answers' texts, read as plain answers to their questions.

    `score` returns the log-probability of each row of a batch, of which each has `rows` rows. Answers of similar length
    share a batch, padded to the next of `lengths`; one too long for the longest is scored by its beginning, and a
    question by what fits into half of it.
    """
    tokenizer = model.tokenizer

    def prompt_of(question: str) -> list[int]:
        """The whole question, or its beginning: what opens the answer always follows."""
        prompt = tokenizer.chat([("user", question)])
        if (excess := len(prompt) - lengths[-1] // 2) > 0:
            prompt = tokenizer.chat([("user", tokenizer.decode(tokenizer.encode(question)[:-excess]))])
        return prompt

    def measure(pairs: Sequence[tuple[str, str]]) -> list[float]:
        values = [EMPTY_ANSWER] * len(pairs)
        examples: list[tuple[int, Example]] = []
        for number, pair in enumerate(pairs):
            question, answer = map(tokenizer.without_missing, pair)
            prompt, ids = prompt_of(question), tokenizer.encode(answer)
            if part := ids[: lengths[-1] - len(prompt)]:
                whole = len(part) == len(ids)
                examples.append((number, encode(prompt, part, tokenizer.tags, tokenizer.end_of_turn, PREDICTED, whole)))
        for some, length in by_length([len(example) for _, example in examples], lengths, rows):
            batch = pack([[examples[place][1]] for place in some] + [[]] * (rows - len(some)), length)
            for place, total in zip(some, np.asarray(score(batch)), strict=False):
                number, example = examples[place]
                values[number] = float(total) / np.count_nonzero(example.label != NO_LABEL)
        return values

    return measure
