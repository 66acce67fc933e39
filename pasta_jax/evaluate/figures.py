"""Figures of a model's answers to a set of prompts; summary.py has those of their speed.

Each is a share or an arithmetic mean, or None where nothing has it: promised lengths without a chunk, rules without a
prompt that has some.
"""

import dataclasses
import re
import statistics
from collections.abc import Callable, Mapping, Sequence

from pasta_jax.data.prompt_sets import asks_for_list
from pasta_jax.evaluate.answers import SystemAnswer
from pasta_jax.judges.checked import spelling
from pasta_jax.judges.offline import repetition
from pasta_jax.judges.rules import Rule, share
from pasta_jax.lang.program import MAX_TOPIC_WORDS, Program, Sync
from pasta_jax.lang.words import plain_words, words
from pasta_jax.models.tag_rows import WORDS

# Text that looks like a tag, and a word of a tag's initial row where a tag belongs: by itself at the end of a thread's
# text. In "Drink water. end" the word was meant to be [/ASYNC].
_LOOKALIKE = re.compile(r"</?(?:async|sync|promise)\b|\[/?(?:ASYNC|SYNC|PROMISE)\b")
_TAG_WORDS = sorted({word.strip() for several in WORDS.values() for word in several})
_STRAY = re.compile(rf"(?:^|[.!?:;,)\n*])\s*(?:{'|'.join(_TAG_WORDS)})\s*$")


@dataclasses.dataclass(frozen=True)
class Figures:
    """Of one model's answers to one set of prompts."""

    answers: int
    lists: int  # prompts that ask for a list
    fork_rate: float  # answers with a chunk
    fork_rate_of_lists: float | None
    malformed: float
    malformed_unmasked: float | None  # that would be without the grammar mask, of those measured
    chunks: float  # per forked answer
    distinct_topics: float | None  # forked answers in which no topic occurs twice, case and punctuation aside
    short_topics: float | None  # topics of one to three words
    leaks: float  # answers in which a tag occurs as text, or a tag's word in place of a tag
    promised: float | None  # ids, over chunks that closed themselves
    length: float | None
    length_error: float | None  # mean of |promised - length|
    length_correlation: float | None
    stopped: float  # answers that ended by themselves
    tokens: float  # text tokens per answer
    repetition: float  # share of word 4-grams that occurred before, mean over answers
    rules: float | None  # answers that follow all rules of their prompt, of those with rules


def figures(answers: Sequence[SystemAnswer], rules: Mapping[str, Sequence[Rule]]) -> Figures:
    """The figures of some answers. `rules` by prompt: IFEval's, or none."""
    forked = [answer for answer in answers if answer.chunks]
    lists = [answer for answer in answers if asks_for_list(answer.prompt)]
    chunks = [chunk for answer in forked for chunk in answer.chunks]
    has_topics = any(chunk.topic for chunk in chunks)  # some systems' chunks have none
    promises = [chunk for chunk in chunks if chunk.closed == "own" and chunk.promised]
    own = [(float(chunk.promised), float(chunk.length)) for chunk in promises]
    promised, length = map(list, zip(*own, strict=True)) if own else ([], [])
    measured = [answer for answer in answers if answer.malformed_unmasked is not None]
    ruled = [answer for answer in answers if rules.get(answer.prompt)]
    return Figures(
        answers=len(answers),
        lists=len(lists),
        fork_rate=_share(answers, lambda answer: bool(answer.chunks)) or 0.0,
        fork_rate_of_lists=_share(lists, lambda answer: bool(answer.chunks)),
        malformed=_share(answers, lambda answer: answer.malformed) or 0.0,
        malformed_unmasked=_share(measured, lambda answer: answer.malformed_unmasked),
        chunks=len(chunks) / max(len(forked), 1),
        distinct_topics=_share(forked if has_topics else [], has_distinct_topics),
        short_topics=_share(
            chunks if has_topics else [], lambda chunk: 1 <= len(words(chunk.topic)) <= MAX_TOPIC_WORDS
        ),
        leaks=_share(answers, leaks_a_tag) or 0.0,
        promised=_mean(promised),
        length=_mean(length),
        length_error=_mean([abs(expected - actual) for expected, actual in own]),
        length_correlation=_correlation(promised, length),
        stopped=_share(answers, lambda answer: answer.finished) or 0.0,
        tokens=_mean([answer.text_tokens for answer in answers]) or 0.0,
        repetition=_mean([-repetition(answer.prompt, answer.text) for answer in answers if plain_words(answer.text)])
        or 0.0,
        rules=_share(ruled, lambda answer: share(rules[answer.prompt], answer.text) == 1.0),
    )


def has_distinct_topics(answer: SystemAnswer) -> bool:
    """Whether no two topics of an answer have the same letters and digits, case aside."""
    spelled = [spelling(chunk.topic) for chunk in answer.chunks]
    return len(set(spelled)) == len(spelled)


def leaks_a_tag(answer: SystemAnswer) -> bool:
    """Whether a tag occurs as text, or a tag's word where a tag belongs."""
    if _LOOKALIKE.search(answer.text):
        return True
    texts = [part.text for part in Program.parse(answer.program).parts if not isinstance(part, Sync)]
    return any(_STRAY.search(text) for text in texts)


def _share(items: Sequence, holds: Callable[..., bool]) -> float | None:
    return sum(map(holds, items)) / len(items) if items else None


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Pearson's; None if there are fewer than two pairs or one side is constant."""
    if len(set(first)) < 2 or len(set(second)) < 2:
        return None
    return statistics.correlation(first, second)
