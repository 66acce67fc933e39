"""The probability of ids that would make an answer malformed: a model that gives them none needs no mask to decode.

A label tells where its token stands, and so which ids are illegal in its place (lang/grammar.py). [ASYNC] is illegal
everywhere: the interpreter inserts it.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pasta_jax.lang.grammar import CHUNK, FOLLOWS, MAIN, TOPIC, TURN_END, tag_kinds
from pasta_jax.lang.tags import NUM_TAGS, TagIds

CERTAIN = 1e-6  # the least probability of all legal ids together that is told from 0


@dataclasses.dataclass(frozen=True)
class Grammar:
    """The ids that are legal in some places only."""

    tags: TagIds
    stop_ids: tuple[int, ...]  # all that end a turn

    def illegal(self) -> np.ndarray:
        """bool [5, I]: whether a tag, or last an id that ends the turn, is illegal in each state of a thread."""
        tag_kind_I = tag_kinds(self.tags.base + np.arange(NUM_TAGS), self.tags)
        kind_I = np.append(tag_kind_I, [TURN_END] * len(self.stop_ids))
        return (kind_I[None] & FOLLOWS[:, None]) == 0

    def places(self, of_kind: dict[str, jax.Array]) -> jax.Array:
        """int32 [B, T]: the state in which each label was written, from its kind (loss.py::kinds)."""
        in_promise = of_kind["topic"] | of_kind["length"]
        return jnp.where(of_kind["chunk"], CHUNK, jnp.where(in_promise, TOPIC, MAIN))

    def losses(self, logits_BxSxV: jax.Array, all_BxS: jax.Array, place_BxS: jax.Array) -> jax.Array:
        """float32 [B, S]: the negative log-probability of being legal; `all` is the logsumexp of all logits."""
        of_tags = logits_BxSxV[:, :, self.tags.base : self.tags.end]
        of_stops = (logits_BxSxV[:, :, id, None] for id in self.stop_ids)
        of_ids_BxSxI = jnp.concatenate([of_tags, *of_stops], axis=2)
        of_illegal = jnp.where(jnp.asarray(self.illegal())[place_BxS], of_ids_BxSxI, -jnp.inf)
        illegal_BxS = jnp.exp(jax.nn.logsumexp(of_illegal, axis=2) - all_BxS)
        beyond_BxS = jax.lax.stop_gradient(jnp.maximum(illegal_BxS - (1.0 - CERTAIN), 0.0))  # the slope stays
        return -jnp.log1p(beyond_BxS - illegal_BxS)
