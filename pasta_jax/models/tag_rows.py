"""Initial values of the tags' embedding rows: apart from each other and near words of their meaning.

The reserved rows of a pretrained model were never trained and are nearly parallel (Gemma 3: cosine 0.99 to their mean),
and appended rows are zero. Without these values a model could not tell the tags apart.
"""

import numpy as np

from pasta_jax.lang.tags import MAX_TENS, NUM_TAGS, TagIds

NOISE = 0.3  # as a fraction of an ordinary row's norm; separates rows that share most of their words

WORDS = {
    "promise": (" promise", " later", " topic", " begin"),
    "close": (" length", " end", " promise"),  # and the number itself
    "async": (" begin", " start", " parallel"),
    "end_async": (" end", " done", " parallel"),
    "sync": (" wait", " join", " together"),
}


def words_of(tags: TagIds) -> dict[int, tuple[str, ...]]:
    """The words whose mean initialises each tag's row."""
    words = {tags.close(n): (*WORDS["close"], f" {10 * n}", f" {n}") for n in range(1, MAX_TENS + 1)}
    named = {tags.promise: "promise", tags.async_: "async", tags.end_async: "end_async", tags.sync: "sync"}
    return words | {tag: WORDS[name] for tag, name in named.items()}


def initial_tag_rows(table_VxE: np.ndarray, tokenizer, seed: int = 0) -> np.ndarray:
    """Rows [68, E] for a table: the mean of related words plus noise.

    The mean keeps its short norm: scaled to an ordinary row's, the component that all rows share would make the tags
    the likeliest tokens everywhere.
    """
    rng = np.random.default_rng(seed)
    words = words_of(tokenizer.tags)
    means = []
    for tag in range(tokenizer.tags.base, tokenizer.tags.end):
        pieces = [np.mean(table_VxE[tokenizer.encode(word)], axis=0) for word in words[tag]]
        means.append(np.mean(pieces, axis=0))
    ordinary = table_VxE[tokenizer.encode("The quick brown fox, and 42 more words of plain text.")]
    size = NOISE * np.median(np.linalg.norm(ordinary, axis=1))
    return (np.stack(means) + size * unit(rng.standard_normal((NUM_TAGS, table_VxE.shape[1])))).astype(np.float32)


def rows_apart(table_VxE: np.ndarray, tokenizer, seed: int = 0) -> np.ndarray:
    """Rows [68, E] that start far from every word: the table's mean plus random directions of an ordinary length.

    Rows near words are learnt sooner, but what raises a tag then raises its words as well: a model trained briefly may
    write " end" where it should close a chunk. The numbers of [/PROMISE:n] stay near each other's words: as text they
    would only be a wrong length.
    """
    rows = initial_tag_rows(table_VxE, tokenizer, seed)
    tags = tokenizer.tags
    words = np.delete(table_VxE, range(tags.base, tags.end), axis=0)
    mean = np.mean(words, axis=0)
    length = np.median(np.linalg.norm(words - mean, axis=1))
    noise = np.random.default_rng(seed).standard_normal((NUM_TAGS, table_VxE.shape[1]))
    names = [tag - tags.base for tag in (tags.promise, tags.async_, tags.end_async, tags.sync)]
    rows[names] = (mean + length * unit(noise))[names]
    return rows


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows of norm one."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def put_tag_rows(params: dict, tokenizer) -> dict:
    """The parameters with fresh tag rows in the embedding and, where it has one, the head."""
    tables = {name: np.array(params[name]) for name in ("embed", "head") if name in params}
    for table in tables.values():
        table[tokenizer.tags.base : tokenizer.tags.base + NUM_TAGS] = initial_tag_rows(table, tokenizer)
    return params | tables
