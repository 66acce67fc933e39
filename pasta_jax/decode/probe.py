"""Quick measurements of a model's answers to a few prompts: forks, well-formedness, accuracy of promised lengths."""

import collections
import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.decode.generate import DecodeConfig, Request, Result, generate, positions_for, rules_for
from pasta_jax.decode.grammar import FORK, SYNC, allow
from pasta_jax.decode.sampling import FORBIDDEN, Sampling, SamplingArrays, draw
from pasta_jax.decode.state import OWN, Rules
from pasta_jax.decode.trace import Trace
from pasta_jax.lang.structure import structure, visible_matrix
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.parameters import Params
from pasta_jax.models.transformer import forward
from pasta_jax.weights.model import Model

BUCKET = 128  # lengths are rounded up to multiples of it, so that few programs are compiled
UNLIMITED = 2**30  # topic tokens
GREEDY = Sampling()


def probe(model: Model, prompts: Sequence[Sequence[int]], config: DecodeConfig, max_tokens: int) -> dict[str, float]:
    """Measurements of greedy answers: means over answers, or for promises over chunks that closed themselves."""
    request = functools.partial(
        Request,
        max_tokens=max_tokens,
        sampling=Sampling(),
        sequential=False,
        max_topic_tokens=12,
        max_chunk_tokens=max_tokens,
    )
    results = generate(model, [request(tuple(prompt)) for prompt in prompts], config)
    return figures_of(model, results, config)


def figures_of(model: Model, results: Sequence[Result], config: DecodeConfig) -> dict[str, float]:
    """The figures of greedy answers, by name."""
    traces = [result.trace for result in results]
    lengths = [
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
        "well_formed": np.mean([well_formed(model, trace, config) for trace in traces]),
    }
    if lengths:
        promised, real = np.array(lengths).T
        figures |= {"promised": promised.mean(), "length": real.mean(), "length_error": np.abs(promised - real).mean()}
    return {name: float(value) for name, value in figures.items()}


def well_formed(model: Model, trace: Trace, config: DecodeConfig, sampling: Sampling = GREEDY) -> bool:
    """Whether an answer would have been well-formed without the grammar mask.

    This is so if the mask allows what would be sampled without it at every token, with the request's own seed. (With
    rules for topics the ids may then still differ, but they are legal.)
    """
    tags, prompt = trace.tags, len(trace.prompt_ids)
    ids = [*trace.prompt_ids, *trace.linear_ids()]
    stop = model.tokenizer.stop_ids[0]
    parts = structure(ids, tags, prompt, stop, positions_for(model), ended=False)
    length = -(-len(ids) // BUCKET) * BUCKET
    topic, topics, sampled, numbers = -1, [], collections.Counter(), []
    for place, (id, chunk) in enumerate(zip(ids, parts.chunk, strict=True)):
        if place >= prompt:
            sampled[chunk] += id != tags.async_  # which is inserted
            if chunk == 0:
                topic = 0 if id == tags.promise else -1 if tags.is_close(id) or topic < 0 else topic + 1
        topics.append(topic)
        numbers.append(sampled[chunk])  # of the token that is predicted here, in its thread

    def padded(row) -> np.ndarray:
        return np.pad(np.asarray(row, np.int32), (0, length - len(ids)))

    see = np.zeros((length, length), bool)
    see[: len(ids), : len(ids)] = visible_matrix(parts)
    rules = rules_for(model, config, length, sequential=False)
    rules = dataclasses.replace(rules, rows=1, widths=(1,), prefixes=())  # unused here; equal rules share a program
    rows = (padded(ids), padded(parts.position), see, padded(parts.chunk), padded(numbers), padded(topics))
    legal = np.asarray(_legal(model.params, *rows, sampling.arrays(), config=model.config, rules=rules))
    predicts_answer = np.arange(len(ids)) >= prompt - 1
    return bool(np.all(legal[: len(ids)] | ~predicts_answer | (np.array(ids) == tags.end_async)))


@functools.partial(jax.jit, static_argnames=("config", "rules"))
def _legal(
    params: Params,
    ids_T: jax.Array,
    position_T: jax.Array,
    see_TxT: jax.Array,
    thread_T: jax.Array,
    number_T: jax.Array,
    topic_T: jax.Array,
    sampling: SamplingArrays,
    config: TransformerConfig,
    rules: Rules,
) -> jax.Array:
    """bool [T]: whether the grammar allows the id that would be sampled after each token."""
    logits_TxV = forward(params, config, ids_T[None], position_T[None], see_TxT[None])[0]
    logits_TxV = jnp.where(jnp.arange(logits_TxV.shape[1])[None] < rules.vocab, logits_TxV, FORBIDDEN)
    no_T, tags_T, unlimited_T = (jnp.full(ids_T.shape, value) for value in (False, FORK | SYNC, UNLIMITED))
    allowed_TxV = allow(logits_TxV, rules, thread_T == 0, topic_T, no_T, tags_T, unlimited_T)
    sampling_T = jax.tree.map(lambda value: jnp.broadcast_to(value, ids_T.shape), sampling)
    drawn_T = draw(logits_TxV, sampling_T, thread_T, number_T)
    return jnp.take_along_axis(allowed_TxV, drawn_T[:, None], axis=1)[:, 0] > FORBIDDEN
