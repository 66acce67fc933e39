"""Log-probabilities of answers, batch by batch."""

from collections.abc import Callable, Sequence

import jax
import numpy as np

from pasta_jax.data.example import Example
from pasta_jax.data.packing import Batch, pack
from pasta_jax.errors import PastaError
from pasta_jax.progress import Progress


def score_examples(
    score: Callable[[Batch], jax.Array], examples: Sequence[Example], lengths: tuple[int, ...], rows: int
) -> list[float]:
    """The log-probability of each example; `score(batch)` returns those of a batch's rows.

    Examples are grouped into batches the same way in every run, so a value never depends on what was computed before.
    """
    longest = max(map(len, examples), default=0)
    if longest > lengths[-1]:
        raise PastaError(f"an answer has {longest} tokens with its prompt, rows have {lengths[-1]}; raise lengths")
    values = [0.0] * len(examples)
    shortest = 0
    with Progress("scoring answers", len(examples)) as progress:
        for length in lengths:
            bucket = [number for number, example in enumerate(examples) if shortest < len(example) <= length]
            shortest = length
            for start in range(0, len(bucket), rows):
                numbers = bucket[start : start + rows]
                batch = pack([[examples[number]] for number in numbers] + [[]] * (rows - len(numbers)), length)
                for number, value in zip(numbers, np.asarray(score(batch)), strict=False):
                    values[number] = float(value)
                progress.add(len(numbers))
    return values
