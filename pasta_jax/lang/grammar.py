"""Which kinds of ids may follow in each state of a thread: one table, for decoding, training and measuring.

    state of the thread         may be followed by
    main, outside a promise     text, [PROMISE], [SYNC], end of turn
    main, inside a promise      text, [/PROMISE:n]
    the same, topic full        [/PROMISE:n]
    chunk                       text, [/ASYNC]
    chunk, full                 [/ASYNC]

No thread writes [ASYNC]: the interpreter inserts it. The oracle (pasta_jax/oracle/) has its own rules on purpose.
"""

import numpy as np

from pasta_jax.lang.tags import TagIds

# Kinds of ids, one bit each; ids that nobody writes have none. The first four are of text, by how it continues a topic.
# SEVERAL: more than one word or line, or nothing (control ids).
EXTENDS, BEGINS, BLANK, SEVERAL, TURN_END, FORK, SYNC, CLOSE, CHUNK_END = (1 << n for n in range(9))
TEXT = EXTENDS | BEGINS | BLANK | SEVERAL

MAIN, TOPIC, FULL_TOPIC, CHUNK, FULL_CHUNK = range(5)
# int32 [5]: the kinds that may follow in a state
FOLLOWS = np.array([TEXT | TURN_END | FORK | SYNC, TEXT | CLOSE, CLOSE, TEXT | CHUNK_END, CHUNK_END], np.int32)


def tag_kinds(id: np.ndarray, tags: TagIds) -> np.ndarray:
    """int32, shaped like `id`: the kinds of the tags among these ids, 0 for [ASYNC] and others."""
    is_kind = [id == tags.promise, id == tags.sync, tags.is_close(id), id == tags.end_async]
    return np.select(is_kind, [FORK, SYNC, CLOSE, CHUNK_END], 0).astype(np.int32)
