"""The judges' one interface: which of two answers is better, with what confidence; and quality computed from that.

    judge(question, first, second) -> Verdict, or None if the judge returned none

Judges read Entries: an answer's text, and what some of them want to know beside it. A judge that reads both answers may
favour a position, so each pair is judged in both orders. A verdict assigns each answer a confidence; an undecided judge
assigns one half to both.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from pasta_jax.files.validated import Count, Share


@dataclasses.dataclass(frozen=True)
class Entry:
    """An answer as judges read it."""

    text: str
    finished: bool = True  # by itself, not by a limit
    topics: tuple[str, ...] = ()  # of its chunks


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Confidence, from 0 to 1, that the first or the second answer is the better one."""

    first: Share
    second: Share

    def swapped(self) -> "Verdict":
        return Verdict(self.second, self.first)


TIE = Verdict(0.5, 0.5)
Judge = Callable[[str, Entry, Entry], Verdict | None]


def from_probability(probability: float) -> Verdict:
    """The verdict of a judge that returns the probability that the first answer is the better one."""
    return Verdict(probability, 1 - probability)


def both_orders(judge: Judge, question: str, answer: Entry, others: Sequence[Entry]) -> tuple[Verdict, ...] | None:
    """Verdicts on an answer against every other, in both orders; `answer` is the first of each verdict.

    None if one is missing: one order alone would carry the judge's preference for a position.
    """
    verdicts: list[Verdict] = []
    for other in others:
        forward, reverse = judge(question, answer, other), judge(question, other, answer)
        if forward is None or reverse is None:
            return None
        verdicts += [forward, reverse.swapped()]
    return tuple(verdicts)


def quality(verdicts: Iterable[Verdict], floor: float) -> float:
    """Confidence of wins over that of losses, the losses at least `floor`: an answer that never loses stays finite."""
    verdicts = list(verdicts)
    return sum(verdict.first for verdict in verdicts) / max(sum(verdict.second for verdict in verdicts), floor)


def win_rate(verdicts: Iterable[Verdict]) -> float:
    """Share of all confidence that went to the first answers; 0.5 if there is none."""
    won, lost = map(sum, zip(*((v.first, v.second) for v in verdicts), strict=True))
    return won / (won + lost) if won + lost else 0.5


def prefers(verdicts: Iterable[Verdict]) -> float:
    """1 if every verdict is for the answer, 0 if every one is for the other; a half if none is, or orders disagree."""
    signs = {(verdict.first > verdict.second) - (verdict.first < verdict.second) for verdict in verdicts}
    return (signs.pop() + 1) / 2 if len(signs) == 1 else 0.5


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How often a judge prefers the answer that a dataset prefers."""

    pairs: Count
    agreed: Share  # share of the pairs; a tie counts one half
    tied: Count  # pairs on which the judge had no preference, or one for a position

    @property
    def near_chance(self) -> bool:
        """Whether the share is within two standard deviations of that of random verdicts."""
        return abs(self.agreed - 0.5) <= 2 * 0.5 / max(self.pairs, 1) ** 0.5

    def __str__(self) -> str:
        tied = f" ({self.tied} of them undecided)" if self.tied else ""
        chance = ", no better than chance: its scores do not measure general quality" if self.near_chance else ""
        return f"agrees with {self.agreed:.1%} of {self.pairs} known preferences{tied}{chance}"


def agreement(judged: Iterable[tuple[Verdict, ...] | None]) -> Agreement:
    """Over verdicts on a chosen answer beside the rejected one; pairs without are left out."""
    agreed, count, tied = 0.0, 0, 0
    for verdicts in judged:
        if verdicts is None:
            continue
        preferred = prefers(verdicts)
        agreed += preferred
        tied += preferred == 0.5
        count += 1
    return Agreement(count, agreed / max(count, 1), tied)
