"""How much a text repeats itself."""

from collections.abc import Sequence

NGRAM = 4  # words


def repeated(words: Sequence[str]) -> float:
    """The share of a text's n-grams that occurred before in it; 0 if it is shorter than one."""
    grams = list(zip(*(words[n:] for n in range(NGRAM)), strict=False))
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0
