"""The judge `checked`: a weighted sum of checks, log-likelihood and fit, terms from 0 to 1 of one answer each.

    finished     the answer ended by itself
    topics       different topics / topics; 1 without any
    repetition   1 - share of word 4-grams that occurred before
    rules        share of the prompt's rules that are followed, as IFEval has them; left out for prompts without rules
    fluency      mean log-probability per token under an untrained model, from `worst` (0) to `best` (1)
    fit          cosine of answer and question under MiniLM, at least 0

One more term compares the two answers:

    enough       new words / words that are enough, at most 1; enough are `share` of the other answer's new words

where a word is new unless it ends a repeated 4-gram. Without it, an answer that says nearly nothing is a good one: it
has finished and repeats nothing.

No term measures whether an answer is right. Fluency counts up to `best`: beyond it are mostly loops, which are very
likely token by token. An empty answer is worth 0. The difference of two sums, relative to `scale`, is the verdict:
`scale` is a verdict of 73%.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from pasta_jax.judges.judge import Entry, Verdict, from_probability
from pasta_jax.judges.offline import repetition
from pasta_jax.judges.rules import Rule, share
from pasta_jax.judges.settings import Checks
from pasta_jax.lang.words import is_mark, words

LogProbabilities = Callable[[Sequence[tuple[str, str]]], Sequence[float]]  # of (question, answer): nats per token
Fit = Callable[[str, str], float]  # of a question and an answer


def spelling(topic: str) -> str:
    """The letters, marks and digits of a topic, case aside: topics are different if these are."""
    return "".join(char for char in topic if char.isalnum() or is_mark(char)).casefold()


def new_words(text: str) -> float:
    """The words of a text without its share of repeated 4-grams."""
    return len(words(text)) * (1.0 + repetition("", text)) if text.strip() else 0.0


@dataclasses.dataclass
class CheckedJudge:
    """The judge; sums are computed once per answer. `prepare` computes the log-probabilities of several together."""

    checks: Checks
    rules: Mapping[str, Sequence[Rule]]
    log_probabilities: LogProbabilities
    fit: Fit
    _nats: dict[tuple[str, str], float] = dataclasses.field(default_factory=dict)
    _sums: dict[tuple[str, Entry], float] = dataclasses.field(default_factory=dict)

    def prepare(self, question: str, entries: Sequence[Entry]) -> None:
        """Compute what is missing for these answers; what is known of other questions is forgotten."""
        self._sums = {key: value for key, value in self._sums.items() if key[0] == question}
        self._nats = {key: value for key, value in self._nats.items() if key[0] == question}
        if not self.checks.weights.fluency:
            return
        texts = dict.fromkeys(entry.text for entry in entries if entry.text.strip())
        missing = [(question, text) for text in texts if (question, text) not in self._nats]
        if missing:
            self._nats |= dict(zip(missing, self.log_probabilities(missing), strict=True))

    def terms(self, question: str, entry: Entry) -> dict[str, float]:
        """The terms of an answer that is not empty; those that count nothing are not computed."""
        weights, rules = self.checks.weights, self.rules.get(question)
        spelled = [one for topic in entry.topics if (one := spelling(topic))]  # chunks may have none
        terms = {
            "finished": float(entry.finished),
            "topics": len(set(spelled)) / len(spelled) if spelled else 1.0,
            "repetition": 1.0 + repetition(question, entry.text),
        }
        if rules:
            terms["rules"] = share(rules, entry.text)
        if weights.fluency:
            if (question, entry.text) not in self._nats:
                self.prepare(question, [entry])
            worst, best = self.checks.worst, self.checks.best
            terms["fluency"] = min(max((self._nats[question, entry.text] - worst) / (best - worst), 0.0), 1.0)
        if weights.fit:
            terms["fit"] = max(self.fit(question, entry.text), 0.0)
        return terms

    def value(self, question: str, entry: Entry) -> float:
        """The weighted sum of an answer's terms."""
        if not entry.text.strip():
            return 0.0
        if (question, entry) not in self._sums:
            terms = self.terms(question, entry)
            self._sums[question, entry] = sum(getattr(self.checks.weights, name) * term for name, term in terms.items())
        return self._sums[question, entry]

    def enough(self, entry: Entry, other: Entry) -> float:
        """Whether an answer says enough beside another one, from 0 to 1."""
        return min(new_words(entry.text) / max(self.checks.share * new_words(other.text), 1.0), 1.0)

    def __call__(self, question: str, first: Entry, second: Entry) -> Verdict:
        """The verdict on two answers."""
        self.prepare(question, [first, second])
        difference = self.value(question, first) - self.value(question, second)
        if self.checks.weights.enough:
            difference += self.checks.weights.enough * (self.enough(first, second) - self.enough(second, first))
        difference /= self.checks.scale
        return from_probability(1 / (1 + math.exp(-max(min(difference, 50.0), -50.0))))
