"""When each token of a trace is fed: a thread's tokens of one step (drafts) divide it among them."""

import numpy as np

from pasta_jax.decode.trace import Trace


def spans(trace: Trace, edges: np.ndarray) -> np.ndarray:
    """Where each token begins and ends, float [2, N]; `edges` are where steps end, step 0 first."""
    at = np.zeros((2, len(trace.token)))
    for number in range(len(trace.closed)):
        fed = np.flatnonzero(trace.thread == number)
        steps, first, count = np.unique(trace.step[fed], return_index=True, return_counts=True)
        place, share = np.arange(len(fed)) - np.repeat(first, count), np.repeat(count, count)
        at[:, fed] = np.repeat(steps, count) - 1 + np.stack([place, place + 1]) / share
    return np.interp(at, np.arange(len(edges)), edges)
