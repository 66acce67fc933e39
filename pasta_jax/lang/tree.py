"""APAR's trees (Liu et al. 2024, arXiv 2401.06761) as linear programs: forks without a topic, a length or a join.

In APAR a thread that writes [Fork] goes on with the next sibling, and a child continues from the fork. Both start at
one position, each sees its ancestors up to the fork and itself, and nothing ever joins. As a program, a promise without
a topic is the fork, its block is the child, and there is no [SYNC]: then `visible` (structure.py) hides every block
from all that is not in it, and the position policy `shared_start` places parent and child alike.

Two things differ from APAR. A fork is two ids instead of one, so it costs a step more. And children do not fork: the
language is flat, and records annotated in it have nothing to nest.
"""

from collections.abc import Sequence

import numpy as np

from pasta_jax.lang.linear import Join, as_ids, scan
from pasta_jax.lang.tags import TagIds

TENS = 1  # of every fork: its id says nothing


def to_tree(ids: Sequence[int] | np.ndarray, tags: TagIds) -> np.ndarray:
    """The linear ids of a response, without its prompt, as APAR would have them; the text stays the same."""
    ids = as_ids(ids)
    kept = np.ones(len(ids), bool)
    for mark in scan(ids, tags):
        if isinstance(mark, Join):
            kept[mark.at] = False
        else:
            kept[mark.promise + 1 : mark.close] = False
            ids[mark.close] = tags.close(TENS)
    return ids[kept]
