"""Chunks that run on into main's next text, from which a model learns to end a chunk that ran on.

Every chunk of a training record ends in time. While decoding, a model may run on: it writes "\\n2." in a chunk, where
it has only ever seen main write it, and is then sure of main's next promise. Here some chunks run on before their
[/ASYNC]. The added text has a single label, the [/ASYNC] after it, so the text itself is not learnt.
"""

import dataclasses
import hashlib

import numpy as np

from pasta_jax.data.example import Example, encode
from pasta_jax.lang.structure import NO_LABEL, Positions
from pasta_jax.lang.tags import TagIds

LONGEST = 8  # ids that main writes between two promises


def with_strays(
    example: Example, share: float, seed: int, tags: TagIds, end_of_turn: int, positions: Positions
) -> Example:
    """The example in which a share of the chunks that another promise follows go on with main's text before it.

    Such a chunk gets a beginning of that text, of any length. Its last own token keeps its label, [/ASYNC].
    """
    digest = hashlib.sha256(example.token.tobytes()).digest()
    rng = np.random.default_rng([seed, *np.frombuffer(digest, np.uint32)])
    prompt = example.prompt_length
    ids: list[int] = []
    strays: list[slice] = []  # of `ids`
    for at, id in enumerate(example.token.tolist()):
        if at >= prompt and id == tags.end_async and rng.random() < share:
            text = _before_promise(example.token[at + 1 :], tags)
            if text:
                text = text[: rng.integers(1, len(text) + 1)]
                strays.append(slice(len(ids), len(ids) + len(text)))
                ids += text
        ids.append(id)
    changed = encode(ids[:prompt], ids[prompt:], tags, end_of_turn, positions)
    label = changed.label.copy()
    for stray in strays:
        label[stray.start - 1] = tags.end_async
        label[stray.start : stray.stop - 1] = NO_LABEL
    return dataclasses.replace(changed, label=label)


def _before_promise(ids: np.ndarray, tags: TagIds) -> list[int]:
    """The text that main writes up to its next promise; empty if that is long, or something else follows."""
    ahead = ids[: LONGEST + 1].tolist()
    text = ahead[: ahead.index(tags.promise)] if tags.promise in ahead else []
    return [] if any(map(tags.is_tag, text)) else text
