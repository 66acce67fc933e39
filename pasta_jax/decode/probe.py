"""Quick measurements of a model's answers to a few prompts: forks, well-formedness, accuracy of promised lengths."""

import collections
import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.decode.generate import generate, loop_spec, positions_for
from pasta_jax.decode.grammar import fork_biased, id_kinds
from pasta_jax.decode.request import Request, Result
from pasta_jax.decode.sampling import FORBIDDEN, draw, penalize
from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.decode.state import OWN, LoopSpec, arrays
from pasta_jax.decode.trace import Trace
from pasta_jax.lang.grammar import CHUNK, FOLLOWS, MAIN, TOPIC
from pasta_jax.lang.structure import structure, visible_matrix
from pasta_jax.models.config import TransformerConfig
from pasta_jax.models.parameters import Params
from pasta_jax.models.transformer import forward
from pasta_jax.weights.model import Model
from pasta_jax.weights.rules import Rules

BUCKET = 128  # lengths are rounded up to multiples of it, so that few programs are compiled
GREEDY = Rules()


def probe(model: Model, prompts: Sequence[Sequence[int]], config: DecodeConfig, max_tokens: int) -> dict[str, float]:
    """Measurements of greedy answers: means over answers, or for promises over chunks that closed themselves."""
    rules = Rules(max_chunk_tokens=max_tokens)
    requests = [Request(tuple(prompt), max_tokens, sequential=False, rules=rules) for prompt in prompts]
    results = generate(model, requests, config)
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


def well_formed(model: Model, trace: Trace, config: DecodeConfig, rules: Rules = GREEDY) -> bool:
    """Whether an answer would have been well-formed without the grammar mask.

    This is so if the grammar allows what would be sampled without it at every token, with the request's own seed. (With
    rules for topics the ids may then still differ, but they are legal.)
    """
    tags, prompt = trace.tags, len(trace.prompt_ids)
    ids = [*trace.prompt_ids, *trace.linear_ids()]
    stop = model.tokenizer.stop_ids[0]
    parts = structure(ids, tags, prompt, stop, positions_for(model), ended=False)
    length = -(-len(ids) // BUCKET) * BUCKET
    state, states, sampled, numbers = MAIN, [], collections.Counter(), []
    for place, (id, chunk) in enumerate(zip(ids, parts.chunk, strict=True)):
        if place >= prompt:
            sampled[chunk] += id != tags.async_  # which is inserted
            if chunk == 0:
                state = TOPIC if id == tags.promise else MAIN if tags.is_close(id) else state
        states.append(CHUNK if chunk else state)
        numbers.append(sampled[chunk])  # of the token that is predicted here, in its thread

    def padded(row) -> np.ndarray:
        return np.pad(np.asarray(row, np.int32), (0, length - len(ids)))

    see = np.zeros((length, length), bool)
    see[: len(ids), : len(ids)] = visible_matrix(parts)
    spec = loop_spec(model, config, length, sequential=False)
    spec = dataclasses.replace(spec, rows=1, widths=(1,), prefixes=())  # unused here; equal rules share a program
    rows = (padded(ids), padded(parts.position), see, padded(parts.chunk), padded(numbers), padded(states))
    legal = np.asarray(_legal(model.params, *rows, np.int32(prompt), arrays(rules), config=model.config, spec=spec))
    predicts_answer = np.arange(len(ids)) >= prompt - 1
    return bool(np.all(legal[: len(ids)] | ~predicts_answer | (np.array(ids) == tags.end_async)))


@functools.partial(jax.jit, static_argnames=("config", "spec"))
def _legal(
    params: Params,
    ids_T: jax.Array,
    position_T: jax.Array,
    see_TxT: jax.Array,
    thread_T: jax.Array,
    number_T: jax.Array,
    state_T: jax.Array,
    prompt: jax.Array,
    rules: Rules,
    config: TransformerConfig,
    spec: LoopSpec,
) -> jax.Array:
    """bool [T]: whether the grammar allows the id that would be sampled after each token."""
    logits_TxV = forward(params, config, ids_T[None], position_T[None], see_TxT[None])[0]
    logits_TxV = jnp.where(jnp.arange(logits_TxV.shape[1])[None] < spec.vocab, logits_TxV, FORBIDDEN)
    rules_T = jax.tree.map(lambda value: jnp.broadcast_to(value, ids_T.shape), rules)

    def counts() -> tuple[jax.Array, jax.Array]:
        none_V = jnp.zeros(logits_TxV.shape[1], jnp.int32)
        count = jax.vmap(lambda seen_T: none_V.at[ids_T].add(seen_T))
        seen_TxT = see_TxT & ~spec.tags.is_tag(ids_T)[None]
        return count(seen_TxT), count(seen_TxT & (jnp.arange(len(ids_T)) >= prompt)[None])

    logits_TxV = penalize(logits_TxV, rules_T, counts)
    logits_TxV = fork_biased(logits_TxV, spec, state_T, rules_T)
    drawn_T = draw(logits_TxV, rules_T, thread_T, number_T)
    return (jnp.asarray(id_kinds(logits_TxV.shape[1], spec))[drawn_T] & jnp.asarray(FOLLOWS)[state_T]) != 0
