"""Sample the next token from logits: greedy, temperature, top-k, top-p, with parameters and a seed per request."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import threefry_2x32

from pasta_jax.models.kernels.cpu.calls import draws
from pasta_jax.weights.rules import Rules

FORBIDDEN = -1e30  # logit of a token that must not be sampled
LEAST = FORBIDDEN / 10  # of one that only penalties make unlikely: it may be all that is allowed
PENALTY = "penalties"  # names the branch in compiled programs


def draw(
    logits_NxV: jax.Array,
    rules_N: Rules,
    thread_N: jax.Array,
    number_N: jax.Array,
    ids_V: jax.Array | None = None,
    by_kernel: bool = False,
) -> jax.Array:
    """One token per row: the argmax at temperature 0, else a draw from the filtered softmax.

    The key of a row is fold_in(fold_in(seed, thread), number of the token in its thread) and depends on nothing else,
    so a row's tokens do not depend on its neighbours. With `ids`, the logits are of these ids only, ascending, and each
    has the noise that it has among all: where both logits are alike, so are the tokens. Our own kernel on the CPU
    computes the noise of few ids, with other last bits than XLA's logarithm, and adds up masses in another order.
    """
    temperature_N, top_k_N, top_p_N, min_p_N = rules_N.temperature, rules_N.top_k, rules_N.top_p, rules_N.min_p
    filtering = jnp.any((temperature_N > 0) & ((top_k_N > 0) | (top_p_N < 1) | (min_p_N > 0)))

    def key(seed: jax.Array, thread: jax.Array, number: jax.Array) -> jax.Array:
        return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), thread), number)

    def filtered(scaled_NxV: jax.Array) -> jax.Array:
        is_likely_NxV = scaled_NxV >= jnp.log(min_p_N)[:, None]  # the greatest is 0
        return jnp.where(is_likely_NxV, keep_top(scaled_NxV, top_k_N, top_p_N), FORBIDDEN)

    def scaled() -> jax.Array:
        # Relative to the greatest, so that no temperature overflows; forbidden ids stay forbidden at any temperature.
        below_NxV = logits_NxV - jnp.max(logits_NxV, axis=-1, keepdims=True)
        scaled_NxV = below_NxV / jnp.where(temperature_N > 0, temperature_N, 1.0)[:, None]
        return jnp.where(logits_NxV > FORBIDDEN, scaled_NxV, FORBIDDEN)

    def sampled() -> jax.Array:
        kept_NxV = lax.cond(filtering, filtered, lambda x: x, scaled())

        def one(logits_V: jax.Array, *parts: jax.Array) -> jax.Array:
            own = key(*parts)
            return logits_V + (jax.random.gumbel(own, logits_V.shape) if ids_V is None else gumbel_of(own, ids_V))

        drawn_N = likeliest(jax.vmap(one)(kept_NxV, rules_N.seed, thread_N, number_N))
        return jnp.where(temperature_N > 0, drawn_N, greedy_N)

    if by_kernel:
        key_Nx2 = jax.random.key_data(jax.vmap(key)(rules_N.seed, thread_N, number_N))
        chosen_N = draws(logits_NxV, temperature_N, top_k_N, top_p_N, min_p_N, key_Nx2, ids_V)
    else:
        greedy_N = likeliest(logits_NxV)
        chosen_N = lax.cond(jnp.any(temperature_N > 0), sampled, lambda: greedy_N)
    return chosen_N if ids_V is None else ids_V[chosen_N]


def gumbel_of(key: jax.Array, ids_V: jax.Array) -> jax.Array:
    """The elements with these numbers of `jax.random.gumbel(key, shape)`, of any shape that has them."""
    counts = jnp.concatenate([jnp.zeros_like(ids_V), ids_V]).astype(jnp.uint32)
    high, low = jnp.split(threefry_2x32(jax.random.key_data(key), counts), 2)
    uniform = lax.bitcast_convert_type((high ^ low) >> 9 | np.uint32(0x3F800000), jnp.float32) - 1
    return -jnp.log(-jnp.log(jnp.maximum(uniform, jnp.finfo(jnp.float32).tiny)))


def penalize(logits_NxV: jax.Array, rules_N: Rules, counts: Callable[[], tuple[jax.Array, jax.Array]]) -> jax.Array:
    """Make ids less likely that a thread sees.

    `counts` says how often, int32 [N, V], anywhere and in the answer; it is called only if there is a penalty.
    """
    repetition_N, presence_N, frequency_N = (
        getattr(rules_N, f"{name}_penalty") for name in ("repetition", "presence", "frequency")
    )

    def penalized() -> jax.Array:
        seen_NxV, written_NxV = counts()
        lower_NxV = jnp.where(logits_NxV < 0, logits_NxV * repetition_N[:, None], logits_NxV / repetition_N[:, None])
        penalized_NxV = jnp.where(seen_NxV > 0, lower_NxV, logits_NxV)
        taken_NxV = frequency_N[:, None] * written_NxV + jnp.where(written_NxV > 0, presence_N[:, None], 0.0)
        return jnp.maximum(penalized_NxV - taken_NxV, LEAST)

    any_N = (repetition_N != 1) | (presence_N != 0) | (frequency_N != 0)
    with jax.named_scope(PENALTY):
        return lax.cond(jnp.any(any_N), penalized, lambda: logits_NxV)


def costless_but(feeds_N: jax.Array, rules_N: Rules) -> Rules:
    """The rules, and greedy ones in rows that don't feed: what one row asks for is computed for all of them."""
    greedy = dict(temperature=0.0, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0)
    own = {name: jnp.where(feeds_N, getattr(rules_N, name), value) for name, value in greedy.items()}
    return dataclasses.replace(rules_N, **own)


