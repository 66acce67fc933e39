"""The step clock of a linear program with unlimited rows: the step that feeds each token, and the critical path."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pasta_jax.errors import PastaError
from pasta_jax.lang.linear import Block, as_ids, scan
from pasta_jax.lang.tags import TagIds


@dataclass(frozen=True, eq=False)
class Clock:
    """When each token of a response is fed."""

    step: np.ndarray  # int32 [response]: the step that feeds the token, counted from 1 after the prefill; 0: none
    critical_path: int  # in steps

    @property
    def slots(self) -> int:
        """Slots of the pool that the response needs: one per token fed."""
        return int(np.count_nonzero(self.step))


def clock(ids, tags: TagIds, prompt_length: int) -> Clock:
    """Time a response: `ids` are the prompt followed by the linear response, without end-of-turn.

    The prefill samples main's first token, and the step that feeds a token samples the next one of its thread. A fork
    ends when it has sampled [/ASYNC]; [SYNC] is fed in the step after its predecessor and after the end of every open
    fork.
    """
    ids = as_ids(ids)
    step = np.zeros(len(ids), np.int32)
    done = prompt_length
    now = 0  # the step that fed main's latest token
    forks_end = 0  # the latest step so far in which a fork samples its [/ASYNC]

    def feed_main(stop: int) -> None:
        nonlocal done, now
        step[done:stop] = np.arange(now + 1, now + 1 + stop - done)
        done, now = stop, now + stop - done

    for mark in scan(ids, tags, prompt_length):
        if isinstance(mark, Block):
            feed_main(mark.start)
            # [ASYNC] is fed in the step of [/PROMISE:n]; [/ASYNC] is sampled one step before it is fed.
            step[mark.start : mark.stop] = np.arange(now, now + mark.length)
            forks_end = max(forks_end, now + mark.length - 2)
            done = mark.stop
        else:
            feed_main(mark.at)
            now = max(now, forks_end)
    feed_main(len(ids))
    # The step that feeds main's last token samples end-of-turn.
    critical_path = max(now, forks_end)
    step[step > critical_path] = 0  # closing tags sampled in the very last step
    return Clock(step[prompt_length:], critical_path)


def parallelism(ids, tags: TagIds, prompt_length: int) -> float:
    """Text tokens per step: ids that are neither tags nor part of a topic, over the critical path."""
    ids = as_ids(ids)
    blocks = [mark for mark in scan(ids, tags, prompt_length) if isinstance(mark, Block)]
    tag_ids = int(np.count_nonzero(tags.is_tag(ids[prompt_length:])))
    topic_ids = sum(block.close - block.promise - 1 for block in blocks)
    text_ids = len(ids) - prompt_length - tag_ids - topic_ids
    return text_ids / _positive(clock(ids, tags, prompt_length).critical_path, "critical path")


def theoretical_speedup(baseline_tokens: int, critical_path: int) -> float:
    """Speedup over the sequential baseline if all steps took equal time."""
    return _positive(baseline_tokens, "baseline's length") / _positive(critical_path, "critical path")


def geometric_mean(values: Iterable[float]) -> float:
    """Of positive values, at least one."""
    values = [_positive(value, "value of a geometric mean") for value in values]
    if not values:
        raise PastaError("geometric mean: no values; pass at least one")
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _positive(value: float, what: str) -> float:
    if not value > 0:
        raise PastaError(f"{what}: must be positive, not {value}; exclude empty responses")
    return value
