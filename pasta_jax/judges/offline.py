"""Judges that ask nobody: the toy task's exact grader, and proxies that measure something else than quality.

A proxy's name says what it measures; how far it agrees with given preferences is measured beside its scores
(judges.agreement).
"""

import functools
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from pasta_jax.data.example import encode
from pasta_jax.data.packing import pack
from pasta_jax.data.toy import Problem
from pasta_jax.judges.judge import TIE, Judge, Verdict, by_chance
from pasta_jax.judges.minilm import Embed, cosine
from pasta_jax.judges.rules import Rule, share
from pasta_jax.models.weights import Model

PROXIES = ("likelihood", "relevance", "rules", "repetition", "length")
NGRAM = 4  # words
NOTHING_SAID = -20.0  # nats a token: below any text


def toy_grader(problems: Mapping[str, Problem]) -> Judge:
    """Exact: a right answer beats a wrong one, two right ones tie, of two wrong ones that with more right lines leads.

    `problems` by their instructions.
    """

    def judge(question: str, first: str, second: str) -> Verdict:
        problem = problems[question]
        right = problem.exact(first), problem.exact(second)
        if right[0] != right[1]:
            return Verdict(float(right[0]), float(right[1]))
        if right[0]:
            return TIE
        lines = [sum(problem.grade(text)) / len(problem.lines) for text in (first, second)]
        return by_chance(0.5 + (lines[0] - lines[1]) / 2)

    return judge


def comparing(measure, scale: float) -> Judge:
    """A judge from a number for each answer, the higher the better; a difference of `scale` is a verdict of 73 %."""

    def judge(question: str, first: str, second: str) -> Verdict:
        difference = (measure(question, first) - measure(question, second)) / scale
        return by_chance(1 / (1 + math.exp(-max(min(difference, 50.0), -50.0))))

    return judge


def repetition(question: str, answer: str) -> float:
    """Minus the share of word 4-grams that stood in the answer before; an empty answer is the worst."""
    words = re.findall(r"\w+", answer.casefold())
    if not words:
        return -1.0
    grams = [tuple(words[at : at + NGRAM]) for at in range(len(words) - NGRAM + 1)]
    return len(set(grams)) / len(grams) - 1.0 if grams else 0.0


def length(question: str, answer: str) -> float:
    """Words, by their logarithm. The cheapest proxy: many a judge has a taste for long answers."""
    return math.log1p(len(answer.split()))


def relevance(embed: Embed, references: Mapping[str, str]):
    """Cosine of the answer to the question; where `references` knows an answer to it, the mean of that and the
    cosine to the known one. An empty answer is the worst.

    Against the reference itself every answer loses, and the less the nearer it is: quality reads no more than that.
    """

    def measure(question: str, answer: str) -> float:
        if not answer.strip():
            return -1.0
        texts = [question, *([references[question]] if question in references else [])]
        return sum(cosine(embed, answer, text) for text in texts) / len(texts)

    return measure


def rules_kept(rules: Mapping[str, Sequence[Rule]]):
    """Share of a question's rules that an answer keeps. Any two answers to a question without rules are equal."""

    def measure(question: str, answer: str) -> float:
        return share(rules[question], answer) if rules.get(question) else 0.0

    return measure


def likelihood(model: Model, score, lengths: Sequence[int]):
    """Nats a token that a frozen model gives to the final text as a plain answer to the question.

    `score(batch)` gives the log-probability of each row of a batch. An answer too long for the longest of `lengths` is
    judged by its beginning.
    """
    tokenizer = model.tokenizer

    @functools.lru_cache(maxsize=65536)
    def measure(question: str, answer: str) -> float:
        prompt = tokenizer.chat([("user", question)])[: lengths[-1] // 2]
        ids = tokenizer.encode(answer)[: lengths[-1] - len(prompt)]
        if not ids:
            return NOTHING_SAID
        example = encode(prompt, ids, tokenizer.tags, tokenizer.end_of_turn, "predicted", 0)
        room = next(length for length in lengths if length >= len(example))
        return float(np.asarray(score(pack([[example]], room)))[0]) / (len(ids) + 1)

    return measure
