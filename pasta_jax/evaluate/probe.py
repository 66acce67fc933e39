"""A quick look at what a model does with a few prompts: does it fork, is it well-formed, does it keep its promises."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.decode.generate import DecodeConfig, Request, Result, generate, positions_for, rules_for
from pasta_jax.decode.grammar import allow
from pasta_jax.decode.sampling import FORBIDDEN, Sampling
from pasta_jax.decode.state import OWN, Rules
from pasta_jax.lang.structure import structure, visible_matrix
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.transformer import forward
from pasta_jax.models.weights import Model

BUCKET = 128  # lengths are rounded up to it, so that few programs are compiled
ENDLESS = 2**30  # topic tokens that the mask shall allow


def probe(model: Model, prompts: Sequence[Sequence[int]], settings: DecodeConfig, max_tokens: int) -> dict[str, float]:
    """Figures of greedy answers; means over answers, of promises over chunks that closed themselves."""
    request = functools.partial(
        Request,
        max_tokens=max_tokens,
        sampling=Sampling(),
        sequential=False,
        max_topic_tokens=12,
        max_chunk_tokens=max_tokens,
    )
    results = generate(model, [request(tuple(prompt)) for prompt in prompts], settings)
    return look(model, results, settings)


def look(model: Model, results: Sequence[Result], settings: DecodeConfig) -> dict[str, float]:
    """The figures of given greedy answers."""
    traces = [result.trace for result in results]
    kept = [
        (10 * thread.tens, thread.length)
        for trace in traces
        for thread, closed in list(zip(trace.threads(), trace.closed, strict=True))[1:]
        if closed == OWN
    ]
    figures = {
        "fork_rate": np.mean([len(trace.closed) > 1 for trace in traces]),
        "chunks": np.mean([len(trace.closed) - 1 for trace in traces]),
        "parallelism": np.mean([trace.parallelism for trace in traces]),
        "finished": np.mean([result.finish_reason == "stop" for result in results]),
        "well_formed": np.mean([well_formed(model, trace, settings) for trace in traces]),
    }
    if kept:
        promised, real = np.array(kept).T
        figures |= {"promised": promised.mean(), "length": real.mean(), "length_error": np.abs(promised - real).mean()}
    return {name: float(value) for name, value in figures.items()}


def well_formed(model: Model, trace, settings: DecodeConfig) -> bool:
    """Whether a greedy answer would have been the same without the mask that forbids misplaced tags.

    It would, if at no token the likeliest id of all is a forbidden one.
    """
    tags, prompt = trace.tags, len(trace.prompt_ids)
    ids = [*trace.prompt_ids, *trace.linear_ids()]
    stop = model.tokenizer.stop_ids[0]
    made = structure(ids, tags, prompt, stop, positions_for(model), ended=False)
    length = -(-len(ids) // BUCKET) * BUCKET
    topic, topics = -1, []
    for place, (id, chunk) in enumerate(zip(ids, made.chunk, strict=True)):
        if place >= prompt and chunk == 0:
            topic = 0 if id == tags.promise else -1 if tags.is_close(id) or topic < 0 else topic + 1
        topics.append(topic)

    def padded(row) -> np.ndarray:
        return np.pad(np.asarray(row, np.int32), (0, length - len(ids)))

    see = np.zeros((length, length), bool)
    see[: len(ids), : len(ids)] = visible_matrix(made)
    rules = rules_for(model, settings, length, sequential=False)
    rules = dataclasses.replace(rules, rows=1, widths=(1,), prefixes=())  # not of the loop, which these don't touch
    rows = (padded(ids), padded(made.position), see, padded(made.chunk) == 0, padded(topics))
    legal = np.asarray(_legal(model.params, *rows, config=model.config, rules=rules))
    asked = np.arange(len(ids)) >= prompt - 1
    return bool(np.all(legal[: len(ids)] | ~asked | (np.array(ids) == tags.end_async)))


@functools.partial(jax.jit, static_argnames=("config", "rules"))
def _legal(params, ids_T, position_T, see_TxT, in_main_T, topic_T, config: TransformerConfig, rules: Rules):
    """bool [T]: whether the likeliest id behind each token is one that its thread may say."""
    logits_TxV = forward(params, config, ids_T[None], position_T[None], see_TxT[None])[0]
    logits_TxV = jnp.where(jnp.arange(logits_TxV.shape[1])[None] < rules.vocab, logits_TxV, FORBIDDEN)
    every = jnp.ones(ids_T.shape, bool)
    allowed_TxV = allow(logits_TxV, rules, in_main_T, topic_T, ~every, every, jnp.full(ids_T.shape, ENDLESS))
    likeliest_T = jnp.argmax(logits_TxV, axis=1)
    return jnp.take_along_axis(allowed_TxV, likeliest_T[:, None], axis=1)[:, 0] > FORBIDDEN
