"""The probability of ids that would make an answer malformed: a model that gives them none needs no mask to decode.

A label tells where its token stands, and so which ids are illegal in its place:

    label in            illegal
    main                [ASYNC], [/ASYNC], [/PROMISE:n]
    a promise           all tags but [/PROMISE:n], and the end of the turn
    a chunk             all tags but [/ASYNC], and the end of the turn
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.lang.tags import NUM_TAGS, TagIds

MAIN, PROMISE, CHUNK = range(3)
CERTAIN = 1e-6  # the least probability of all legal ids together that is told from 0


@dataclasses.dataclass(frozen=True)
class Grammar:
    """The ids that are legal in some places only."""

    tags: TagIds
    end_of_turn: int

    def illegal(self) -> np.ndarray:
        """bool [3, 69]: whether a tag, or last the end of the turn, is illegal in main, in a promise, in a chunk."""
        tags, id_I = self.tags, self.tags.base + np.arange(NUM_TAGS)
        closes, ends_chunk, opens_chunk = tags.is_close(id_I), id_I == tags.end_async, id_I == tags.async_
        rows = closes | ends_chunk | opens_chunk, ~closes, ~ends_chunk
        return np.stack([np.append(row, place != MAIN) for place, row in enumerate(rows)])

    def places(self, of_kind: dict[str, jax.Array]) -> jax.Array:
        """int32 [B, T]: where each label stands, from its kind (loss.py::kinds)."""
        in_promise = of_kind["topic"] | of_kind["length"]
        return jnp.where(of_kind["chunk"], CHUNK, jnp.where(in_promise, PROMISE, MAIN))

    def losses(self, logits_BxSxV: jax.Array, all_BxS: jax.Array, place_BxS: jax.Array) -> jax.Array:
        """float32 [B, S]: the negative log-probability of being legal; `all` is the logsumexp of all logits."""
        of_tags = logits_BxSxV[:, :, self.tags.base : self.tags.end]
        of_ids_BxSxI = jnp.concatenate([of_tags, logits_BxSxV[:, :, self.end_of_turn, None]], axis=2)
        of_illegal = jnp.where(jnp.asarray(self.illegal())[place_BxS], of_ids_BxSxI, -jnp.inf)
        illegal_BxS = jnp.exp(jax.nn.logsumexp(of_illegal, axis=2) - all_BxS)
        return -jnp.log1p(-jnp.minimum(illegal_BxS, 1.0 - CERTAIN))
