"""Judges that need no language model behind an API: the toy task's exact grader, and proxies for quality.

A proxy measures something other than quality; its name states what. `PROXIES` are those that the judge configs offer.
`relevance` and `likelihoods` are not among them: as judges they agree with 300 known preferences no more than chance
does (docs/RESULTS.md). As measures they tell how well an answer fits its question's topic, and how fluent it is.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from pasta_jax.data.example import Example, encode
from pasta_jax.data.packing import Batch, pack
from pasta_jax.data.repetition import repeated
from pasta_jax.errors import PastaError
from pasta_jax.judges.judge import TIE, Judge, Verdict, from_probability
from pasta_jax.judges.minilm import Embed, cosine
from pasta_jax.judges.rules import Rule, rules_of, share
from pasta_jax.lang.structure import NO_LABEL, PREDICTED
from pasta_jax.toy.task import Problem
from pasta_jax.weights.model import Model

PROXIES = ("rules", "repetition")
EMPTY_ANSWER = -20.0  # nats per token: below any text

Measure = Callable[[str, str], float]  # of a question and an answer; higher is better


def toy_grader(problems: Mapping[str, Problem]) -> Judge:
    """The exact judge of the toy task; `problems` by their instructions.

    A correct answer beats an incorrect one, and two correct ones tie. Of two incorrect ones, the one with more correct
    lines wins.
    """

    def judge(question: str, first: str, second: str) -> Verdict:
        problem = problems[question]
        exact = problem.exact(first), problem.exact(second)
        if exact[0] != exact[1]:
            return Verdict(float(exact[0]), float(exact[1]))
        if exact[0]:
            return TIE
        shares = [sum(problem.grade(text)) / len(problem.lines) for text in (first, second)]
        return from_probability(0.5 + (shares[0] - shares[1]) / 2)

    return judge


def comparing(measure: Measure, scale: float) -> Judge:
    """A judge that prefers the answer with the higher measure; a difference of `scale` is a verdict of 73%."""

    def judge(question: str, first: str, second: str) -> Verdict:
        difference = (measure(question, first) - measure(question, second)) / scale
        return from_probability(1 / (1 + math.exp(-max(min(difference, 50.0), -50.0))))

    return judge


def proxy(kind: str, rules_source: str) -> Measure:
    """The measure of a proxy judge. `rules` reads its rules from `rules_source` (data/sources.py)."""
    match kind:
        case "repetition":
            return repetition
        case "rules":
            rules = rules_of(rules_source)
            if not rules:
                raise PastaError(
                    f"{rules_source}: no question has rules to judge by; "
                    "use records with instruction_id_list and kwargs, as IFEval has"
                )
            return rules_followed(rules)
    raise PastaError(f"{kind!r}: unknown proxy judge; choose one of {', '.join(PROXIES)}")


def repetition(question: str, answer: str) -> float:
    """Minus the share of word 4-grams that occurred before in the answer; an empty answer is the worst."""
    words = re.findall(r"\w+", answer.casefold())
    return -repeated(words) if words else -1.0


def rules_followed(rules: Mapping[str, Sequence[Rule]]) -> Measure:
    """The share of a question's rules that an answer follows. Answers to a question without rules are equal."""

    def measure(question: str, answer: str) -> float:
        return share(rules[question], answer) if rules.get(question) else 0.0

    return measure


def relevance(embed: Embed, references: Mapping[str, str]) -> Measure:
    """Cosine of answer and question; with a reference answer, the mean of that and the cosine to the reference.

    An empty answer is the worst.
    """

    def measure(question: str, answer: str) -> float:
        if not answer.strip():
            return -1.0
        texts = [question, *([references[question]] if question in references else [])]
        return sum(cosine(embed, answer, text) for text in texts) / len(texts)

    return measure


def likelihoods(
    model: Model, score: Callable[[Batch], np.ndarray], lengths: Sequence[int], rows: int
) -> Callable[[Sequence[tuple[str, str]]], list[float]]:
    """Nats per token that a frozen model assigns to answers' texts, read as plain answers to their questions.

    `score` returns the log-probability of each row of a batch, of which each has `rows` rows. Answers of similar length
    share a batch, padded to the next of `lengths`; one too long for the longest is scored by its beginning.
    """
    tokenizer = model.tokenizer

    def measure(pairs: Sequence[tuple[str, str]]) -> list[float]:
        values = [EMPTY_ANSWER] * len(pairs)
        examples: list[tuple[int, Example]] = []
        for number, (question, answer) in enumerate(pairs):
            prompt = tokenizer.chat([("user", question)])[: lengths[-1] // 2]
            if ids := tokenizer.encode(answer)[: lengths[-1] - len(prompt)]:
                examples.append((number, encode(prompt, ids, tokenizer.tags, tokenizer.end_of_turn, PREDICTED)))
        examples.sort(key=lambda each: len(each[1]))
        for start in range(0, len(examples), rows):
            some = examples[start : start + rows]
            length = next(length for length in lengths if length >= len(some[-1][1]))
            batch = pack([[example] for _, example in some] + [[]] * (rows - len(some)), length)
            for (number, example), total in zip(some, np.asarray(score(batch)), strict=False):
                values[number] = float(total) / np.count_nonzero(example.label != NO_LABEL)
        return values

    return measure
