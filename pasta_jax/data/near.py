"""Prompts that are nearly those of a set: the same words, or most of their runs of three words."""

from collections import Counter, defaultdict
from collections.abc import Iterable

from pasta_jax.lang.words import single_words

RUN = 3
NEAR = 0.6  # Jaccard similarity of the runs: one word of a sentence of 14 differs


class Near:
    """A set of prompts, and what is near one of them. Case, punctuation and whitespace don't count."""

    def __init__(self, prompts: Iterable[str]):
        self._sizes: list[int] = []
        self._with: dict[tuple[str, ...], list[int]] = defaultdict(list)  # the prompts that have a run
        for prompt in prompts:
            runs = runs_of(prompt)
            for run in runs:
                self._with[run].append(len(self._sizes))
            self._sizes.append(len(runs))

    def __contains__(self, prompt: str) -> bool:
        runs = runs_of(prompt)
        shared = Counter(number for run in runs for number in self._with.get(run, ()))
        return any(count >= NEAR * (len(runs) + self._sizes[number] - count) for number, count in shared.items())


def runs_of(text: str) -> set[tuple[str, ...]]:
    """All runs of three words; a shorter text is one run."""
    words = single_words(text.casefold())
    return {tuple(words[start : start + RUN]) for start in range(max(len(words) - RUN + 1, 1))} if words else set()