def likeliest(logits_NxV: jax.Array) -> jax.Array:
    """argmax as two plain reductions, which XLA CPU vectorizes: the first of equals, and NaN above all."""
    vocab = logits_NxV.shape[1]
    best_N = jnp.max(logits_NxV, axis=1, keepdims=True)
    is_best_NxV = (logits_NxV == best_N) | jnp.isnan(logits_NxV)
    return jnp.min(jnp.where(is_best_NxV, jnp.arange(vocab, dtype=jnp.int32)[None], vocab), axis=1)


def keep_top(logits_NxV: jax.Array, top_k_N: jax.Array, top_p_N: jax.Array) -> jax.Array:
    """Keep the k most likely tokens, and of these the fewest that hold the probability mass p; forbid the others.

    Ties at either edge are kept, so the order of equal logits does not matter. The edges are found by bisection over
    the floats' bit patterns: exact like a sort, at a fraction of its cost for large vocabularies.
    """
    order_NxV = ordered_bits(logits_NxV)
    vocab = logits_NxV.shape[1]
    k_N = jnp.where(top_k_N > 0, jnp.minimum(top_k_N, vocab), vocab)
    edge_N = highest(lambda edge_N: jnp.sum(order_NxV >= edge_N[:, None], axis=1) >= k_N, order_NxV.shape[0])
    kept_NxV = jnp.where(order_NxV >= edge_N[:, None], logits_NxV, FORBIDDEN)

    mass_NxV = jax.nn.softmax(kept_NxV, axis=-1)

    def holds_enough(edge_N: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(order_NxV >= edge_N[:, None], mass_NxV, 0.0), axis=1) >= top_p_N

    # The likeliest stays, also of a mass that rounds to 0, at which any edge holds enough.
    edge_N = jnp.minimum(highest(holds_enough, order_NxV.shape[0]), jnp.max(order_NxV, axis=1))
    edge_N = jnp.where(top_p_N < 1, edge_N, jnp.iinfo(jnp.int32).min)
    return jnp.where(order_NxV >= edge_N[:, None], kept_NxV, FORBIDDEN)


def ordered_bits(x: jax.Array) -> jax.Array:
    """float32 as int32 in the same order; both zeros are equal."""
    bits = lax.bitcast_convert_type(jnp.where(x == 0, 0.0, x), jnp.int32)
    return jnp.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits)


def highest(holds: Callable[[jax.Array], jax.Array], rows: int) -> jax.Array:
    """For each row the greatest int32 for which `holds` is true; it must be true for the least and change once."""

    def narrow(_: jax.Array, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds  # holds(low), and not holds(high + 1)
        # The middle, rounded up, without overflow.
        middle = (low >> 1) + (high >> 1) + ((low | high) & 1)
        yes = holds(middle)
        return jnp.where(yes, middle, low), jnp.where(yes, high, middle - 1)

    info = jnp.iinfo(jnp.int32)
    start = jnp.full(rows, info.min, jnp.int32), jnp.full(rows, info.max, jnp.int32)
    return lax.fori_loop(0, 33, narrow, start)[0]
